"""The answers of several ranges about a queue are what one range would say."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom.client.routing.merges import AnsweredPart, merged, shared
from postroom.client.routing.queue_merges import PART_MESSAGES_MIN, joined_pages, summed_stats
from postroom.messaging.queues.queries import (
    HeldMessage,
    ListQueueMessages,
    QueuePage,
    QueueStats,
    ReadQueueStats,
    ReadResult,
    ToldResult,
)
from tests.client.queues.fakes import stored
from tests.client.routing.test_many_ranges import asked_at, three
from tests.remote.scripted_nodes import only

TOKENS = st.lists(st.binary(max_size=2), max_size=12, unique=True).map(sorted)


def page_of(tokens: list[bytes], after: bytes, most: int) -> QueuePage:
    """Return the page of a range that has messages with these tokens."""
    rest = [token for token in tokens if token > after or not after]
    told = rest[:most]
    messages = [stored(token.hex() or "-") for token in told]
    return QueuePage(messages, told[-1] if len(rest) > most else b"", told)


@given(st.lists(TOKENS, min_size=1, max_size=4), st.integers(1, 5))
def test_pages_of_several_ranges_tell_each_message_once_in_one_order(
    ranges: list[list[bytes]], most: int
) -> None:
    told, after = list[bytes](), b""
    ranges = [[token for token in tokens if token] for tokens in ranges]
    while True:
        page = joined_pages([page_of(tokens, after, most) for tokens in ranges])
        assert len(page.messages) == len(page.tokens)
        told += page.tokens
        if not page.next:
            break
        assert page.next > after
        after = page.next
    assert told == sorted(itertools.chain(*ranges))


def test_each_range_is_asked_for_a_share_of_a_page() -> None:
    request = ListQueueMessages("q", messages_max=1000, bytes_max=3000)
    assert shared(request, 3) == ListQueueMessages(
        "q", messages_max=333, bytes_max=1000, with_tokens=True
    )
    assert shared(request, 10_000).messages_max == PART_MESSAGES_MIN
    assert shared(request, 10_000).bytes_max == 1
    assert shared(ListQueueMessages("q", messages_max=7), 3).messages_max == 7


def stats(**said: Any) -> QueueStats:
    return QueueStats(**said)


def test_numbers_of_messages_are_added_up_and_the_worst_of_the_rest_counts() -> None:
    held = [HeldMessage(name, "", "c", 1, seconds) for name, seconds in (("a", 1.0), ("b", 9.0))]
    every = [
        stats(ready=1, fired=5, retried=1, results=2, consumers=4, oldest=70, lateness_p50=0.5,
              oldest_age=3.0, longest_held=held[0], failures=1, trouble="range 1"),
        stats(ready=10, fired=7, consumers=3, lateness_p99=0.7, failures=5, longest_held=held[1]),
        stats(scheduled=3, oldest=50, lateness_p50=0.1, oldest_age=5.0, failures=2,
              trouble="range 3"),
    ]  # fmt: skip
    assert summed_stats(every) == stats(
        ready=11, scheduled=3, fired=12, retried=1, results=2, consumers=4, oldest=50,
        lateness_p50=0.5, lateness_p99=0.7, oldest_age=5.0, longest_held=held[1], failures=8,
        trouble="range 3",
    )  # fmt: skip
    assert summed_stats([stats(), stats()]) == stats()


def test_statistics_are_asked_of_all_ranges() -> None:
    world = three()
    call = world.ask(ReadQueueStats("q"))
    for ready, address in enumerate(("a:1", "b:1", "c:1")):
        assert asked_at(world, address) == [ReadQueueStats("q")]
        stream = world.to(address)
        stream.answer(only(stream.requests), stats(ready=10**ready))
    assert call.result.ready == 111


def test_a_result_is_told_by_the_range_that_knows_it() -> None:
    unknown, told = ToldResult("unknown"), ToldResult("returned", b"7")
    request = ReadResult("q", b"i", everywhere=True)
    for answers in ([told, unknown], [unknown, told], [unknown, told, unknown]):
        assert merged(request, [AnsweredPart(request, each) for each in answers]) == told
    assert merged(request, [AnsweredPart(request, unknown)] * 2) == unknown


def test_a_message_that_is_there_or_the_newest_result_is_told_of_several() -> None:
    pending = ToldResult("pending")
    old, new = (ToldResult("returned", b"7", seq=bytes([number])) for number in (1, 2))
    request = ReadResult("q", b"i", everywhere=True)
    for several, told in (((old, new), new), ((old, pending, new), pending)):
        for answers in itertools.permutations(several):
            assert merged(request, [AnsweredPart(request, each) for each in answers]) == told
