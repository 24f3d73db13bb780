"""Reads of one transaction in ranges with clocks of their own: one snapshot, and nothing missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any, cast

import pytest

from postroom.client.reading import Reads
from postroom.client.sender import Sender
from postroom.errors import TransactionConflict
from postroom.messaging.requests import CheckInbox, Peek, Peeked
from postroom.ranges.requests import Get, GetMany, Pairs, Scan, Value, Values
from postroom.ranges.transactions.requests import Refresh


class TwoRanges:
    """A sender to two ranges, cut at ``m``, each with a clock and versions of its own.

    Attributes:
        clocks: the clocks of the ranges, by id.
        versions: the versions of the keys: timestamps and values, in order.
        inboxes: the messages of the keys: timestamps and ids, in order.
        asked: the requests.
        meanwhile: called before a ``Refresh`` is answered.
    """

    def __init__(self) -> None:
        self.random = Random(1)
        self.clocks = {1: 100, 2: 200}
        self.versions: dict[bytes, list[tuple[int, bytes]]] = {}
        self.inboxes: dict[bytes, list[tuple[int, bytes]]] = {}
        self.asked: list[Any] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def range_of(self, key: bytes) -> int:
        return 1 if key < b"m" else 2

    range_id = range_of

    def put(self, key: bytes, value: bytes) -> None:
        """Commit a value, at the next timestamp of the range."""
        range_id = self.range_of(key)
        self.clocks[range_id] += 1
        self.versions.setdefault(key, []).append((self.clocks[range_id], value))

    def value(self, key: bytes, at: int) -> bytes | None:
        found = [value for when, value in self.versions.get(key, []) if when <= at]
        return found[-1] if found else None

    def deliver(self, key: bytes, id_: bytes) -> None:
        """Deliver a message, at the next timestamp of the range."""
        range_id = self.range_of(key)
        self.clocks[range_id] += 1
        self.inboxes.setdefault(key, []).append((self.clocks[range_id], id_))

    async def now(self) -> int:
        return max(self.clocks.values())

    async def send(self, request: Any, _: float | None = None) -> Any:
        self.asked.append(request)
        if type(request) is Get:
            at = request.timestamp or self.clocks[self.range_of(request.key)]
            return Value(self.value(request.key, at), at)
        if type(request) is GetMany:
            return Values(
                [self.value(key, request.timestamp) for key in request.keys], request.timestamp
            )
        if type(request) is Peek:
            at = request.timestamp or self.clocks[self.range_of(request.key)]
            ids = [id_ for when, id_ in self.inboxes.get(request.key, []) if when <= at]
            return Peeked([(id_, b"") for id_ in ids[: request.messages_max]], False, at)
        if type(request) is Scan:
            at, span = request.timestamp, (request.start, request.end or b"\xff")
            keys = sorted(key for key in self.versions if span[0] <= key < span[1])
            return Pairs([(key, value) for key in keys if (value := self.value(key, at))], None, at)
        assert type(request) is Refresh
        self.meanwhile()
        keys = [key for key in self.versions if self._is_in(key, request)]
        until = request.until or max(
            map(self.clocks.__getitem__, map(self.range_of, keys)), default=0
        )
        every = [when for key in keys for when, _ in self.versions[key]]
        return max((when for when in every if request.after < when <= until), default=0)

    def _is_in(self, key: bytes, request: Refresh) -> bool:
        spans = request.spans
        return key in request.keys or any(a <= key and (b is None or key < b) for a, b in spans)


@pytest.fixture
def ranges() -> TwoRanges:
    ranges = TwoRanges()
    for key in (b"a", b"b", b"z"):
        ranges.put(key, b"old " + key)
    return ranges


def reads(ranges: TwoRanges) -> Reads:
    return Reads(cast(Sender, ranges))


async def values(mine: Reads, *keys: bytes) -> list[bytes | None]:
    return [(await mine.get(key)).value for key in keys]


def test_a_transaction_sees_what_was_acknowledged_before_it_began_by_a_clock_that_is_ahead(
    ranges: TwoRanges,
) -> None:
    assert ranges.clocks[2] > ranges.clocks[1] + 50
    mine = reads(ranges)
    assert asyncio.run(values(mine, b"a", b"z")) == [b"old a", b"old z"]
    assert mine.timestamp == ranges.versions[b"z"][-1][0]


def test_reads_of_one_range_ask_for_no_later_changes(ranges: TwoRanges) -> None:
    asyncio.run(values(reads(ranges), b"a", b"b", b"c"))
    assert {type(each) for each in ranges.asked} == {Get}


def test_the_timestamp_stays_if_nothing_later_is_in_the_other_range(ranges: TwoRanges) -> None:
    ranges.clocks[1] = 1000
    mine = reads(ranges)
    assert asyncio.run(values(mine, b"a", b"z")) == [b"old a", b"old z"]
    assert mine.timestamp == 1000


def test_a_change_of_what_was_read_before_is_a_conflict(ranges: TwoRanges) -> None:
    async def read() -> None:
        mine = reads(ranges)
        await mine.get(b"a")
        ranges.put(b"a", b"new")
        await mine.get(b"z")

    with pytest.raises(TransactionConflict, match="another range"):
        asyncio.run(read())


def test_a_change_of_what_is_read_meanwhile_is_a_conflict(ranges: TwoRanges) -> None:
    """A read is answered at the old timestamp while the others are checked."""

    async def read() -> None:
        mine = reads(ranges)
        await mine.get(b"a")
        ranges.put(b"b", b"new")
        answered = iter([b"", b"b"])  # with the second Refresh

        def answer() -> None:
            if key := next(answered, b""):
                mine.add(key)

        ranges.meanwhile = answer
        await mine.get(b"z")

    with pytest.raises(TransactionConflict, match="another range"):
        asyncio.run(read())


def test_a_scan_sees_what_was_acknowledged_in_the_other_range(ranges: TwoRanges) -> None:
    async def read() -> list[tuple[bytes, bytes]]:
        mine = reads(ranges)
        await mine.get(b"a")
        pages = mine.scan(b"m", None, limit=None, reverse=False)
        return [pair async for page in pages for pair in page.pairs]

    assert asyncio.run(read()) == [(b"z", b"old z")]


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_transaction_that_has_peeked_moves_on_if_the_inbox_is_as_it_was(
    ranges: TwoRanges, is_changed: bool, limit: int
) -> None:
    ranges.deliver(b"a", b"first")

    async def read() -> bytes | None:
        mine = reads(ranges)
        assert await mine.peek(b"a", limit) == [(b"first", b"")]
        if is_changed:
            ranges.inboxes[b"a"].insert(0, (ranges.clocks[1] + 1, b"another"))
        return (await mine.get(b"z")).value

    if is_changed:
        with pytest.raises(TransactionConflict):
            asyncio.run(read())
    else:
        assert asyncio.run(read()) == b"old z"


def test_a_transaction_that_has_found_an_inbox_empty_moves_on(ranges: TwoRanges) -> None:
    """Its commit checks whether the inbox is empty."""

    async def read() -> list[Any]:
        mine = reads(ranges)
        await mine.get(b"a")
        mine.found_drained(b"a", 0)
        await mine.get(b"z")
        assert mine.timestamp > 200
        return mine.checks(writes=False)

    assert asyncio.run(read()) == [CheckInbox(b"a", 0, ())]


def test_a_peek_sees_what_was_delivered_by_a_clock_that_is_ahead(ranges: TwoRanges) -> None:
    ranges.deliver(b"z", b"first")

    async def read() -> list[tuple[bytes, bytes]]:
        mine = reads(ranges)
        await mine.get(b"a")
        return await mine.peek(b"z", 5)

    assert asyncio.run(read()) == [(b"first", b"")]


def checked_keys(ranges: TwoRanges) -> int:
    """Return how many keys have been checked for changes up to a timestamp."""
    return sum(len(each.keys) for each in ranges.asked if type(each) is Refresh and each.until)


def test_a_read_is_checked_twice_at_most(ranges: TwoRanges) -> None:
    names = [b"a/%04d" % number for number in range(500)]
    hot = [b"z/%02d" % number for number in range(50)]
    for key in (*names, *hot):
        ranges.put(key, b"")

    async def read() -> None:
        mine = reads(ranges)
        for number, key in enumerate(names):
            await mine.get(key)
            if number % 10 == 9:
                ranges.put(hot[number // 10], b"new")
                await mine.get(hot[number // 10])

    asyncio.run(read())
    assert checked_keys(ranges) <= 2 * (len(names) + len(hot))


def test_a_second_move_is_above_all_clocks(ranges: TwoRanges) -> None:
    async def read() -> None:
        mine = reads(ranges)
        await mine.get(b"a")
        for key in (b"y", b"z"):
            ranges.put(key, b"new")
            await mine.get(key)
        assert mine.timestamp == ranges.clocks[2]
        asked = len(ranges.asked)
        ranges.put(b"x", b"acknowledged later")
        assert (await mine.get(b"x")).value is None
        assert len(ranges.asked) == asked + 1

    asyncio.run(read())


def test_values_of_both_ranges_are_read_above_all_clocks(ranges: TwoRanges) -> None:
    mine = reads(ranges)
    found = asyncio.run(mine.get_many([b"z", b"a", b"none"]))
    assert found.values == [b"old z", b"old a", None]
    assert mine.timestamp == ranges.clocks[2]
    assert Refresh not in set(map(type, ranges.asked))


def test_values_of_another_range_are_read_where_nothing_is_later(ranges: TwoRanges) -> None:
    async def read() -> list[bytes | None]:
        mine = reads(ranges)
        await mine.get(b"a")
        found = await mine.get_many([b"b", b"z", b"y"])
        assert mine.keys == [b"a", b"b", b"z", b"y"]
        return found.values

    assert asyncio.run(read()) == [b"old b", b"old z", None]


def test_a_scan_of_another_range_goes_through_its_span_once(ranges: TwoRanges) -> None:
    async def read(start: bytes, end: bytes | None) -> Reads:
        mine = reads(ranges)
        await mine.get(b"a")
        async for _ in mine.scan(start, end, limit=None, reverse=False):
            pass
        return mine

    for span in ((b"m", None), (b"b", None), (b"b", b"n")):
        ranges.asked.clear()
        mine = asyncio.run(read(*span))
        assert mine.timestamp == ranges.clocks[2]
        (check,) = [each for each in ranges.asked if type(each) is Refresh]
        assert (check.keys, check.spans) == ([b"a"], [])
    ranges.asked.clear()
    assert asyncio.run(read(b"a", b"b\xff")).timestamp == ranges.clocks[1]
    assert Refresh not in set(map(type, ranges.asked))


def test_reads_at_one_time_are_one_snapshot(ranges: TwoRanges) -> None:
    async def read() -> list[Value]:
        mine = reads(ranges)
        return list(await asyncio.gather(*(mine.get(key) for key in (b"a", b"z", b"b"))))

    assert [each.value for each in asyncio.run(read())] == [b"old a", b"old z", b"old b"]
