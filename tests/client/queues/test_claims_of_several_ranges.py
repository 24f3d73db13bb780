"""A client that claims from a store of several ranges goes through all of them, once."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.client.queues.claims import claim, claim_all, not_asked
from postroom.client.queues.placing import (
    ARRIVAL_SECONDS,
    at_homes,
    home_of_message,
    homes,
    in_ranges,
)
from postroom.client.routing.claims import in_order, left_of
from postroom.errors import Unavailable
from postroom.messaging.queues.claim_requests import (
    Claimed,
    ClaimQueue,
    ClaimSelection,
    HomeSpan,
    StoredQueueMessage,
)
from postroom.messaging.queues.queries import FindHomes, FoundHome
from postroom.messaging.queues.requests import Attempt, RejectMessages
from tests.client.queues.fakes import FakeSender, stored

BATCH = 3


class RangesSender(FakeSender):
    """A sender to a store of several ranges that have messages.

    Args:
        cuts: the first keys of the ranges from the second one on.
        ready: how many messages each range has.
        first: the range that is asked first.

    Attributes:
        tells: whether a range with nothing tells which others have nothing either.
    """

    def __init__(self, cuts: list[bytes], ready: list[int], first: int) -> None:
        super().__init__()
        starts = [b"", *cuts]
        self.spans: list[HomeSpan] = [*zip(starts, [*cuts, None], strict=True)]
        self.ready = dict(zip(self.spans, ready, strict=True))
        self.first = first
        self.fails_after = -1
        self.tells = False

    def send(self, request: Any, timeout_seconds: float | None = None) -> Any:
        if type(request) is ClaimQueue:
            self.fails_after -= 1
            failed = self.fails_after == -1
            self.answers.append(Unavailable("no") if failed else self.claimed(request))
        return super().send(request, timeout_seconds)

    def claimed(self, request: ClaimQueue) -> Claimed:
        """Return the answer of the first range that the claim concerns."""
        start, end = request.homes
        span = self.spans[self.first]
        if request.homes != (b"", None):
            span = next(each for each in self.spans if each[1] is None or each[1] > start)
        piece = max(span[0], start), span[1] if end is None else min(span[1] or end, end)
        number = min(self.ready[span], request.messages_max, BATCH)
        self.ready[span] -= number
        empty = [each for each, ready in self.ready.items() if not ready]
        without = empty if self.tells and not number else []
        return Claimed([stored(span[0].decode())] * number, asked=piece, without=without)

    @property
    def are_several(self) -> bool:
        return len(self.spans) > 1

    def range_id(self, key: bytes) -> int:
        return 1 + max(at for at, (start, _) in enumerate(self.spans) if start <= key)


def wanting(most: int, **said: Any) -> ClaimQueue:
    return ClaimQueue("q", bytes(16), most, ClaimSelection(), **said)


async def batch_size() -> int:
    return BATCH


@given(
    ready=st.lists(st.integers(0, 2 * BATCH), min_size=1, max_size=5),
    first=st.integers(0, 4),
    most=st.integers(1, 25),
)
def test_a_claim_that_does_not_wait_gets_all_that_is_ready_in_any_range(
    ready: list[int], first: int, most: int
) -> None:
    cuts = [b"%c" % letter for letter in b"fmtx"[: len(ready) - 1]]
    sender = RangesSender(cuts, ready, min(first, len(ready) - 1))
    found = sender.run(claim_all(sender, wanting(most), 0.0, batch_size))
    assert len(found) == min(most, sum(ready))
    assert len(sender.asked) <= len(ready) + sum(ready)
    assert len(sender.asked) <= 2 * len(ready) + len(found) // BATCH + 1


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 7))
def test_a_claim_passes_over_ranges_that_are_told_to_have_nothing(
    ready: list[int], first: int
) -> None:
    cuts = [b"%c" % letter for letter in b"fhjmtxz"[: len(ready) - 1]]
    sender = RangesSender(cuts, ready, min(first, len(ready) - 1))
    sender.tells = True
    found = sender.run(claim_all(sender, wanting(25), 0.0, batch_size))
    assert len(found) == sum(ready)
    with_any = len([each for each in ready if each])
    assert len(sender.asked) <= 2 * with_any + 1


STARTS = [b"%c" % letter for letter in b"abcdefgh"]


@given(st.integers(0, 7), st.integers(1, 8), st.permutations(range(8)), st.integers(0, 8))
def test_ranges_with_nothing_are_passed_over_at_the_begin_of_a_span(
    first: int, number: int, numbers: list[int], empty: int
) -> None:
    spans: list[HomeSpan] = [*zip(STARTS, [*STARTS[1:], None], strict=True)]
    asked = spans[first:][:number]
    without = [spans[each] for each in numbers[:empty]]
    left = [each for each in asked if each not in without]
    expected = (left[0][0], asked[-1][1]) if left else None
    assert left_of((asked[0][0], asked[-1][1]), in_order(without)) == expected


@given(st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=6), st.integers(0, 6))
def test_a_round_asks_each_span_once(cuts: list[bytes], first: int) -> None:
    cuts = sorted(cuts)
    spans: list[HomeSpan] = [*zip([b"", *cuts], [*cuts, None], strict=True)]
    begun = asked = spans[first % len(spans)]
    told = [asked]
    while (homes := not_asked(begun, asked)) is not None:
        asked = next(each for each in spans if each[0] == homes[0])
        told.append(asked)
    assert sorted(told) == spans


def test_the_first_messages_of_any_range_are_enough_for_a_consumer() -> None:
    sender = RangesSender([b"f", b"m", b"t"], [0, 2, 5, 0], 3)
    found = sender.run(claim(sender, wanting(5), None))
    assert len(found) == 2
    assert [each.homes[0] for each in sender.asked] == [b"", b"", b"f"]


def test_messages_that_have_come_are_told_though_another_range_fails() -> None:
    sender = RangesSender([b"f", b"m"], [1, 1, 1], 0)
    sender.fails_after = 2
    assert len(sender.run(claim_all(sender, wanting(5), 0.0, batch_size))) == 2


def test_a_cancelled_claim_gives_back_the_messages_of_each_range() -> None:
    sender = RangesSender([b"f", b"m"], [1, 1, 1], 0)

    async def cancelled() -> int:
        raise KeyboardInterrupt

    calls = iter([batch_size, batch_size, cancelled])

    async def size() -> int:
        return await next(calls)()

    with pytest.raises(KeyboardInterrupt):
        sender.run(claim_all(sender, wanting(5), 0.0, size))
    back = [each for (each,) in filter(lambda one: isinstance(one, list), sender.asked)]
    assert [type(each) for each in back] == [RejectMessages] * 3
    assert [len(each.attempts) for each in back] == [1, 1, 1]


def test_messages_are_grouped_by_the_ranges_of_their_homes() -> None:
    sender = RangesSender([b"f", b"m"], [0, 0, 0], 0)
    messages: list[StoredQueueMessage] = [stored(name) for name in "azbyg"]
    Random(1).shuffle(messages)
    grouped = in_ranges(sender, messages, home_of_message)
    ids = [sorted(each.id for each in together) for together in grouped]
    assert sorted(ids) == [[b"a", b"b"], [b"g"], [b"y", b"z"]]


def ask_homes(found: list[FoundHome], attempts: list[Attempt], cuts: list[bytes]) -> Any:
    sender = RangesSender(cuts, [0] * (len(cuts) + 1), 0)
    if cuts:
        on_way = [each for each in found if (each.home < b"m") != (each.id < b"m")]
        sender.answers.extend([found, on_way[1:], on_way[:1]])
    coroutine: Coroutine[Any, Any, list[Attempt]] = at_homes(sender, "q", attempts)
    return sender.run(coroutine), sender.asked, sender.seconds


def test_ids_are_replaced_by_the_homes_of_their_messages() -> None:
    attempts = [
        Attempt(b"", "", b"any", by_id=True),
        Attempt(b"", "", b"plain", by_id=True, of_kind=True),
        Attempt(b"", "k", b"none", by_id=True),
        Attempt(b"h", "k", b"held", 3, fired_at=7),
    ]
    found = [
        FoundHome(b"g", "k", b"any"), FoundHome(b"z", "l", b"any"),
        FoundHome(b"g", "k", b"plain"), FoundHome(b"y", "", b"plain"),
    ]  # fmt: skip
    placed, asked, _ = ask_homes(found, attempts, [b"m"])
    assert asked == [
        FindHomes("q", [b"any", b"plain", b"none"]),
        FindHomes("q", [], found=(found[1], found[2])),
        FindHomes("q", [], found=(found[1],)),
    ]
    assert placed == [
        Attempt(b"g", "k", b"any"), Attempt(b"z", "l", b"any"), Attempt(b"y", "", b"plain"),
        attempts[2], attempts[3],
    ]  # fmt: skip


def test_homes_are_not_asked_for_in_a_store_of_one_range() -> None:
    attempts = [Attempt(b"", "", b"any", by_id=True)]
    assert ask_homes([], attempts, []) == (attempts, [], 0.0)


def test_a_message_that_never_arrives_is_not_waited_for_for_ever() -> None:
    sender = RangesSender([b"m"], [0, 0], 0)
    found = [FoundHome(b"z", "", b"1")]
    sender.answers.extend([found, *[[]] * 1000])
    assert sender.run(homes(sender, "q", [b"1"])) == found
    assert ARRIVAL_SECONDS < sender.seconds < ARRIVAL_SECONDS + 1.0
