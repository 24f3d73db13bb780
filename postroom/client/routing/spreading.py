"""The requests that go to several ranges: each gets a part, and the answers are merged.

::

    list_ranges b"" ... end ─┬─▶ range 1: b"" ... m ─▶ [range 1] ─┬─▶ [range 1, range 2]
                             └─▶ range 2: m ... end ─▶ [range 2] ─┘

:mod:`.merges` tells which ones these are, their parts, and what becomes of the answers. Every other
request concerns one range, or is refused.

A part is a call like any other. If its range was split meanwhile, it is cut again. A part whose
keys lie in a gap of the range cache waits until these ranges are known. A call that goes to all
ranges waits as well.

All parts of a read have one timestamp. If the call has none, it is the greatest clock of all
leaseholders, which is asked for before.

Locks are released by node: each one has those of all the ranges that it leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.merges import DIVISIBLE, IN_ORDER, AnsweredPart, cut, merged
from postroom.ranges.contract import KeySet
from postroom.ranges.requests import GetMany, Now, Protect, ReleaseLocks


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
        self._left = 0

    def begin(self, lanes: Lanes) -> None:
        """Assign its parts to lanes, or the first one if they are asked for in order."""
        call = self._call
        parts = self._parts(lanes)
        if type(call.request) is ReleaseLocks:
            lanes.ended(call.request.transaction_id)
        for part in parts:
            part.deadline, part.waits = call.deadline, call.waits
        self._left = len(parts)
        way = call.way = call.way or CallWay()
        way.parts = parts
        if not parts:
            self._end(call, None, None)
        if type(call.request) in IN_ORDER:
            self._following.extend(parts[1:])
            parts = parts[:1]
        for part in parts:
            self._assign(part)

    def _parts(self, lanes: Lanes) -> list[PartCall]:
        request: Any = self._call.request
        concern = request.concerns()
        if isinstance(concern, KeySet):
            return [PartCall(self, each) for each in cut(request, concern, lanes.cache)]
        return [PartCall(self, request, lane.range_id) for lane in _asked(request, lanes)]

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Take the answer to a part; end the call with the last one, or with an error."""
        self._left -= 1
        self._answered.append(AnsweredPart(part.request, result))
        if self._call.done:
            return
        if error is not None:
            self._end(self._call, None, error)
        elif not self._left:
            self._end(self._call, merged(self._call.request, self._answered), None)
        elif self._following:
            self._assign(self._following.popleft())


class PartCall(RemoteCall):
    """A part of a call that goes to several ranges.

    Attributes:
        range_id: the range to which it goes; 0: that of its keys.
    """

    __slots__ = ("_spread", "range_id")

    def __init__(self, spread: Spread, request: Any, range_id: int = 0) -> None:
        super().__init__(request)
        self._spread = spread
        self.range_id = range_id

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the call of which it is a part."""
        self._spread.completed(self, result, error)


class PresentCall(RemoteCall):
    """A question for the greatest clock of all leaseholders, before a call that needs it.

    Args:
        call: the call, which protects or reads the present.
        assign: has the call go on.
    """

    __slots__ = ("_assign", "_call")

    def __init__(self, call: RemoteCall, assign: Callable[[RemoteCall], None]) -> None:
        super().__init__(Now())
        self.deadline = call.deadline
        self._call = call
        self._assign = assign
        way = call.way = call.way or CallWay()
        way.parts = [self]

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Have the call go on with the timestamp."""
        call = self._call
        if call.done:
            return
        if error is not None:
            call.done = True
            call.complete(None, error)
            return
        call.request = msgspec.structs.replace(call.request, timestamp=result)
        self._assign(call)


def needs_present(call: RemoteCall, lanes: Lanes) -> bool:
    """Return whether a call is about the present of several ranges: it protects or reads it."""
    request = call.request
    if type(request) is GetMany:
        return not request.timestamp and is_to_spread(call, lanes)
    return type(request) is Protect and not (request.timestamp or request.whole)


def is_to_spread(call: RemoteCall, lanes: Lanes) -> bool:
    """Return whether a call has to be cut into parts, one for each range."""
    request = call.request
    if type(request) not in DIVISIBLE:
        return False
    concern = request.concerns()
    if isinstance(concern, KeySet):
        return len(lanes.cache.owners(concern)) > 1
    if type(call) is PartCall and call.range_id in lanes.by_id:
        return call.way is not None and call.way.is_stray
    return type(request) is ReleaseLocks or not lanes.cache.has_gap()


def _asked(request: Any, lanes: Lanes) -> list[Lane]:
    """Return the lanes of the ranges that are asked."""
    if type(request) is ReleaseLocks:
        return list({lane.target: lane for lane in lanes if lane.target is not None}.values())
    return list(lanes)
