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
from postroom.ranges.requests import Get, Pairs, Scan, Value
from postroom.ranges.transactions.requests import Refresh


class TwoRanges:
    """A sender to two ranges, cut at ``m``, each with a clock and versions of its own.

    Attributes:
        clocks: the clocks of the ranges, by id.
        versions: the versions of the keys: timestamps and values, in order.
        asked: the requests.
        meanwhile: called before a ``Refresh`` is answered.
    """

    def __init__(self) -> None:
        self.random = Random(1)
        self.clocks = {1: 100, 2: 200}
        self.versions: dict[bytes, list[tuple[int, bytes]]] = {}
        self.asked: list[Any] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def range_of(self, key: bytes) -> int:
        return 1 if key < b"m" else 2

    def put(self, key: bytes, value: bytes) -> None:
        """Commit a value, at the next timestamp of the range."""
        range_id = self.range_of(key)
        self.clocks[range_id] += 1
        self.versions.setdefault(key, []).append((self.clocks[range_id], value))

    def value(self, key: bytes, at: int) -> bytes | None:
        found = [value for when, value in self.versions.get(key, []) if when <= at]
        return found[-1] if found else None

    async def now(self) -> int:
        return max(self.clocks.values())

    async def send(self, request: Any, _: float | None = None) -> Any:
        self.asked.append(request)
        if type(request) is Get:
            at = request.timestamp or self.clocks[self.range_of(request.key)]
            return Value(self.value(request.key, at), at)
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


def test_a_transaction_that_has_peeked_does_not_move_on(ranges: TwoRanges) -> None:
    async def read() -> None:
        mine = reads(ranges)
        await mine.get(b"a")
        mine.found_drained(b"a", 0)
        await mine.get(b"z")

    with pytest.raises(TransactionConflict):
        asyncio.run(read())


def test_reads_at_one_time_are_one_snapshot(ranges: TwoRanges) -> None:
    async def read() -> list[Value]:
        mine = reads(ranges)
        return list(await asyncio.gather(*(mine.get(key) for key in (b"a", b"z", b"b"))))

    assert [each.value for each in asyncio.run(read())] == [b"old a", b"old z", b"old b"]
