"""Claims of queue messages over several ranges: one range at a time, then all of them at once.

::

    does not wait ──▶ one range ─▶ its messages, and the span that was asked
    waits ──▶ one range after the other, without a wait, until one has messages
                └─ none has ─▶ waits at each node ─▶ the first answer; the others are withdrawn

Each claim begins with another range, so that none is left behind. Messages that a withdrawn part
has claimed go back, uncounted.

A claim that does not wait asks one range, as a scan does. Its answer tells the span of homes that
was asked, and the client asks for the rest if it wants more. A range with nothing tells which other
ranges of its node have nothing either. These are not asked.

A consumer without credit asks the ranges of the messages that it has in hand.

A node serves a claim from all ranges that it leads meanwhile. If a range splits in which a consumer
without credit waits, all begin anew.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, HomeSpan
from postroom.messaging.queues.requests import Attempt

T = TypeVar("T")

_START: Final = itemgetter(0)


def is_claim_that_waits(request: Any) -> bool:
    """Return whether a request is a claim that waits until a range has messages for it."""
    return type(request) is ClaimQueue and request.wait


def asks_one_range(request: ClaimQueue) -> bool:
    """Return whether a claim is sent to one range at a time.

    One that only looks for what it was given before is sent to all of them.
    """
    return request.in_hand is None and not request.wait and request.messages_max > 0


def turned(parts: Sequence[T], rotation: int) -> list[T]:
    """Return parts in their order, beginning with another one for each rotation."""
    if not parts:
        return []
    first = mixed(rotation) % len(parts)
    return [*parts[first:], *parts[:first]]


def mixed(rotation: int) -> int:
    """Return a number that looks like chance, whatever its remainder is taken by."""
    return zlib.crc32(rotation.to_bytes(8, "big"))


def left_to_ask(parts: Iterable[ClaimQueue], answer: Claimed) -> list[ClaimQueue]:
    """Return the parts of a claim whose ranges may have something for it, or have given it some.

    Others are parts of ranges that the node leads which has answered, as a whole. A part of which
    it leads less has to be asked for: its range was split, and another node may lead the rest.

    Args:
        parts: the parts that were not asked yet.
        answer: the answer to another part.
    """
    without = in_order(answer.without)
    return [part for part in parts if part.again or left_of(part.homes, without) is not None]


def in_order(spans: Iterable[HomeSpan]) -> list[HomeSpan]:
    """Return spans of homes in the order of their starts."""
    return sorted(spans, key=_START)


def left_of(homes: HomeSpan, without: Sequence[HomeSpan]) -> HomeSpan | None:
    """Return what is left of a span of homes behind others with nothing; ``None``: nothing is.

    Args:
        homes: the span.
        without: those with nothing, in order.
    """
    start, end = homes
    first = max(bisect_right(without, start, key=_START) - 1, 0)
    for empty, until in islice(without, first, None):
        if empty > start:
            break
        if until is None or (end is not None and until >= end):
            return None
        start = max(start, until)
    return start, end


def at_once(part: ClaimQueue) -> ClaimQueue:
    """Return the claim that does not wait."""
    return msgspec.structs.replace(part, wait=False)


def at_node(request: ClaimQueue) -> ClaimQueue:
    """Return the claim that waits at a node, once for all ranges that it leads."""
    return msgspec.structs.replace(request, at_node=True, again=False)


def answer_of(request: ClaimQueue, part: ClaimQueue, answer: Claimed) -> Claimed:
    """Return the answer of one range to a claim over several.

    Args:
        request: the claim.
        part: the part of it that was answered.
        answer: the answer.
    """
    if request.in_hand is None:
        asked = answer.asked or part.homes  # the part may have been cut again
        return msgspec.structs.replace(answer, asked=asked)
    return Claimed([], [*_over(request.in_hand, part.in_hand or (), answer.over)])


def joined_answers(request: ClaimQueue, answered: Sequence[tuple[Any, Claimed]]) -> Claimed:
    """Return the answer of the ranges that were asked to a claim that does not wait."""
    if asks_one_range(request):
        return answer_of(request, *answered[0])
    if request.in_hand is None:
        return Claimed([message for _, answer in answered for message in answer.messages])
    over = [number for each in answered for number in answer_of(request, *each).over]
    return Claimed([], sorted(over))


def _over(in_hand: Sequence[Attempt], part: Sequence[Attempt], over: Sequence[int]) -> list[int]:
    """Return the indexes among all attempts of those that a range has told by its own indexes."""
    numbers = {each: number for number, each in enumerate(in_hand)}
    return [numbers[part[index]] for index in over if index < len(part)]
