"""The stream's reader, without Spark: exactly once over restarts at any moment, limits, losses."""

from __future__ import annotations

import json
import pickle
from random import Random  # noqa: TID251 (seeded)
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from postroom.errors import AccessDenied, Invalid, SnapshotTooOld
from postroom.pipeline import change_stream, connections
from postroom.pipeline.change_stream import ChangeReader, change_reader
from postroom.pipeline.offsets import position_of
from postroom.pipeline.options import parse
from postroom.pipeline.table_reader import TableSlice, Work, recent
from postroom.pipeline.tables import schema_of
from postroom.ranges import feed
from postroom.ranges.requests import CommittedChanges
from tests.client.stores import Store
from tests.pipeline.readers import batches, source

Offset = dict[str, Any]
SCHEMA = schema_of("changes")
ALL = ReadAllAvailable()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store whose clock is moved by hand; readers reach it without a connection."""
    store = Store()
    monkeypatch.setattr(connections, "database", lambda _: store.db)
    return store


def reader(**options: object) -> ChangeReader:
    """Make a reader as a process of Spark's makes it."""
    given = {"connect": "127.0.0.1:1", "insecure": "true", "table": "changes"}
    wanted = parse({**given, **{name: str(value) for name, value in options.items()}})
    return change_reader(wanted, wanted.store, SCHEMA)


def logged(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


def rows(of: ChangeReader, start: Offset, end: Offset) -> list[tuple[bytes, bytes | None]]:
    """Return what the tasks of a batch read, each from its pickle alone.

    The rows that are sent with the plan are equal.
    """
    found = []
    sent = of.prefetched(logged(start), logged(end))
    for partition in pickle.loads(pickle.dumps(of.partitions(logged(start), logged(end)))):
        task = pickle.loads(pickle.dumps(of))
        found += batches(task.read(partition), SCHEMA)
    assert sent is None or batches(sent, SCHEMA) == found
    return [(row["key"], row["value"]) for row in found]


def test_a_stream_begins_now_or_earlier(store: Store) -> None:
    store.db.put(b"a", b"0")
    then = store.db.now()
    store.db.put(b"a", b"1")
    expected: dict[object, list[tuple[bytes, bytes]]] = {
        "now": [(b"b", b"2")],
        "earliest": [(b"a", b"0"), (b"a", b"1"), (b"b", b"2")],
        then: [(b"a", b"1"), (b"b", b"2")],
    }
    first = {start: reader(start=start) for start in expected}
    offsets = {start: each.initialOffset() for start, each in first.items()}
    store.db.put(b"b", b"2")
    for start, each in first.items():
        end = each.latestOffset(offsets[start], ALL)
        assert sorted(rows(each, offsets[start], end)) == expected[start]
        assert each.latestOffset(end, ALL) == end  # and nothing more: no empty batch is made


def test_deletions_are_changes(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    store.db.put(b"a", b"1")
    store.db.delete(b"a")
    assert rows(of, start, of.latestOffset(start, ALL)) == [(b"a", b"1"), (b"a", None)]


def test_tasks_need_not_walk_over_the_span_where_one_answer_holds_the_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = reader()
    start = of.initialOffset()
    walked: list[object] = []
    in_full = change_stream.read

    def counted(*args: Any) -> Any:
        walked.append(args)
        return in_full(*args)

    monkeypatch.setattr(change_stream, "read", counted)
    for number in range(3):
        store.db.put(b"k", b"%d" % number)
        store.advance(1.0)
        end = of.latestOffset(start, ALL)
        assert rows(of, start, end) == [(b"k", b"%d" % number)]
        start = end
    assert not walked
    for value in (b"more", b"and more"):
        store.db.put(b"k", value)
    for module in (change_stream, feed):
        monkeypatch.setattr(module, "CHANGES_BYTES_MAX", 1)
    store.advance(1.0)
    found = rows(of, start, of.latestOffset(start, ALL))
    assert found == [(b"k", b"more"), (b"k", b"and more")]
    assert walked


def test_a_task_that_cannot_protect_its_changes_fails_instead_of_reading_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its changes can be read, and it may leave out only those that cannot."""
    store.db.put(b"a", b"1")
    of = reader(start="earliest", fail_on_data_loss="false")
    start = of.initialOffset()
    end = of.latestOffset(start, ALL)
    (part,) = of.partitions(start, end)

    def refused(_: int) -> Any:
        raise SnapshotTooOld("so old that other nodes may collect it")

    monkeypatch.setattr(store.db, "hold", refused)
    with pytest.raises(SnapshotTooOld):
        list(of.read(part))


def test_an_answer_that_ends_before_the_batch_does_not_stand_for_it() -> None:
    """A transaction over several ranges may be about to commit in between."""

    class TooShort:
        def recent_changes(self, _: bytes, __: None, ___: int, until: int) -> CommittedChanges:
            return CommittedChanges([], until - 1)

    work = Work("changes", 20, 10, 20, to_arrow_schema(SCHEMA, timezone="UTC"), None)
    db: Any = SimpleNamespace(bulk=TooShort())
    assert recent(db, TableSlice(), work) is None


@pytest.mark.parametrize("options", [{}, {"max_rows": 10}, {"prefix": "quiet/"}])
def test_a_quiet_stream_goes_on_and_finds_nothing_missing_after_a_restart(
    store: Store, options: dict[str, object]
) -> None:
    of = reader(**options)
    limit = of.getDefaultReadLimit()
    offset = of.initialOffset()
    for minute in range(10):
        store.advance(60.0)
        if options.get("prefix"):
            store.db.put(b"elsewhere", b"%d" % minute)
        end = of.latestOffset(offset, limit)
        assert end != offset
        assert rows(of, offset, end) == []
        offset = end
        assert of.latestOffset(offset, limit) == offset
    of.stop()
    again = reader(**options)
    store.db.put(b"quiet/a", b"1")
    end = again.latestOffset(logged(offset), limit)
    assert rows(again, offset, end) == [(b"quiet/a", b"1")]


def test_a_quiet_stream_with_available_now_ends_with_one_empty_batch(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    store.advance(40.0)
    of.prepareForTriggerAvailableNow()
    store.db.put(b"later", b"1")
    end = of.latestOffset(start, ALL)
    assert rows(of, start, end) == []
    assert of.latestOffset(end, ALL) == end


class Query:
    """The protocol of Spark: the end of a batch is logged, then its tasks run.

    They may run several times; only then the next batch is made. A process may die between any two
    of these.
    """

    def __init__(self, limit: Any) -> None:
        self.limit = limit
        self.of = reader()
        self.log = [logged(self.of.initialOffset())]
        self.sink: dict[int, list[tuple[bytes, bytes | None]]] = {}

    @property
    def batch(self) -> int:
        return len(self.log) - 1

    def die(self) -> None:
        self.of = reader()

    def plan(self) -> bool:
        """Make the next batch, if the one before is done and there is anything."""
        if self.batch and self.batch not in self.sink:
            return True
        end = self.of.latestOffset(logged(self.log[-1]), self.limit)
        if end == self.log[-1]:
            return False
        self.log.append(logged(end))
        return True

    def run(self) -> None:
        """Run its tasks; what they wrote before is written anew."""
        if self.batch:
            self.sink[self.batch] = rows(self.of, self.log[-2], self.log[-1])

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        return sorted(each for batch in self.sink.values() for each in batch)


def write_some(store: Store, random: Random, step: int) -> list[tuple[bytes, bytes]]:
    """Write a few keys in a transaction; return the changes."""
    changed = {b"%d" % random.randrange(20): b"%d.%d" % (step, n) for n in range(3)}
    with store.db.begin() as tx:
        for key, value in changed.items():
            tx.put(key, value)
    return list(changed.items())


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxRows(7), ReadMaxBytes(40), ALL])
@pytest.mark.parametrize("remembered", [True, False])
def test_every_change_is_read_once_over_restarts_at_any_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: Any, remembered: bool
) -> None:
    if not remembered:
        monkeypatch.setattr(feed, "CHANGES_MAX", 3)
        monkeypatch.setattr(feed, "CHANGES_BYTES_MAX", 50)
    random, written, query = Random(7), [], Query(limit)
    for step in range(120):
        for _ in range(random.randrange(3)):
            written += write_some(store, random, step)
        for act in random.sample([query.die, query.plan, query.run, query.run, query.die], 3):
            act()
        store.advance(random.random() / 2)
    query.run()
    while query.plan():
        query.run()
    assert query.rows() == sorted(written)
    assert len(query.sink) > 20


def test_a_batch_is_limited_but_never_within_a_commit(store: Store) -> None:
    of = reader(max_rows=3, max_bytes=1000)
    start = of.initialOffset()
    for size in (2, 2, 5, 1, 1):
        with store.db.begin() as tx:
            for number in range(size):
                tx.put(b"%d" % number, b"v" * 10)
    limit = of.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    counts = []
    while (end := of.latestOffset(start, limit)) != start:
        counts.append(len(rows(of, start, end)))
        start = end
    assert counts == [2, 2, 5, 2]
    assert reader(max_bytes=10).getDefaultReadLimit() == ReadMaxBytes(10)
    assert isinstance(reader().getDefaultReadLimit(), ReadAllAvailable)


def test_available_now_ends_though_more_is_written(store: Store) -> None:
    of = reader(max_rows=2)
    start = of.initialOffset()
    for number in range(5):
        store.db.put(b"a", b"%d" % number)
    of.prepareForTriggerAvailableNow()
    found = []
    while (end := of.latestOffset(start, of.getDefaultReadLimit())) != start:
        store.db.put(b"a", b"later")
        found += rows(of, start, end)
        start = end
    assert found == [(b"a", b"%d" % number) for number in range(5)]
    of.prepareForTriggerAvailableNow()
    end = of.latestOffset(start, ALL)
    assert rows(of, start, end) == [(b"a", b"later")] * 3


def collect_all(store: Store) -> None:
    for _ in range(3):
        store.db.put(b"a", b"more")
        store.advance(200.0)


def test_the_history_of_a_batch_is_kept_while_its_reader_lives(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    store.db.put(b"a", b"1")
    collect_all(store)
    end = of.latestOffset(start, ALL)
    collect_all(store)
    assert rows(of, start, end)[0] == (b"a", b"1")
    of.latestOffset(end, ALL)  # the next batch is made: the one before is done
    collect_all(store)
    with pytest.raises(SnapshotTooOld):
        rows(reader(), start, end)
    of.stop()
    assert store.node.replicas.sizes()["protections"] == 0


def restart(store: Store, options: dict[str, object]) -> list[tuple[bytes, bytes | None]]:
    """Return what a stream reads after a stop during which all collectable history went."""
    of = reader(**options)
    start = of.initialOffset()
    store.db.put(b"a", b"1")
    of.stop()
    collect_all(store)
    store.restart(after_seconds=3.0)
    collect_all(store)
    again = reader(**options)
    return rows(again, start, again.latestOffset(start, ALL))


@pytest.mark.parametrize("options", [{}, {"name": "orders", "protect_for": 0}])
def test_a_stream_without_a_protected_position_fails_after_the_history_was_collected(
    store: Store, options: dict[str, object]
) -> None:
    with pytest.raises(SnapshotTooOld, match="fail_on_data_loss"):
        restart(store, options)


def test_a_named_stream_goes_on_where_it_was_however_much_was_collected(store: Store) -> None:
    written = [(b"a", b"1"), *[(b"a", b"more")] * 6]
    assert restart(store, {"name": "orders"}) == written


def test_a_named_stream_protects_its_position_for_as_long_as_it_was_told(store: Store) -> None:
    with pytest.raises(SnapshotTooOld, match="fail_on_data_loss"):
        restart(store, {"name": "orders", "protect_for": 500})
    assert restart(store, {"name": "orders", "protect_for": 5000})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "n" * 129}, "128 characters"),
        ({"name": "orders", "protect_for": 604_801}, "a week"),
        ({"name": "orders", "protect_for": "long"}, "protect_for is a whole number"),
    ],
)
def test_an_impossible_name_or_protection_is_refused_with_a_word(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(Invalid, match=said):
        reader(**options)


def test_a_name_is_for_streams() -> None:
    named = source(connect="127.0.0.1:1", insecure="true", name="orders", at=1)
    with pytest.raises(Invalid, match="is for a stream"):
        named.reader(named.schema())


def test_a_stream_that_may_only_read_is_told_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise AccessDenied("this client has the role 'read'")

    monkeypatch.setattr(type(store.db), "keep_position", denied)
    with pytest.raises(AccessDenied, match="protect_for=0"):
        reader(name="orders").initialOffset()
    assert reader().initialOffset()


def test_the_position_of_a_named_stream_moves_with_each_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    keep = type(store.db).keep_position

    def counted(db: Any, name: str, at: int, **more: Any) -> None:
        kept.append(at)
        keep(db, name, at, **more)

    monkeypatch.setattr(type(store.db), "keep_position", counted)
    of = reader(name="orders")
    offset = of.initialOffset()
    expected = [position_of(offset)]
    for number in range(3):
        store.db.put(b"a", b"%d" % number)
        end = of.latestOffset(offset, ALL)
        assert rows(of, offset, end)
        assert kept == expected, "it stays until the batch is done"
        assert of.latestOffset(end, ALL) == end
        expected.append(position_of(end))
        offset = end
    assert kept == expected


@pytest.mark.parametrize("act", ["offset", "batch"])
def test_collected_changes_are_an_error_or_left_out_on_request(store: Store, act: str) -> None:
    of = reader()
    start = of.initialOffset()
    store.db.put(b"a", b"lost")
    end = of.latestOffset(start, ALL)
    of.stop()
    collect_all(store)
    store.db.put(b"b", b"left")

    def again(of: ChangeReader) -> list[tuple[bytes, bytes | None]]:
        until = end if act == "batch" else of.latestOffset(start, ALL)
        return rows(of, start, until)

    with pytest.raises(SnapshotTooOld, match="fail_on_data_loss"):
        again(reader())
    left = again(reader(fail_on_data_loss="false"))
    assert (b"a", b"lost") not in left
    assert bool(left) == (act == "offset")


def test_only_a_prefix_is_followed(store: Store) -> None:
    of = reader(prefix="user/")
    start = of.initialOffset()
    store.db.put(b"other", b"1")
    assert of.latestOffset(start, ALL) == start
    store.db.put(b"user/1", b"1")
    store.db.put(b"zother", b"1")
    assert rows(of, start, of.latestOffset(start, ALL)) == [(b"user/1", b"1")]
