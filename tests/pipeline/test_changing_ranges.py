"""A stream goes on over splits and merges: a store that says that its ranges change, step by step.

A store has one range today. Its words about its ranges are scripted here; the changes are real.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from postroom.client.bulk import Partition
from postroom.pipeline import connections
from postroom.pipeline.change_stream import ChangeReader, StepPart
from postroom.pipeline.filters import Span
from tests.client.stores import Store
from tests.pipeline.readers import batches
from tests.pipeline.test_change_stream import SCHEMA, Offset, logged, reader

LETTERS = "abcdefghijklmnop"


class ManyRanges:
    """A database that says that it has many ranges, which split and merge.

    A split leaves its id to the left half, and a merge the left one's to both, as in a store of
    many ranges. The later owner of a key has the higher generation.
    """

    def __init__(self, db: Any) -> None:
        self._db = db
        self._ranges: list[tuple[bytes, int, int]] = [(b"", 1, 1)]  # start, id, generation
        self._next_id = 2
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def split(self, key: bytes) -> None:
        starts = [start for start, _, _ in self._ranges]
        if key in starts:
            return
        index = sum(start < key for start in starts) - 1
        start, id_, generation = self._ranges[index]
        self._ranges[index : index + 1] = [
            (start, id_, generation + 1), (key, self._next_id, generation + 1),
        ]  # fmt: skip
        self._next_id += 1
        self.changes += 1

    def merge(self, index: int) -> None:
        if index + 1 < len(self._ranges):
            (start, id_, one), (_, _, other) = self._ranges[index : index + 2]
            self._ranges[index : index + 2] = [(start, id_, max(one, other) + 1)]
            self.changes += 1

    def change(self, random: Random) -> None:
        if random.random() < 0.5:
            self.split(random.choice(LETTERS).encode())
        else:
            self.merge(random.randrange(len(self._ranges)))

    def partitions(
        self, start: bytes = b"", end: bytes | None = None, *, part_bytes: int = 0
    ) -> list[Partition]:
        (real,) = self._db.partitions(part_bytes=1 << 60)
        ends = [each[0] for each in self._ranges[1:]] + [None]
        return [
            Partition(max(start, first), last, id_, generation, 0, real.readable_from)
            for (first, id_, generation), last in zip(self._ranges, ends, strict=True)
            if last is None or start < last
        ]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def ranges(store: Store, monkeypatch: pytest.MonkeyPatch) -> ManyRanges:
    made = ManyRanges(store.db)
    monkeypatch.setattr(connections, "database", lambda _: made)
    return made


def planned(of: ChangeReader, start: Offset, end: Offset) -> list[Any]:
    steps = []
    for part in of.partitions(logged(start), logged(end)):
        assert isinstance(part, StepPart)
        steps.append(part.value)
    return steps


def read(of: ChangeReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    found = []
    for part in of.partitions(logged(start), logged(end)):
        assert isinstance(part, StepPart)
        step = part.value
        of_task = list(batches(of.read(part), SCHEMA))
        for row in of_task:
            assert within(row["key"], step.span)
            assert step.after < row["timestamp"] <= step.until
            assert row["range"] == step.range_id
        found += of_task
    return found


def within(key: bytes, span: Span) -> bool:
    return span[0] <= key and (span[1] is None or key < span[1])


def test_a_split_and_a_merge_between_two_offsets(store: Store, ranges: ManyRanges) -> None:
    of = reader()
    first = of.initialOffset()
    for letter in "adgz":
        store.db.put(letter.encode(), b"1")
    store.advance(1.0)
    ranges.split(b"f")
    ranges.split(b"d")
    second = of.latestOffset(first, ReadAllAvailable())
    steps = planned(of, first, second)
    spans = [(each.range_id, each.generation, each.span) for each in steps]
    assert spans == [(1, 3, (b"", b"d")), (3, 3, (b"d", b"f")), (2, 2, (b"f", None))]
    assert [row["key"] for row in read(of, first, second)] == [b"a", b"d", b"g", b"z"]
    for letter in "adgz":
        store.db.put(letter.encode(), b"2")
    store.advance(1.0)
    ranges.merge(1)
    third = of.latestOffset(second, ReadAllAvailable())
    assert [(each.range_id, each.generation, each.span) for each in planned(of, second, third)] == [
        (1, 3, (b"", b"d")), (3, 4, (b"d", b"f")), (3, 4, (b"f", None)),
    ]  # fmt: skip
    found = read(of, second, third)
    assert [(row["key"], row["value"]) for row in found] == [
        (letter.encode(), b"2") for letter in "adgz"
    ]


def test_a_batch_is_planned_from_its_offsets_whatever_the_ranges_are_by_then(
    store: Store, ranges: ManyRanges
) -> None:
    of = reader()
    start = of.initialOffset()
    ranges.split(b"g")
    store.db.put(b"a", b"1")
    store.advance(1.0)
    end = of.latestOffset(start, ReadAllAvailable())
    before = planned(of, start, end)
    ranges.merge(0)
    ranges.split(b"c")
    assert planned(of, start, end) == before
    assert planned(reader(), start, end) == before  # after a restart, too
    assert [row["key"] for row in read(reader(), start, end)] == [b"a"]


@pytest.mark.parametrize("seed", range(15))
def test_each_change_is_read_once_while_ranges_change_at_any_moment(
    store: Store, ranges: ManyRanges, seed: int
) -> None:
    """Offsets, plans and tasks are each made by a process of their own as often as not."""
    random = Random(seed)
    limit: ReadLimit = random.choice([ReadAllAvailable(), ReadMaxRows(5)])
    of = reader()
    offset = of.initialOffset()
    written: list[tuple[bytes, bytes]] = []
    seen: list[tuple[bytes, bytes]] = []
    for step in range(25):
        for number in range(random.randrange(4)):
            pair = random.choice(LETTERS).encode(), b"%d %d" % (step, number)
            store.db.put(*pair)
            written.append(pair)
        store.advance(random.choice([0.01, 1.0]))
        for _ in range(random.randrange(4)):
            ranges.change(random)
        of = random.choice([of, reader()])
        end = of.latestOffset(offset, limit)
        ranges.change(random)
        of = random.choice([of, reader()])
        found = read(of, offset, end)
        if random.random() < 0.3:  # it was not written to the end: the same again
            ranges.change(random)
            assert read(reader(), offset, end) == found
        seen += [(row["key"], row["value"]) for row in found]
        offset = logged(end)
    while (end := of.latestOffset(offset, limit)) != offset:
        seen += [(row["key"], row["value"]) for row in read(of, offset, end)]
        offset = logged(end)
    assert sorted(seen) == sorted(written)
    for letter in LETTERS:  # each key in the order of its changes
        key = letter.encode()
        assert [v for k, v in seen if k == key] == [v for k, v in written if k == key]
    assert ranges.changes > 20
