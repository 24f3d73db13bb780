"""The requests that go to several ranges: each gets a part, and the answers are merged.

::

    list_ranges b"" ... end ─┬─▶ range 1: b"" ... m ─▶ [range 1] ─┬─▶ [range 1, range 2]
                             └─▶ range 2: m ... end ─▶ [range 2] ─┘

``MERGES`` (:mod:`.merges`) has them all. Every other request concerns one range, or is refused.

A part is a call like any other. If its range was split meanwhile, it is cut again. A part whose
keys lie in a gap of the range cache waits until these ranges are known. A call that goes to all
ranges waits as well.

Locks are released by node: each one has those of all the ranges that it leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.merges import MERGES
from postroom.client.routing.range_cache import RangeCache
from postroom.ranges.contract import KeySet
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import Now, Protect, ReleaseLocks
from postroom.ranges.transactions.requests import Refresh


class Spread:
    """A call that goes to several ranges, while its parts are under way.

    Args:
        call: the call.
        end: ends the call with a result or an error.
    """

    def __init__(
        self, call: RemoteCall, end: Callable[[RemoteCall, Any, BaseException | None], None]
    ) -> None:
        self._call = call
        self._end = end
        self._answers: list[Any] = []
        self._left = 0

    def parts(self, lanes: Lanes) -> list[PartCall]:
        """Return its parts, which are to be assigned to lanes."""
        request: Any = self._call.request
        concern = request.concerns()
        if type(request) is Refresh:
            parts = [PartCall(self, each) for each in _by_range(request, lanes.cache)]
        elif isinstance(concern, KeySet):
            parts = [
                PartCall(self, msgspec.structs.replace(request, start=start, end=end))
                for start, end, _ in lanes.cache.pieces(*concern.spans[0])
            ]
        else:
            parts = [PartCall(self, request, lane.range_id) for lane in _asked(request, lanes)]
        if type(request) is ReleaseLocks:
            lanes.ended(request.transaction_id)
        for part in parts:
            part.deadline = self._call.deadline
        self._left = len(parts)
        return parts

    def completed(self, result: Any, error: BaseException | None) -> None:
        """Take the answer to a part; end the call with the last one, or with an error."""
        self._left -= 1
        self._answers.append(result)
        if not self._call.done and (error is not None or not self._left):
            merged = None if error is not None else MERGES[type(self._call.request)](self._answers)
            self._end(self._call, merged, error)


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
        self._spread.completed(result, error)


class PresentCall(RemoteCall):
    """A question for the greatest clock of all leaseholders, before a call that needs it.

    Args:
        call: the call, which protects the present.
        assign: has the call go on.
    """

    __slots__ = ("_assign", "_call")

    def __init__(self, call: RemoteCall, assign: Callable[[RemoteCall], None]) -> None:
        super().__init__(Now())
        self.deadline = call.deadline
        self._call = call
        self._assign = assign

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


def needs_present(call: RemoteCall) -> bool:
    """Return whether a call protects the present of several ranges."""
    request = call.request
    return type(request) is Protect and not (request.timestamp or request.whole)


def is_to_spread(call: RemoteCall, lanes: Lanes) -> bool:
    """Return whether a call has to be cut into parts, one for each range."""
    request = call.request
    if type(request) not in MERGES:
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


def _by_range(request: Refresh, cache: RangeCache) -> Iterator[Refresh]:
    """Yield the parts of a request, one for each range, and one for what lies in gaps."""
    keys: dict[RangeDescriptor | None, list[bytes]] = {}
    spans: dict[RangeDescriptor | None, list[tuple[bytes, bytes | None]]] = {}
    for key in request.keys:
        keys.setdefault(cache.owner(key), []).append(key)
    for span in request.spans:
        for start, end, owner in cache.pieces(*span):
            spans.setdefault(owner, []).append((start, end))
    for owner in {**keys, **spans}:
        yield msgspec.structs.replace(request, keys=keys.get(owner, []), spans=spans.get(owner, []))
