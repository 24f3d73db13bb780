"""The ranges of an embedded store: what a request does that concerns keys of several.

Its node finds the range of each request by itself, and has no leaders elsewhere. A request comes
back only if its keys are of several ranges, or if their range was split while it waited. It is cut
then, or sent again, or refused, as a client of a cluster does it::

    send ─▶ WrongRange, with the ranges of now ─┬─ it can be cut ──▶ its parts, one after the other
                                                ├─ one range ──────▶ send again
                                                └─ several ────────▶ Invalid

A store of one range comes here never.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from postroom.client.routing.lanes import several_ranges
from postroom.client.routing.merges import AT_ONCE, DIVISIBLE, AnsweredPart, cut, merged
from postroom.client.routing.range_cache import RangeCache
from postroom.client.sender import Sender, present
from postroom.errors import Error
from postroom.limits import SPLITS_DURING_CALL_MAX
from postroom.ranges.bounds import WrongRange, no_such_range
from postroom.ranges.contract import KeySet, RangeIds, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import GetMany


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
    if type(request) in DIVISIBLE:
        if type(request) is GetMany and not request.timestamp:
            request = msgspec.structs.replace(request, timestamp=await present(sender))
        parts = _parts(request, cache)
        if parts:
            return await _answer_of(sender, request, parts, seconds)
    owners = _owners(request, cache)
    if len(owners) > 1 and None not in owners:  # else the node knows of more ranges than it told
        raise several_ranges(len(owners))
    sent_again = getattr(answer, "sent_again", 0) + 1
    if sent_again > SPLITS_DURING_CALL_MAX:
        raise wrong
    again: Any = sender.send(request, seconds)
    again.sent_again = sent_again
    return await again


def _owners(request: Any, cache: RangeCache) -> set[RangeDescriptor | None]:
    """Return the ranges that a request concerns, which cannot be cut.

    Raises:
        Invalid: one of them does not exist.
    """
    owners: set[RangeDescriptor | None] = set()
    for each in request.participants():
        if isinstance(each, KeySet):
            owners |= cache.owners(each)
        elif isinstance(each, RangeIds):
            if None in (named := {cache.by_id(range_id) for range_id in each.ids}):
                raise no_such_range(*each.ids)
            owners |= named
        elif each is Scope.WHOLE_STORE:
            owners |= set(cache)
    return owners


def _parts(request: Any, cache: RangeCache) -> list[Any]:
    """Return the requests that a request is cut into; none, if it concerns one range."""
    concern = request.concerns()
    if concern is Scope.WHOLE_STORE:
        return [ForRange(each.range_id, request) for each in cache] if len(cache) > 1 else []
    return cut(request, concern, cache) if len(cache.owners(concern)) > 1 else []


async def _answer_of(sender: Sender, request: Any, parts: list[Any], seconds: float | None) -> Any:
    """Return the answer that is made of the answers to the parts of a request."""
    if type(request) in AT_ONCE:
        return merged(request, await _at_once(sender, parts, seconds))
    end = sender.monotonic() + (seconds or 0.0)
    answered = []
    for part in parts:
        left = None if seconds is None else max(end - sender.monotonic(), 0.0)
        answered.append(AnsweredPart(part, await sender.send(part, left)))
    return merged(request, answered)


async def _at_once(sender: Sender, parts: list[Any], seconds: float | None) -> list[AnsweredPart]:
    """Return the answers to parts that are all sent before the first one is awaited.

    If one of them is an error, it is raised when all have been answered.
    """
    answered, errors = [], list[Error]()
    for part, answer in [(part, sender.send(part, seconds)) for part in parts]:
        try:
            answered.append(AnsweredPart(part, await answer))
        except Error as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return answered
