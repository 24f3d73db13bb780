"""The ranges of an embedded store: what a request does that concerns keys of several.

Its node finds the range of each request by itself, and has no leaders elsewhere. A request comes
back only if its keys are of several ranges, or if their range was split while it waited. It is cut
then, or sent again, or refused, as a client of a cluster does it::

    send ─▶ WrongRange, with the ranges of now ─┬─ it can be cut ──▶ its parts, one by one
                                                ├─ one range ──────▶ send again
                                                └─ several ────────▶ Invalid

A store of one range comes here never.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from postroom.client.routing.lanes import several_ranges
from postroom.client.routing.merges import MERGES
from postroom.client.routing.range_cache import RangeCache
from postroom.client.sender import Sender
from postroom.limits import SPLITS_DURING_CALL_MAX
from postroom.ranges.bounds import WrongRange, no_such_range
from postroom.ranges.contract import KeySet, RangeIds, Scope


class ForRange(msgspec.Struct, frozen=True, gc=False):
    """A request for a range that is told by its id, from an embedded store to its node."""

    range_id: int
    request: Any


class CameBack(Protocol):
    """The parts of an answer of an embedded store that concern a request which came back."""

    request: Any
    timeout_seconds: float | None
    sent_again: int


async def send_to_ranges(sender: Sender, answer: CameBack, wrong: WrongRange) -> Any:
    """Return the answer to a request that came back.

    Args:
        sender: the sender of the store.
        answer: the answer that is an error.
        wrong: the error.

    Raises:
        Invalid: the request concerns several ranges, and cannot be cut, or one that does not exist.
        WrongRange: it came back too often.
    """
    request, seconds = answer.request, answer.timeout_seconds
    cache = RangeCache()
    cache.learn(wrong.descriptors, teller=0)
    parts = _parts(request, cache) if type(request) in MERGES else []
    if len(parts) > 1:
        return MERGES[type(request)]([await sender.send(part, seconds) for part in parts])
    owners = set()
    for each in request.participants():
        if isinstance(each, KeySet):
            owners |= cache.owners(each)
        elif isinstance(each, RangeIds):
            if None in (named := {cache.by_id(range_id) for range_id in each.ids}):
                raise no_such_range(*each.ids)
            owners |= named
        elif each is Scope.WHOLE_STORE:
            owners |= set(cache)
    if len(owners) > 1 and None not in owners:  # else the node knows of more ranges than it told
        raise several_ranges(len(owners))
    sent_again = getattr(answer, "sent_again", 0) + 1
    if sent_again > SPLITS_DURING_CALL_MAX:
        raise wrong
    again: Any = sender.send(request, seconds)
    again.sent_again = sent_again
    return await again


def _parts(request: Any, cache: RangeCache) -> list[Any]:
    """Return the requests that a request is cut into, one for each range that it concerns."""
    concern = request.concerns()
    if concern is Scope.WHOLE_STORE:
        return [ForRange(each.range_id, request) for each in cache]
    return [
        msgspec.structs.replace(request, start=start, end=end)
        for start, end, _ in cache.pieces(*concern.spans[0])
    ]
