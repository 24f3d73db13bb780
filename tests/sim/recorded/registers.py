"""Whether what clients saw of single keys is linearizable.

The method is Wing and Gong's, with Lowe's memory of what was tried, as in Porcupine: look for an
order of the operations that keeps real time and that a plain variable could have carried out. ::

    put 1  ├───────┤                       a get that returns 1 may come before the put has
    get      ├──────────┤ 1                returned; after that, no get may find nothing
    get                     ├────┤ None    <- not linearizable

At each step one of the operations is taken that began before any other one, not yet taken, has
returned; if none of them fits, the last one taken is put back. Operations of unknown outcome may
be taken or left. Those that nobody has seen anything of are left out from the beginning: it makes
no difference, and they are what makes the search long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.sim.recorded.operations import Anomaly, Operation, Outcome

State = bytes | None


class NotLinearizable(Anomaly):
    """No order explains what was seen."""


def check_registers(operations: Iterable[Operation]) -> int:
    """Every key by itself: keys are independent (Herlihy and Wing, theorem 1).

    Returns:
        How many operations were judged.

    Raises:
        NotLinearizable: with the operations around the one that fits nowhere.
    """
    by_key: dict[bytes, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.outcome is not Outcome.FAILED:
            by_key[operation.key].append(operation)
    return sum(_check_key(_relevant(of_key)) for of_key in by_key.values())


def _relevant(operations: list[Operation]) -> list[Operation]:
    """Without what has no outcome and left no trace."""
    known = [each for each in operations if each.outcome is Outcome.OK]
    seen = {each.result for each in known if each.action == "get"}
    seen |= {each.expected for each in operations if each.action == "conditional_put"}
    return [
        each
        for each in operations
        if each.outcome is Outcome.OK or (each.action != "get" and each.value in seen)
    ]


@dataclass(eq=False)
class _Event:
    """A place in the list of what is not taken yet: an operation begins, or it returns."""

    operation: Operation | None
    bit: int = 0
    returns: _Event | None = None
    before: _Event | None = None
    after: _Event | None = None

    def lift(self) -> None:
        """Out of the list, with the return that belongs to it."""
        for event in (self, self.returns):
            if event is not None:
                assert event.before is not None
                event.before.after = event.after
                if event.after is not None:
                    event.after.before = event.before

    def put_back(self) -> None:
        """The reverse, in reverse order."""
        for event in (self.returns, self):
            if event is not None:
                assert event.before is not None
                event.before.after = event
                if event.after is not None:
                    event.after.before = event


def _check_key(operations: list[Operation]) -> int:
    head = _events(operations)
    left = sum(each.outcome is Outcome.OK for each in operations)
    state: State = None
    taken, tried = 0, {(0, state)}
    path: list[tuple[_Event, State]] = []
    stuck, depth = None, -1
    event = head.after
    while left:
        assert event is not None
        if event.operation is not None:
            after = _carried_out(event.operation, state)
            if after is not _IMPOSSIBLE and (taken | event.bit, after) not in tried:
                tried.add((taken | event.bit, after))
                path.append((event, state))
                state, taken = after, taken | event.bit
                left -= event.returns is not None
                event.lift()
                event = head.after
            else:
                event = event.after
            continue
        if len(path) > depth:
            depth, stuck = len(path), event
        if not path:
            raise NotLinearizable(_report(operations, stuck))
        event, state = path.pop()
        taken ^= event.bit
        left += event.returns is not None
        event.put_back()
        event = event.after
    return len(operations)


_IMPOSSIBLE: State = b"impossible" * 2


def _carried_out(operation: Operation, state: State) -> State:
    """The variable afterwards."""
    match operation.action:
        case "get":
            return state if state == operation.result else _IMPOSSIBLE
        case "conditional_put":
            return operation.value if state == operation.expected else _IMPOSSIBLE
    return operation.value


def _events(operations: list[Operation]) -> _Event:
    """The list, in order of time; what begins as another one returns may come before it."""
    events: list[tuple[float, int, int, _Event]] = []
    for number, operation in enumerate(operations):
        begin = _Event(operation, 1 << number)
        events.append((operation.invoked_at, 0, number, begin))
        if operation.outcome is Outcome.OK:
            begin.returns = _Event(None, 1 << number)
            events.append((operation.returned_at, 1, number, begin.returns))
    last = head = _Event(None)
    for *_, event in sorted(events, key=lambda each: each[:3]):
        last.after, event.before = event, last
        last = event
    return head


def _report(operations: list[Operation], stuck: _Event | None) -> str:
    assert stuck is not None
    victim = operations[stuck.bit.bit_length() - 1]
    near = [
        str(each)
        for each in sorted(operations, key=lambda each: each.invoked_at)
        if each is not victim
        and each.invoked_at <= victim.returned_at
        and (each.returned_at >= victim.invoked_at - 1.0 or math.isinf(each.returned_at))
    ]
    return "\n    ".join(
        [f"no order explains {victim}", "others on this key at about that time:", *near[-20:]]
    )
