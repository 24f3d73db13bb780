"""A judge of whether clients saw single keys in a linearizable order.

The method is Wing and Gong's, with Lowe's memory of what was tried, as in Porcupine. It looks for
an order of the operations that keeps real time and that a plain variable could have carried out. ::

    put 1  ├───────┤                       a get that returns 1 may come before the put has
    get      ├──────────┤ 1                returned; after that, no get may find nothing
    get                     ├────┤ None    <- not linearizable

At each step one of the operations is taken that began before any other one, not yet taken, has
returned. If none of them fits, the last one taken is put back. Operations of unknown outcome may be
taken or left. Those that nobody has seen anything of are left out from the beginning: it makes no
difference, and they are what makes the search long.

With many clients nearly every operation may come next, so three rules keep the search short. None
of them loses an order, if there is one:

* A read of what is there now is taken at once: it changes nothing, and only makes room for others.
* The present value is not overwritten while somebody has yet to see it and nobody writes it again.
* When nobody needs the present value any more, a write is taken at once together with all that see
  it, if all of these may come next. (In any order they can be moved to the front as one block: a
  write comes after them there, which does not look at what was before it.)

The rest is a search, and it has a budget: when that is spent ``Undecided`` says so.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.sim.recorded.operations import Anomaly, Operation, Outcome

State = bytes | None


class NotLinearizable(Anomaly):
    """No order explains what was seen."""


class Undecided(AssertionError):
    """The budget was spent before there was an answer: neither right nor wrong was found."""


STEPS_MAX: Final = 300_000
"""The number of operations that are tried for a key."""


def check_registers(operations: Iterable[Operation], steps_max: int = STEPS_MAX) -> int:
    """Check every key by itself: keys are independent (Herlihy and Wing, theorem 1).

    Args:
        operations: of any number of keys.
        steps_max: how many steps the search may take for each key.

    Returns:
        How many operations were judged.

    Raises:
        NotLinearizable: with the operations around the one that fits nowhere.
        Undecided: no key is known to be wrong, but for some the budget was not enough.
    """
    by_key: dict[bytes, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.outcome is not Outcome.FAILED:
            by_key[operation.key].append(operation)
    judged, undecided = 0, []
    for key, of_key in by_key.items():
        search = _Search(_relevant(of_key), steps_max)
        if search.run():
            judged += len(search.operations)
        else:
            undecided.append(f"{len(search.operations)} operations on {key!r}")
    if undecided:
        raise Undecided(f"not decided within {steps_max} steps: {', '.join(undecided)}")
    return judged


def _relevant(operations: list[Operation]) -> list[Operation]:
    """Leave out the operations that have no outcome and left no trace."""
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
        """Take the event out of the list, with the return that belongs to it."""
        for event in (self, self.returns):
            if event is not None:
                assert event.before is not None
                event.before.after = event.after
                if event.after is not None:
                    event.after.before = event.before

    def put_back(self) -> None:
        """Put the event back, in reverse order."""
        for event in (self.returns, self):
            if event is not None:
                assert event.before is not None
                event.before.after = event
                if event.after is not None:
                    event.after.before = event


class _Search:
    """A search for an order of the operations on one key.

    Attributes:
        operations: all of them.
    """

    def __init__(self, operations: list[Operation], steps_max: int) -> None:
        self.operations = operations
        self._steps_left = steps_max
        self._head = _events(operations)
        self._left = sum(each.outcome is Outcome.OK for each in operations)
        self._state: State = None
        self._taken = 0
        self._tried = {(0, self._state)}
        self._path: list[tuple[_Event, State, bool]] = []
        self._writers = Counter(each.value for each in operations if each.action != "get")
        self._readers = Counter(_sees(each) for each in operations if _looks(each))
        self._known_readers = Counter(
            _sees(each) for each in operations if _looks(each) and each.outcome is Outcome.OK
        )

    def run(self) -> bool:
        """Return whether the budget was enough.

        Raises:
            NotLinearizable: there is no order.
        """
        stuck, depth = (self._head, 0, self._state), -1
        event = self._settled()
        while self._left:
            if not self._steps_left:
                return False
            if event is not None and event.operation is not None:
                event = self._settled() if self._take(event) else event.after
                continue
            if len(self._path) > depth:
                depth, stuck = len(self._path), (self._first_return(), self._taken, self._state)
            event = self._back()
            if event is None:
                raise NotLinearizable(_report(self.operations, *stuck))
        return True

    def _first_return(self) -> _Event:
        event = self._head.after
        while event is not None and event.operation is not None:
            event = event.after
        assert event is not None
        return event

    def _settled(self) -> _Event | None:
        """Take what may be taken without a choice; return where the choice begins then."""
        while self._left and self._steps_left:
            event = self._obvious()
            if event is None:
                return self._head.after
            if not self._take(event, obvious=True):
                return self._first_return()  # it was here before, and in vain
        return self._head.after

    def _obvious(self) -> _Event | None:
        candidates = []
        event = self._head.after
        while event is not None and event.operation is not None:
            operation = event.operation
            if operation.action == "get" and operation.result == self._state:
                return event
            candidates.append(event)
            event = event.after
        if self._readers[self._state]:
            return None
        return next(filter(self._is_whole, candidates), None)

    def _is_whole(self, event: _Event) -> bool:
        """Return whether this writes what may be seen at once by all who ever see it."""
        operation = event.operation
        assert operation is not None
        if operation.action not in ("put", "delete") or operation.outcome is not Outcome.OK:
            return False
        left = self._readers[operation.value]
        if not left:
            return True
        if self._writers[operation.value] > 1:
            return False
        mine = event.bit
        other = self._head.after
        while left and other is not None:
            about = other.operation
            if about is None and not other.bit & mine:
                return False
            if about is not None and about.action == "get" and about.result == operation.value:
                left -= 1
                mine |= other.bit
            other = other.after
        return not left

    def _take(self, event: _Event, *, obvious: bool = False) -> bool:
        """Take the operation next, if it can come; return whether."""
        operation, state = event.operation, self._state
        assert operation is not None
        after = _carried_out(operation, state)
        taken = self._taken | event.bit
        if after is _IMPOSSIBLE or (taken, after) in self._tried:
            return False
        self._steps_left -= 1
        self._tried.add((taken, after))
        self._count(operation, -1)
        if after != state and self._known_readers[state] and not self._writers[state]:
            self._count(operation, 1)
            return False
        self._path.append((event, state, obvious))
        self._state, self._taken = after, taken
        self._left -= event.returns is not None
        event.lift()
        return True

    def _back(self) -> _Event | None:
        """Put back what was chosen last; return where to look on, or ``None``."""
        obvious = True
        while obvious:
            if not self._path:
                return None
            event, self._state, obvious = self._path.pop()
            assert event.operation is not None
            self._taken ^= event.bit
            self._left += event.returns is not None
            self._count(event.operation, 1)
            event.put_back()
        return event.after

    def _count(self, operation: Operation, by: int) -> None:
        """Count an operation that is taken (-1), or put back."""
        if operation.action != "get":
            self._writers[operation.value] += by
        if _looks(operation):
            self._readers[_sees(operation)] += by
            self._known_readers[_sees(operation)] += by * (operation.outcome is Outcome.OK)


def _looks(operation: Operation) -> bool:
    return operation.action in ("get", "conditional_put")


def _sees(operation: Operation) -> State:
    """Return the state that an operation saw."""
    return operation.result if operation.action == "get" else operation.expected


_IMPOSSIBLE: State = b"impossible" * 2


def _carried_out(operation: Operation, state: State) -> State:
    """Return the variable afterwards."""
    match operation.action:
        case "get":
            return state if state == operation.result else _IMPOSSIBLE
        case "conditional_put":
            return operation.value if state == operation.expected else _IMPOSSIBLE
    return operation.value


def _events(operations: list[Operation]) -> _Event:
    """Return the events in order of time; a beginning comes before a return at its time."""
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


def _report(operations: list[Operation], stuck: _Event, taken: int, state: State) -> str:
    """Return where the search came farthest: the operation to come next, and those before it."""
    victim = operations[stuck.bit.bit_length() - 1]
    others = [each for each in operations if each is not victim]
    near = [
        str(each)
        for each in sorted(others, key=lambda each: each.invoked_at)
        if each.invoked_at <= victim.returned_at
        and (each.returned_at >= victim.invoked_at - 1.0 or math.isinf(each.returned_at))
    ]
    waiting = [
        str(each)
        for number, each in enumerate(operations)
        if each is not victim
        and not taken >> number & 1
        and each.outcome is Outcome.OK
        and _looks(each)
        and _sees(each) == state
    ]
    return "\n    ".join(
        [
            f"no order explains {victim}",
            "others on this key at about that time:",
            *near[-20:],
            f"not yet come, and must see {state!r}, which was there:",
            *waiting[:5],
        ]
    )
