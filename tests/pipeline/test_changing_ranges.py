"""A stream goes on over splits, which come at any moment: between offset, plan and tasks."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from postroom.pipeline import change_stream, connections
from postroom.pipeline.change_stream import ChangeReader, StepPart
from postroom.pipeline.filters import holds
from postroom.ranges import feed
from tests.client.stores import Store
from tests.pipeline.readers import batches
from tests.pipeline.test_change_stream import SCHEMA, Offset, logged, reader, rows

LETTERS = "abcdefghijklmnop"
ALL = ReadAllAvailable()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(connections, "database", lambda _: made.db)
    return made


def split(store: Store, *letters: str) -> None:
    starts = {each.start for each in store.db.ranges()}
    for letter in letters:
        if letter.encode() not in starts:
            store.db.split(letter.encode())


def put(store: Store, letters: str, value: bytes) -> None:
    for letter in letters:
        store.db.put(letter.encode(), value)
    store.advance(1.0)


def planned(of: ChangeReader, start: Offset, end: Offset) -> list[Any]:
    steps = []
    for part in of.partitions(logged(start), logged(end)):
        assert isinstance(part, StepPart)
        steps += part.value
    return steps


def read(of: ChangeReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    """Return the rows of all tasks; each has those of its own steps."""
    found = []
    for part in of.partitions(logged(start), logged(end)):
        assert isinstance(part, StepPart)
        for row in batches(of.read(part), SCHEMA):
            (step,) = (each for each in part.value if holds(each.span, row["key"]))
            assert step.after < row["timestamp"] <= step.until
            assert row["range"] == step.range_id
            found.append(row)
    return found


def test_a_batch_has_a_part_for_each_range_of_its_end(store: Store) -> None:
    of = reader()
    first = of.initialOffset()
    put(store, "adgz", b"1")
    split(store, "f", "d")
    second = of.latestOffset(first, ALL)
    steps = planned(of, first, second)
    spans = [(each.range_id, each.generation, each.span) for each in steps]
    assert spans == [(1, 3, (b"", b"d")), (3, 3, (b"d", b"f")), (2, 2, (b"f", None))]
    assert [row["key"] for row in read(of, first, second)] == [b"a", b"d", b"g", b"z"]
    put(store, "adgz", b"2")
    split(store, "m")
    third = of.latestOffset(second, ALL)
    assert [each.span for each in planned(of, second, third)] == [
        (b"", b"d"), (b"d", b"f"), (b"f", b"m"), (b"m", None),
    ]  # fmt: skip
    found = read(of, second, third)
    assert [(row["key"], row["value"]) for row in found] == [
        (letter.encode(), b"2") for letter in "adgz"
    ]


def test_a_batch_is_planned_from_its_offsets_whatever_the_ranges_are_by_then(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    split(store, "g")
    put(store, "a", b"1")
    end = of.latestOffset(start, ALL)
    before = planned(of, start, end)
    split(store, "b", "c", "h")
    assert planned(of, start, end) == before
    assert planned(reader(), start, end) == before  # after a restart, too
    assert [row["key"] for row in read(reader(), start, end)] == [b"a"]


@pytest.mark.parametrize("walks", [False, True], ids=["memory", "walk"])
def test_a_range_that_splits_three_times_after_the_plan_is_read_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, walks: bool
) -> None:
    if walks:
        for module in (change_stream, feed):
            monkeypatch.setattr(module, "CHANGES_BYTES_MAX", 1)
    of = reader()
    start = of.initialOffset()
    put(store, LETTERS * 2, b"1")
    end = of.latestOffset(start, ALL)
    before = read(reader(), start, end)
    assert len(before) == 2 * len(LETTERS)
    split(store, "h", "d", "b")
    put(store, LETTERS, b"later")
    again = read(reader(), start, end)
    assert _in_order(again) == _in_order(before)
    assert {row["range"] for row in again} == {1}


def _in_order(found: list[dict[str, Any]]) -> list[Any]:
    return sorted((row["key"], row["timestamp"], row["range"], row["value"]) for row in found)


def test_a_checkpoint_that_was_made_with_one_range_goes_on_with_many(store: Store) -> None:
    of = reader()
    start = logged(of.initialOffset())
    put(store, "ahz", b"1")
    middle = logged(of.latestOffset(start, ALL))
    assert sorted(rows(of, start, middle)) == [(b"a", b"1"), (b"h", b"1"), (b"z", b"1")]
    of.stop()
    split(store, *"cjq")
    put(store, "ahz", b"2")
    again = reader()
    end = logged(again.latestOffset(middle, ALL))
    assert len(planned(again, middle, end)) == 4
    assert sorted(rows(again, middle, end)) == [(b"a", b"2"), (b"h", b"2"), (b"z", b"2")]


def test_a_small_batch_of_many_ranges_goes_to_spark_with_its_plan(store: Store) -> None:
    split(store, *"cjq")
    of = reader()
    start = of.initialOffset()
    put(store, "zha", b"1")
    end = of.latestOffset(start, ALL)
    split(store, "t")
    sent = of.prefetched(logged(start), logged(end))
    assert sent is not None
    assert len(of.partitions(start, end)) == 1  # Spark takes rows for one part only
    assert len(planned(of, start, end)) == 4
    assert _in_order(batches(sent, SCHEMA)) == _in_order(read(reader(), start, end))


def test_a_transaction_over_ranges_is_in_one_batch(store: Store) -> None:
    split(store, *"cjq")
    of = reader(max_rows=1)
    offset = of.initialOffset()
    for number in range(5):
        with store.db.begin() as tx:
            for letter in "azk":
                tx.put(letter.encode(), b"%d" % number)
    store.advance(1.0)
    for number in range(5):
        end = of.latestOffset(offset, of.getDefaultReadLimit())
        found = read(of, offset, end)
        assert {row["value"] for row in found} == {b"%d" % number}
        assert len(found) == 3
        offset = end


@pytest.mark.parametrize("seed", range(15))
def test_each_change_is_read_once_while_ranges_split_at_any_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Offsets, plans and tasks are each made by a process of their own as often as not."""
    random = Random(seed)
    if random.random() < 0.5:
        monkeypatch.setattr(feed, "CHANGES_BYTES_MAX", 100)
    limit: ReadLimit = random.choice([ReadAllAvailable(), ReadMaxRows(5)])
    left = random.sample(LETTERS, len(LETTERS))

    def split_perhaps() -> None:
        while left and random.random() < 0.2:
            split(store, left.pop())

    of = reader()
    offset = of.initialOffset()
    written: list[tuple[bytes, bytes]] = []
    seen: list[tuple[bytes, bytes]] = []
    for step in range(25):
        for number in range(random.randrange(4)):
            with store.db.begin() as tx:
                for letter in random.sample(LETTERS, random.randrange(1, 4)):
                    pair = letter.encode(), b"%d %d" % (step, number)
                    tx.put(*pair)
                    written.append(pair)
            split_perhaps()
        store.advance(random.choice([0.01, 1.0]))
        of = random.choice([of, reader()])
        end = of.latestOffset(offset, limit)
        split_perhaps()
        of = random.choice([of, reader()])
        found = read(of, offset, end)
        if random.random() < 0.3:  # it was not written to the end: the same again
            split_perhaps()
            assert _in_order(read(reader(), offset, end)) == _in_order(found)
        seen += [(row["key"], row["value"]) for row in found]
        offset = logged(end)
    while (end := of.latestOffset(offset, limit)) != offset:
        seen += [(row["key"], row["value"]) for row in read(of, offset, end)]
        offset = logged(end)
    assert sorted(seen) == sorted(written)
    for letter in LETTERS:  # each key in the order of its changes
        key = letter.encode()
        assert [v for k, v in seen if k == key] == [v for k, v in written if k == key]
    assert len(store.db.ranges()) > 5
