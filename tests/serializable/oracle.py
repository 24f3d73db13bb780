"""An oracle that looks for one order of transactions that explains what all of them saw.

It tries every order. For a handful of transactions that is quick, and simple enough to be believed:
each order is carried out on a dictionary and on lists. It knows nothing of timestamps, claims or
checks.

A message that a reap did not return says nothing, unless the reap returned nothing at all while no
other transaction held anything of that inbox. Messages are told apart by their values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass
class State:
    """The state of a store: keys, and inboxes."""

    keys: dict[str, str] = field(default_factory=dict)
    inboxes: dict[str, list[str]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.keys), {name: list(held) for name, held in self.inboxes.items()})

    def same(self, other: State) -> bool:
        """Compare states but for the order in inboxes, which is another promise."""
        mine = {name: sorted(held) for name, held in self.inboxes.items() if held}
        theirs = {name: sorted(held) for name, held in other.inboxes.items() if held}
        return self.keys == other.keys and mine == theirs


class Done(NamedTuple):
    """An operation of a transaction, and the answer that it was told.

    ========== ============ ========================================================
    what       target       told
    ========== ============ ========================================================
    put        key          the value
    delete     key
    get        key          the value, or ``None``
    scan                    all pairs
    send       inbox        the value
    reap       inbox        values; ``None`` if there were none and others held some
    peek       inbox        values, all there are
    peek_first inbox        the first value, if there is one
    ========== ============ ========================================================
    """

    what: str
    target: str = ""
    told: Any = None


def explains(
    before: State, transactions: Sequence[Sequence[Done]], after: State
) -> tuple[int, ...] | None:
    """Return an order that explains what each transaction saw, and ``after``; or ``None``."""
    for order in itertools.permutations(range(len(transactions))):
        state = before.copy()
        if all(_run(state, transactions[each]) for each in order) and state.same(after):
            return order
    return None


def _run(state: State, steps: Sequence[Done]) -> bool:
    """Carry a transaction out on ``state``; whether it would be told the same."""
    sends: list[Done] = []
    for step in steps:
        if step.what == "send":
            sends.append(step)
        elif not _CARRIED_OUT[step.what](state, step):
            return False
    for step in sends:
        state.inboxes.setdefault(step.target, []).append(step.told)
    return True


def _put(state: State, step: Done) -> bool:
    state.keys[step.target] = step.told
    return True


def _delete(state: State, step: Done) -> bool:
    state.keys.pop(step.target, None)
    return True


def _reap(state: State, step: Done) -> bool:
    held = state.inboxes.get(step.target, [])
    if step.told is None:
        return True
    if not step.told:
        return not held
    if not set(step.told) <= set(held):
        return False
    state.inboxes[step.target] = [each for each in held if each not in step.told]
    return True


_CARRIED_OUT = {
    "put": _put,
    "delete": _delete,
    "get": lambda state, step: state.keys.get(step.target) == step.told,
    "scan": lambda state, step: state.keys == step.told,
    "reap": _reap,
    "peek": lambda state, step: sorted(state.inboxes.get(step.target, [])) == sorted(step.told),
    "peek_first": lambda state, step: (
        step.told[0] in state.inboxes.get(step.target, [])
        if step.told
        else not state.inboxes.get(step.target)
    ),
}


def interleavings(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all orders in which the steps of transactions can follow each other."""
    if not any(lengths):
        yield ()
        return
    for first, length in enumerate(lengths):
        if length:
            rest = [each - (index == first) for index, each in enumerate(lengths)]
            for others in interleavings(rest):
                yield (first, *others)
