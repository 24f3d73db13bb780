"""The requests that go to several ranges: each gets a part, and the answers are merged.

::

    list_ranges b"" ... end ─┬─▶ range 1: b"" ... m ─▶ [range 1] ─┬─▶ [range 1, range 2]
                             └─▶ range 2: m ... end ─▶ [range 2] ─┘

:mod:`.merges` tells which ones these are, their parts, and what becomes of the answers. Every other
request concerns one range, or is refused.

A part is a call like any other. If its range was split meanwhile, it is cut again. A part whose
keys lie in a gap of the range cache waits until these ranges are known. A call that goes to all
ranges waits as well. It asks each of them once, by its id. Ranges that are learned of meanwhile are
asked when all others have answered. One that does not exist is left out.

All parts of a read have one timestamp. If the call has none, it is the greatest clock of all
leaseholders, which is asked for before.

Locks are released by node: each one has those of all the ranges that it leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.client.routing.changes import asked_until
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.links import Link
from postroom.client.routing.merges import (
    WINDOWS,
    AnsweredPart,
    cut,
    following,
    is_divisible,
    merged,
    merged_so_far,
    shared,
)
from postroom.ranges.contract import KeySet
from postroom.ranges.requests import GetMany, Protect, ReleaseLocks, ScanChanges
from postroom.ranges.whole_protections import ReleaseWhole

_UNKNOWN: Final = -1
"""The range of a part that waits until all ranges are known."""


class Spread:
    """A call that goes to several ranges, while its parts are under way.

    Args:
        call: the call.
        assign: assigns a part to the lane of its range.
        end: ends the call with a result or an error.
    """

    def __init__(
        self,
        call: RemoteCall,
        assign: Callable[[RemoteCall], None],
        end: Callable[[RemoteCall, Any, BaseException | None], None],
    ) -> None:
        self._call = call
        self._assign = assign
        self._end = end
        self._answered: list[AnsweredPart] = []
        self._following: deque[PartCall] = deque()
        self._asked: set[int] = set()
        self._lanes: Lanes
        self._left = 0

    def begin(self, lanes: Lanes) -> None:
        """Assign its parts to lanes, or the first one if they are asked for in order."""
        self._lanes = lanes
        request: Any = self._call.request
        unreached: list[int] = []
        if type(request) is ReleaseLocks:
            id_ = request.transaction_id
            unreached = [
                lane.range_id for lane in lanes
                if lane.target is None and lane.holdings.holds_for(id_)
            ]  # fmt: skip
            lanes.ended(id_)
        elif type(request) is ReleaseWhole:
            for lane in lanes:
                lane.holdings.release_whole(request.at)
        concern, rotation = request.concerns(), self._call.number
        if isinstance(concern, KeySet):
            parts = [PartCall(self, each) for each in cut(request, concern, lanes.cache, rotation)]
        else:
            parts = self._parts_by_id(unreached)
        if not parts:
            self._end(self._call, None, None)
        self._ask(parts)

    def _ask(self, parts: list[PartCall]) -> None:
        call = self._call
        for part in parts:
            part.deadline, part.waits = call.deadline, call.waits
        self._left = len(parts)
        way = call.way = call.way or CallWay()
        way.parts = parts
        at_once = WINDOWS.get(type(call.request), len(parts))
        self._following.extend(parts[at_once:])
        for part in parts[:at_once]:
            self._assign(part)

    def _parts_by_id(self, unreached: Sequence[int] = ()) -> list[PartCall]:
        """Return the parts for the ranges that were not asked yet.

        Args:
            unreached: the ids of further ones, to which there is no link just now.
        """
        request: Any = self._call.request
        ids = [*(lane.range_id for lane in _to_ask(request, self._lanes)), *unreached]
        new = [range_id for range_id in ids if range_id not in self._asked]
        self._asked.update(new)
        return [PartCall(self, shared(request, len(new)), range_id) for range_id in new]

    @property
    def is_over(self) -> bool:
        """Return whether the call has ended without some of its parts, or nobody waits for it."""
        return self._call.is_unwanted

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Take the answer to a part; end the call with the last one, or with an error.

        The answer to a part whose range is not known any more does not count. Another range may
        have given it, and that is asked by its own id.
        """
        if part.range_id and part.range_id not in self._lanes.by_id:
            self._asked.discard(part.range_id)
        else:
            self._answered.append(AnsweredPart(part.request, result))
        self._left -= 1
        if self._call.done:
            return
        if error is not None:
            self._end(self._call, None, error)
            return
        self._answered = merged_so_far(self._answered)
        if self._following:
            after = self._following.popleft()
            after.request = following(after.request, self._answered)
            self._assign(after)
        elif not self._left:
            self._finish()

    def _finish(self) -> None:
        """End the call, unless other ranges are to be asked, or to be learned of."""
        request = self._call.request
        if not isinstance(request.concerns(), KeySet) and type(request) is not ReleaseLocks:
            has_gap = self._lanes.cache.has_gap()
            others = [PartCall(self, request, _UNKNOWN)] if has_gap else self._parts_by_id()
            if others:
                self._ask(others)
                return
        self._end(self._call, merged(request, self._answered), None)


class AwaitedParts:
    """A call that waits at several ranges.

    Args:
        call: the call.
        calls: assigns, sends again and withdraws calls.
    """

    def __init__(self, call: RemoteCall, calls: AssignedCalls) -> None:
        self._call = call
        self._calls = calls
        self._parts: list[PartCall] = []

    def assign(self, requests: Iterable[Any]) -> None:
        """Have parts go to the ranges of their keys, in the place of earlier ones."""
        call = self._call
        way = call.way = call.way or CallWay()
        way.parts = self._parts = parts = [PartCall(self, each) for each in requests]
        for part in parts:
            part.deadline, part.waits = call.deadline, part.request.wait
            if not self.is_over:
                self._calls.assign_new(part)

    @property
    def is_over(self) -> bool:
        """Return whether the call has ended, or goes on without these parts."""
        way = self._call.way
        return self._call.done or way is None or way.parts is not self._parts

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Take the answer to a part."""
        raise NotImplementedError


class AwaitedChange(AwaitedParts):
    """A watch that waits at several ranges until one of them has a change."""

    def begin(self, lanes: Lanes) -> None:
        """Have a part wait in each range."""
        request = self._call.request
        self.assign(cut(request, request.concerns(), lanes.cache))

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Ask all ranges up to where the first one has come that answers."""
        del part
        if self.is_over:
            return
        if error is None:
            self._calls.ask_again(self._call, asked_until(self._call.request, result.until))
        else:
            self._calls.end_wait(self._call, None, error)


class Parts(Protocol):
    """The parts of a call, as each of them sees the others."""

    @property
    def is_over(self) -> bool:
        """Return whether the call has ended, or waits no more."""

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Take the answer to a part."""


class AssignedCalls(Protocol):
    """The calls on their way (:mod:`.assignment`), as a call sees them that waits for others."""

    def assign_new(self, call: RemoteCall) -> None:
        """Have a call wait in its lane that is under way in the place of another one."""

    def ask_again(self, call: RemoteCall, request: Any) -> None:
        """Withdraw the parts of a call, and send it with another request, which does not wait."""

    def send_new(self, link: Link, call: RemoteCall) -> None:
        """Send a call on a link that is under way in the place of another one."""

    def leave(self, call: RemoteCall) -> None:
        """Have what a claim was given without a waiting caller go back."""

    def rest(self, call: RemoteCall) -> None:
        """Withdraw the parts of a call, and send it again after a pause."""

    def begin_again(self, call: RemoteCall) -> None:
        """Withdraw the parts of a call, and send it again as it is."""

    def end_wait(self, call: RemoteCall, result: Any, error: BaseException | None) -> None:
        """Withdraw the parts of a call, and end it with a result or an error."""


class PartCall(RemoteCall):
    """A part of a call that goes to several ranges.

    Attributes:
        range_id: the range to which it goes; 0: that of its keys; -1: none that is known yet.
    """

    __slots__ = ("_spread", "range_id")

    def __init__(self, spread: Parts, request: Any, range_id: int = 0) -> None:
        super().__init__(request)
        self._spread = spread
        self.range_id = range_id

    @property
    def is_unwanted(self) -> bool:
        """Return whether its answer is of no use, since the call as a whole has ended."""
        return self.done or self._spread.is_over

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the call of which it is a part."""
        self._spread.completed(self, result, error)


class Question(RemoteCall):
    """A request whose answer a call awaits, before it goes on or ends.

    Args:
        request: the request.
        call: the call.
        answered: called with the answer or the error, unless the call has ended.
    """

    __slots__ = ("_answered", "_call")

    def __init__(
        self,
        request: Any,
        call: RemoteCall,
        answered: Callable[[Any, BaseException | None], None],
    ) -> None:
        super().__init__(request)
        self.deadline = call.deadline
        self._call = call
        self._answered = answered
        way = call.way = call.way or CallWay()
        way.parts = [self]

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Have the call go on, or end."""
        if not self._call.done:
            self._answered(result, error)


def needs_present(call: RemoteCall, lanes: Lanes) -> bool:
    """Return whether a call is about the present of several ranges: it protects or reads it."""
    request = call.request
    if is_of_present(request):
        return is_to_spread(call, lanes)
    return type(request) is Protect and not (request.timestamp or request.whole)


def is_of_present(request: Any) -> bool:
    """Return whether a request asks for what is there now, and has to tell when that is."""
    if type(request) is ScanChanges:
        return not (request.wait or request.until)
    return type(request) is GetMany and not request.timestamp


def is_to_spread(call: RemoteCall, lanes: Lanes) -> bool:
    """Return whether a call has to be cut into parts, one for each range."""
    request = call.request
    if not is_divisible(request):
        return False
    concern = request.concerns()
    if isinstance(concern, KeySet):
        return lanes.cache.are_several(concern)
    if type(call) is PartCall and call.range_id:
        return False
    return type(request) is ReleaseLocks or not lanes.cache.has_gap()


def _to_ask(request: Any, lanes: Lanes) -> list[Lane]:
    """Return the lanes of the ranges that are asked."""
    if type(request) is ReleaseLocks:
        return list({lane.target: lane for lane in lanes if lane.target is not None}.values())
    return list(lanes)
