"""The ranges of an embedded store: what a request does that concerns keys of several.

Its node finds the range of each request by itself, and has no leaders elsewhere. A request comes
back only if its keys are of several ranges, or if their range was split while it waited. It is cut
then, or sent again, or refused, as a client of a cluster does it::

    send ─▶ WrongRange, with the ranges of now ─┬─ it can be cut ──▶ its parts, one after the other
                                                ├─ one range ──────▶ send again
                                                └─ several ────────▶ Invalid

A range may have to learn of a new queue yet. If the root knows it, the request is sent again after
a moment.

A store of one range comes here never.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from postroom.client.routing.changes import asked_until, awaits_change, nothing_new
from postroom.client.routing.claims import (
    answer_of,
    at_node,
    at_once,
    is_claim_that_waits,
    left_to_ask,
    turned,
)
from postroom.client.routing.lanes import several_ranges
from postroom.client.routing.merges import (
    AT_ONCE,
    AnsweredPart,
    cut,
    following,
    is_divisible,
    merged,
    merged_so_far,
    shared,
)
from postroom.client.routing.range_cache import RangeCache
from postroom.client.routing.spreading import is_of_present
from postroom.client.sender import Sender, present
from postroom.errors import Error, NoSuchQueue
from postroom.limits import (
    LEARNING_PAUSE_SECONDS_MAX,
    LEARNING_TRIES_MAX,
    SPLITS_DURING_CALL_MAX,
)
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue
from postroom.messaging.queues.learning import HasToLearn
from postroom.messaging.queues.queries import ReadQueues
from postroom.ranges.bounds import WrongRange, no_such_range
from postroom.ranges.calls import Call
from postroom.ranges.contract import KeySet, RangeIds, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import ScanChanges

CAME_BACK: Final = (WrongRange, NoSuchQueue, HasToLearn)
"""The errors with which a request comes back, to be sent again."""
LEARNING_SECONDS_FIRST: Final = 0.001
"""The first pause before a request is sent again to a range that has to learn, in seconds."""


class ForRange(msgspec.Struct, frozen=True, gc=False):
    """A request for a range that is told by its id, from an embedded store to its node."""

    range_id: int
    request: Any


class CameBack(Protocol):
    """The parts of an answer of an embedded store that concern a request which came back."""

    request: Any
    timeout_seconds: float | None
    sent_again: int


async def send_returned(sender: LocalSender, answer: CameBack, error: BaseException) -> Any:
    """Return the answer to a request that came back with one of these errors (``CAME_BACK``).

    Raises:
        Error: see :func:`send_to_ranges`; or there is no such queue.
    """
    try:
        if isinstance(error, WrongRange):
            return await send_to_ranges(sender, answer, error)
        tries = getattr(answer, "sent_again", 0) + 1
        if type(answer.request) is ReadQueues or tries > LEARNING_TRIES_MAX:
            raise error
        if isinstance(error, NoSuchQueue):
            await sender.send(ReadQueues(error.queue))  # the root tells if there is none
        await sender.sleep(min(LEARNING_SECONDS_FIRST * 2.0**tries, LEARNING_PAUSE_SECONDS_MAX))
        again: Any = sender.send(answer.request, answer.timeout_seconds)
        again.sent_again = tries
        return await again
    finally:
        del answer, error  # the traceback of an error would keep them, and they the error


async def send_to_ranges(sender: LocalSender, answer: CameBack, wrong: WrongRange) -> Any:
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
    if is_divisible(request):
        if is_of_present(request):
            now = await present(sender)
            request = msgspec.structs.replace(request, **{request.read_at: now})
        parts = _parts(request, cache, sender.random.getrandbits(32))
        if parts and is_claim_that_waits(request):
            wait = _claimed if request.in_hand is None else _first_over
            return await wait(sender, request, parts, seconds)
        if parts and awaits_change(request):
            end = sender.monotonic() + (seconds or 0.0)
            first = await sender.send_to_any(request, parts, seconds)
            left = None if seconds is None else max(end - sender.monotonic(), 0.0)
            return await sender.send(asked_until(request, first.until), left)
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


def _parts(request: Any, cache: RangeCache, rotation: int) -> list[Any]:
    """Return the requests that a request is cut into; none, if it concerns one range."""
    concern = request.concerns()
    if concern is Scope.WHOLE_STORE:
        asked = shared(request, len(cache))
        return [ForRange(each.range_id, asked) for each in cache] if len(cache) > 1 else []
    return cut(request, concern, cache, rotation) if cache.are_several(concern) else []


async def _claimed(
    sender: LocalSender, request: Any, parts: list[ClaimQueue], seconds: float | None
) -> Claimed:
    """Return the first messages of any range for a claim that waits (:mod:`.claims`)."""
    end = sender.monotonic() + (seconds or 0.0)
    parts = turned(parts, sender.random.getrandbits(32))
    while parts:
        part = parts.pop(0)
        found: Claimed = await sender.send(at_once(part))
        if found.messages:
            return answer_of(request, part, found)
        parts = left_to_ask(parts, found)
    left = None if seconds is None else max(end - sender.monotonic(), 0.0)
    first: Claimed = await sender.send(at_node(request), left)
    return first


async def _first_over(
    sender: LocalSender, request: Any, parts: list[ClaimQueue], seconds: float | None
) -> Claimed:
    """Return which attempts of a consumer without credit are over, once one of them is."""
    end, left = sender.monotonic() + (seconds or 0.0), seconds
    while True:
        first: Claimed | None = await sender.send_to_any(request, parts, left)
        if first is not None:
            return first
        parts = cut(request, request.concerns(), await _known_ranges(sender))
        left = None if seconds is None else max(end - sender.monotonic(), 0.0)


async def _known_ranges(sender: Sender) -> RangeCache:
    """Return the ranges of now."""
    cache = RangeCache()
    ranges: list[RangeInfo] = await sender.send(ListRanges(b"", None))
    told = [RangeDescriptor(each.id, each.start, each.end, each.generation) for each in ranges]
    cache.learn(told, teller=0)
    return cache


async def _answer_of(sender: Sender, request: Any, parts: list[Any], seconds: float | None) -> Any:
    """Return the answer that is made of the answers to the parts of a request."""
    if type(request) in AT_ONCE:
        return merged(request, await _at_once(sender, parts, seconds))
    end = sender.monotonic() + (seconds or 0.0)
    answered = list[AnsweredPart]()
    for part in parts:
        left = None if seconds is None else max(end - sender.monotonic(), 0.0)
        asked = following(part, answered)
        answered.append(AnsweredPart(asked, await sender.send(asked, left)))
        answered = merged_so_far(answered)
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


class LocalSender(Sender, Protocol):
    """The sender of an embedded store."""

    def send_to_any(
        self, request: Any, narrowed: list[Any], timeout_seconds: float | None
    ) -> Awaitable[Any]:
        """Return an awaitable of the first answer to one of the parts of a request."""


class AnyPart(Call):
    """A part of a request that the first answer to one of them answers.

    Args:
        whole: the answer to the request.
        part: the part.
    """

    __slots__ = ("_whole",)

    def __init__(self, whole: Any, part: Any) -> None:
        super().__init__(part)
        self._whole = whole

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Answer the request, and withdraw the other parts."""
        whole, part, parts = self._whole, self.request, self._whole.taken_by
        if parts.is_over:
            return
        if isinstance(error, WrongRange):  # its range was split: all begin anew
            is_watch, error = type(part) is ScanChanges, None
            result = nothing_new(part) if is_watch else None
        elif type(result) is Claimed:
            result = answer_of(whole.request, part, result)
        parts.is_over = True
        whole.complete(result, error)
        parts.withdraw(self)


class AnyParts:
    """The parts of a request, which the first of them answers.

    Args:
        submit: submits a request to the store.
        cancel: withdraws one.

    Attributes:
        is_over: whether one of them has answered, or no caller waits any more.
    """

    def __init__(self, submit: Callable[[Call], None], cancel: Callable[[Call], bool]) -> None:
        self._submit = submit
        self._cancel = cancel
        self._submitted: list[AnyPart] = []
        self.is_over = False

    def ask(self, whole: Any, parts: list[Any]) -> None:
        """Submit the parts until one is answered."""
        whole.taken_by = self
        for part in parts:
            if not self.is_over:
                self._submitted.append(AnyPart(whole, part))
                self._submit(self._submitted[-1])

    def cancel(self, _: Any) -> bool:
        """Withdraw all parts."""
        self.is_over = True
        self.withdraw(None)
        return True

    def withdraw(self, answered: AnyPart | None) -> None:
        """Withdraw all parts but the one that is answered."""
        submitted, self._submitted = self._submitted, []
        for part in submitted:
            if part is not answered:
                self._cancel(part)
