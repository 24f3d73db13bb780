"""A judge of small histories that tries everything: slow, and too simple to be wrong.

Any order in which each operation comes after those that had returned before it was invoked is
carried out on plain variables, with and without each operation of unknown outcome. If one of them
gives what was seen, the history is right. The checkers beside this module, which are fast, must say
the same (``test_appends_oracle.py``, ``test_registers_oracle.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.sim.recorded.operations import Operation, Outcome, Transaction

Entry = TypeVar("Entry", Operation, Transaction)
State = dict[bytes, Any]


def is_explained(history: Sequence[Operation] | Sequence[Transaction]) -> bool:
    """Return whether one order of ``history`` gives what was seen."""
    entries: list[Any] = [each for each in history if each.outcome is not Outcome.FAILED]
    carry_out = _operate if entries and isinstance(entries[0], Operation) else _transact
    return _search(entries, {}, carry_out)


def _search(
    left: list[Entry], state: State, carry_out: Callable[[Entry, State], State | None]
) -> bool:
    if all(each.outcome is Outcome.UNKNOWN for each in left):
        return True
    for entry in left:
        if any(_before(other, entry) for other in left):
            continue
        after = carry_out(entry, state)
        others = [each for each in left if each is not entry]
        if after is not None and _search(others, after, carry_out):
            return True
    return False


def _before(one: Entry, other: Entry) -> bool:
    """Return whether ``one`` had returned when ``other`` was invoked."""
    return one.outcome is Outcome.OK and one.returned_at < other.invoked_at


def _operate(operation: Operation, state: State) -> State | None:
    """Return the variables afterwards; ``None``: it would have seen something else."""
    now = state.get(operation.key)
    match operation.action:
        case "get":
            # One of unknown outcome was told nothing, so it has seen nothing wrong.
            told = operation.outcome is Outcome.OK
            return state if not told or now == operation.result else None
        case "conditional_put" if now != operation.expected:
            return None
    return {**state, operation.key: operation.value}


def _transact(transaction: Transaction, state: State) -> State | None:
    own = dict(state)
    for what, key, about in transaction.actions:
        found = own.get(key, ())
        if what == "append":
            own[key] = (*found, about)
        elif found != about:
            return None
    return own
