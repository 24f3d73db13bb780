"""The writers, driven as Spark drives them, in every order, with faults at every step."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import postroom
from postroom import limits
from postroom.client.sync_parts import StagingCalls
from postroom.errors import Invalid, Unavailable
from postroom.pipeline import connections, sink_loads, sink_staging
from postroom.pipeline.options import SinkOptions, StoreAddress
from tests.pipeline.sinks.faults import Faults, Killed

HERE = StoreAddress(connect="here", insecure=True)
COUNT = SinkOptions(mode="increment")
SINK = SinkOptions(mode="increment", sink=b"s" * 32)
FAULTS = ("refused", "lost", "killed before", "killed after")


def batches(keys: list[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in batches of two."""
    for first in range(0, len(keys), 2):
        yield pa.RecordBatch.from_pydict({"key": keys[first : first + 2]})


def pairs(rows: dict[bytes, bytes]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"key": list(rows), "value": list(rows.values())})


def counts(db: postroom.Database) -> dict[bytes, int]:
    return {key: postroom.integer(value) for key, value in db.scan()}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with postroom.open(":memory:") as db:
        faults = Faults(db)
        monkeypatch.setattr(connections, "database", lambda _: faults.db)
        monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
        yield faults


def as_task(
    monkeypatch: pytest.MonkeyPatch, batch: int = 0, run: str | None = "run", partition: int = 0
) -> None:
    task = sink_staging.SparkTask(partition, "query", batch, run)
    monkeypatch.setattr(sink_staging, "current_task", lambda: task)


def sent_to_the_driver(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))


def test_a_batch_of_a_data_frame(faults: Faults) -> None:
    writer = sent_to_the_driver(sink_staging.BatchWriter(HERE, COUNT))
    messages = [writer.write(batches([b"%d" % n, b"x%d" % n])) for n in range(4)]
    messages.append(writer.write(iter(())))
    assert [message.rows for message in messages] == [2, 2, 2, 2, 0]
    assert counts(faults.db) == {}
    writer.commit([sent_to_the_driver(message) for message in messages])
    assert set(counts(faults.db).values()) == {1}
    assert len(counts(faults.db)) == 8
    writer.commit(messages)  # a commit whose outcome was not known, asked for again
    writer.abort(messages)  # a commit that failed for Spark, and took effect
    assert set(counts(faults.db).values()) == {1}


def test_a_commit_that_took_effect_does_not_fail_for_cleaning_up(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: StagingCalls, *, finish: bool = False) -> None:
        raise Unavailable("nobody leads")

    writer = sink_staging.BatchWriter(HERE, COUNT)
    messages = [writer.write(batches([b"a", b"b"]))]
    with monkeypatch.context() as patched:
        patched.setattr(StagingCalls, "sweep_some", unreachable)
        with pytest.raises(Unavailable):
            writer.commit(messages)
        writer.abort(messages)
    assert counts(faults.db) == {}  # a second write of it doubles nothing
    again = sink_staging.BatchWriter(HERE, COUNT)
    again.commit([again.write(batches([b"a", b"b"]))])
    assert counts(faults.db) == {b"a": 1, b"b": 1}


def test_a_batch_half_published_by_a_killed_program_is_finished_by_the_next(faults: Faults) -> None:
    writer = sink_staging.BatchWriter(HERE, COUNT)
    messages = [writer.write(batches([b"k%d" % n for n in range(8)]))]
    staging = faults.db.staging
    for step in range(1, 9):
        faults.next(**{f"n{step}": "killed after"})
        with suppress(Killed):
            writer.commit(messages)
            break
        if any(query.unfinished for query in staging.read().queries):
            break
    assert 0 < len(counts(faults.db)) < 8
    other = sink_staging.BatchWriter(HERE, COUNT)
    other.commit([other.write(batches([b"other"]))])
    assert len(counts(faults.db)) == 9
    assert set(counts(faults.db).values()) == {1}


def test_a_data_frame_that_is_a_batch_is_written_once(faults: Faults) -> None:
    def write(batch: int, *keys: bytes) -> None:
        options = SinkOptions(mode="increment", query=b"totals", batch=batch)
        writer = sent_to_the_driver(sink_staging.BatchWriter(HERE, options))
        writer.commit([writer.write(batches([key])) for key in keys])

    write(3, b"a", b"b")
    write(3, b"a", b"b")
    write(3, b"b", b"a", b"c")  # in another order, and even with other rows
    with pytest.raises(Invalid, match="older than its last one, 3"):
        write(2, b"before")
    assert counts(faults.db) == {b"a": 1, b"b": 1}
    write(4)  # no rows at all
    write(4, b"late")
    write(7, b"a")
    assert counts(faults.db) == {b"a": 2, b"b": 1}
    staging = faults.db.staging
    staging.sweep(0.0)
    assert [(each.query, each.batch) for each in staging.read().queries] == [(b"totals", 7)]
    assert [each.query for each in staging.read(b"totals").queries] == [b"totals"]
    assert not staging.read(b"totals\x00").queries
    assert (staging.read().jobs, staging.read().attempts) == (0, 0)


def test_one_of_two_writers_of_a_batch_counts(faults: Faults) -> None:
    options = SinkOptions(mode="increment", query=b"totals", batch=1)
    one, other = sink_staging.BatchWriter(HERE, options), sink_staging.BatchWriter(HERE, options)
    of_one = [one.write(batches([b"k%d" % n for n in range(8)]))]
    of_other = [other.write(batches([b"k%d" % n])) for n in range(8)]
    other.commit(of_other)
    one.commit(of_one)
    assert faults.db.staging.read().attempts == 0
    one.abort(of_one)
    other.commit(of_other)
    assert counts(faults.db) == {b"k%d" % n: 1 for n in range(8)}


@pytest.mark.parametrize("what", FAULTS)
def test_a_function_of_foreach_batch_that_is_killed_anywhere(faults: Faults, what: str) -> None:
    """It is called again for the same batch, until it comes to its end."""
    for number in range(20):
        for step in (number, 100):
            faults.next(**{f"n{step}": what})
            options = SinkOptions(mode="increment", query=b"totals", batch=number)
            with suppress(Killed):
                writer = sink_staging.BatchWriter(HERE, options)
                keys = [b"%d/%d" % (number, n) for n in range(7)]
                writer.commit([writer.write(batches(keys[:3])), writer.write(batches(keys[3:]))])
    assert counts(faults.db) == {b"%d/%d" % (n, m): 1 for n in range(20) for m in range(7)}


def test_a_task_that_is_late(faults: Faults) -> None:
    writer = sink_staging.BatchWriter(HERE, COUNT)
    writer.abort([None, None])  # no task has come to its end
    with pytest.raises(Invalid, match="was aborted"):
        writer.write(batches([b"a"]))
    other = sink_staging.BatchWriter(HERE, COUNT)
    message = other.write(batches([b"a"]))
    other.commit([message])
    assert other.write(batches([b"a"])).late
    assert counts(faults.db) == {b"a": 1}
    assert faults.db.staging.read().attempts == 0


def test_a_task_without_a_message_is_not_committed(faults: Faults) -> None:
    writer = sink_staging.BatchWriter(HERE, COUNT)
    message = writer.write(batches([b"a"]))
    with pytest.raises(Invalid, match="no message"):
        writer.commit([message, None])
    assert counts(faults.db) == {}


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("fault", ["refused", "lost"])
def test_an_answer_that_does_not_come_is_asked_for_again(
    faults: Faults, step: int, fault: str
) -> None:
    writer = sink_staging.BatchWriter(HERE, COUNT)
    faults.next(**{f"n{step}": fault})
    message = writer.write(batches([b"%d" % n for n in range(8)]))
    faults.next(**{f"n{step}": fault})
    writer.commit([message])
    assert counts(faults.db) == {b"%d" % n: 1 for n in range(8)}


def test_a_restart_with_partitions_in_another_order(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task of the first try had come to its end: its rows are in another partition now."""
    writer = sink_staging.StreamWriter(HERE, COUNT)
    as_task(monkeypatch, run="first", partition=0)
    writer.write(batches([b"a", b"b"]))
    as_task(monkeypatch, run="second", partition=0)
    one = writer.write(batches([b"c", b"d"]))
    as_task(monkeypatch, run="second", partition=1)
    two = writer.write(batches([b"a", b"b"]))
    writer.commit([one, two], 0)
    assert counts(faults.db) == dict.fromkeys([b"a", b"b", b"c", b"d"], 1)


def test_other_partitions_after_a_commit_that_took_effect(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adaptive execution: the batch that is repeated has one partition where it had two."""
    writer = sink_staging.StreamWriter(HERE, COUNT)
    as_task(monkeypatch, run="first")
    first = [writer.write(batches([b"a"])), writer.write(batches([b"b"]))]
    faults.next(n1="killed after")
    with pytest.raises(Killed):
        writer.commit(first, 0)
    as_task(monkeypatch, run="second")
    again = writer.write(batches([b"b", b"a"]))
    writer.commit([again], 0)
    assert counts(faults.db) == {b"a": 1, b"b": 1}


def test_a_late_batch_is_not_published_anew(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its query was forgotten meanwhile, its rows are not staged."""
    writer = sink_staging.StreamWriter(HERE, COUNT)
    as_task(monkeypatch, run="first")
    writer.commit([writer.write(batches([b"a"]))], 0)
    as_task(monkeypatch, run="second")
    late = writer.write(batches([b"a"]))
    faults.db.staging.forget(b"query")
    writer.commit([late], 0)
    assert counts(faults.db) == {b"a": 1}
    assert faults.db.staging.read().queries == []


def test_an_abort_that_knows_nothing_finds_the_jobs_of_its_sink(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sink_staging.StreamWriter(HERE, SINK)
    as_task(monkeypatch, run="first")
    staged_before = writer.write(batches([b"a"]))
    sink_staging.StreamWriter(HERE, SINK).abort([None], 0)
    with pytest.raises(Invalid, match="was aborted"):
        writer.write(batches([b"a"]))
    with pytest.raises(Invalid, match="was aborted"):
        writer.commit([staged_before], 0)
    as_task(monkeypatch, run="second")
    writer.commit([writer.write(batches([b"a"]))], 0)
    assert counts(faults.db) == {b"a": 1}


def test_tasks_that_do_not_belong_together(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = sink_staging.StreamWriter(HERE, COUNT)
    as_task(monkeypatch, batch=3)
    message = writer.write(batches([b"a"]))
    with pytest.raises(Invalid, match="do not agree"):
        writer.commit([message], 4)
    writer.commit([], 4)
    monkeypatch.setattr(sink_staging, "current_task", lambda: sink_staging.SparkTask(0))
    with pytest.raises(Invalid, match="no streaming query"):
        writer.write(batches([b"a"]))


def test_a_writer_holds_no_connection(faults: Faults) -> None:
    for writer in (sink_staging.BatchWriter(HERE, COUNT), sink_loads.LoadWriter(HERE, COUNT)):
        assert set(vars(sent_to_the_driver(writer)).values()) == set(vars(writer).values())


def test_a_load_that_is_killed_and_resumed(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_loads, "CHUNK_ROWS", 1)
    rows = {b"k%d" % n: b"%d" % n for n in (5, 2, 4, 1, 3, 0)}
    named = SinkOptions(mode="load", load="nightly", prefix=b"k")
    first = sink_loads.LoadWriter(HERE, named)
    faults.next(n0="killed after")
    with pytest.raises(Killed):
        first.write(pairs(rows))
    assert 0 < len(list(faults.db.scan())) < 6
    second = sink_loads.LoadWriter(HERE, named)
    with pytest.raises(Invalid, match="late"):
        first.write(pairs(rows))
    assert second.write(pairs(rows)).rows == 6
    second.commit([])
    third = sink_loads.LoadWriter(HERE, named)
    third.write(pairs({b"k9": b"9"}))  # it is finished: nothing is done again
    third.commit([])
    assert dict(faults.db.scan()) == rows


def test_a_load_that_is_aborted(faults: Faults) -> None:
    writer = sink_loads.LoadWriter(HERE, SinkOptions(mode="load"))
    writer.write(pairs({b"a": b"1"}))
    writer.abort([])
    with pytest.raises(Invalid, match="late"):
        writer.write(pairs({b"b": b"1"}))
    assert faults.db.staging.read().loads == 0
    with pytest.raises(Invalid, match="not empty"):
        sink_loads.LoadWriter(HERE, SinkOptions(mode="load"))


def test_a_load_with_a_key_twice(faults: Faults) -> None:
    writer = sink_loads.LoadWriter(HERE, SinkOptions(mode="load"))
    batch = pa.RecordBatch.from_pydict({"key": [b"a", b"a"], "value": [b"1", b"1"]})
    with pytest.raises(Invalid, match="twice"):
        writer.write(iter([batch]))


class Stream(RuleBasedStateMachine):
    """A query over its runs, as Spark drives it.

    Tasks are tried again, late, and killed; answers of commits and aborts are lost. Every batch has
    other partitions each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store = postroom.open(":memory:")
        self.faults = Faults(self.store)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(connections, "database", lambda _: self.faults.db)
        self.patch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
        self.patch.setattr(limits, "STAGED_DELETED_AT_ONCE_MAX", 2)
        self.writer = sink_staging.StreamWriter(HERE, SINK)
        self.batch = 0
        self.runs = 0
        self.tried = False
        self.old: list[tuple[int, str, list[bytes]]] = []
        self.start_run(1, 0)

    def teardown(self) -> None:
        if self.tried:
            self.start_run(1, 0)
            self.run_all_and_commit()
        self.faults.db.staging.sweep()
        self.check()
        self.store.staging.sweep(0.0)
        staging = self.store.staging.read()
        assert (staging.jobs, staging.attempts) == (0, 0)
        self.store.close()
        self.patch.undo()

    def rows(self, batch: int) -> list[bytes]:
        return [b"%d/%d" % (batch, n) for n in range(2 + batch % 7)]

    def write(self, batch: int, run: str, keys: list[bytes]) -> Any:
        as_task(self.patch, batch, run)
        return sent_to_the_driver(self.writer.write(batches(keys)))

    @rule(partitions=st.integers(1, 3), seed=st.integers(0, 9))
    def start_run(self, partitions: int, seed: int) -> None:
        """Start the query again, from its checkpoint."""
        self.runs += 1
        self.is_dead = False
        keys = self.rows(self.batch)
        Random(seed).shuffle(keys)
        self.plan = [keys[first::partitions] for first in range(partitions)]
        self.messages: list[Any] = [None] * partitions

    @precondition(lambda self: not self.is_dead)
    @rule(
        partition=st.integers(0, 2), fault=st.sampled_from(("", "", *FAULTS)),
        at=st.integers(0, 2),
    )  # fmt: skip
    def task(self, partition: int, fault: str, at: int) -> None:
        partition %= len(self.plan)
        run, keys = f"run {self.runs}", self.plan[partition]
        self.old.append((self.batch, run, keys))
        self.faults.next(**({f"n{at}": fault} if fault else {}))
        with suppress(Killed):
            self.messages[partition] = self.write(self.batch, run, keys)
        self.faults.next()

    @precondition(lambda self: not self.is_dead and None not in self.messages)
    @rule(fault=st.sampled_from(("", "", *FAULTS)), at=st.integers(0, 9))
    def commit(self, fault: str, at: int) -> None:
        self.tried = True
        self.is_dead = True
        self.faults.next(**({f"n{at}": fault} if fault else {}))
        with suppress(Killed):
            self.writer.commit(self.messages, self.batch)
            self.batch += 1
            self.tried = False
            self.start_run(2, self.batch)
        self.faults.next()

    @rule(known=st.booleans())
    def abort(self, known: bool) -> None:
        messages = self.messages if known else [None] * len(self.messages)
        sink_staging.StreamWriter(HERE, SINK).abort(messages, self.batch)
        self.is_dead = True

    @rule(key=st.sampled_from([b"1/", b"3/1", b"5", b"q", b"query", b"r"]))
    def split(self, key: bytes) -> None:
        if key not in {each.start for each in self.store.ranges()}:
            self.store.split(key)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def late_task(self, data: st.DataObject) -> None:
        batch, run, keys = data.draw(st.sampled_from(self.old))
        with suppress(Invalid):
            self.write(batch, run, keys)

    @precondition(lambda self: self.tried and self.is_dead)
    @rule()
    def run_all_and_commit(self) -> None:
        """Run the batch again to its end, after a commit whose outcome nobody knows."""
        self.start_run(2, self.runs)
        self.faults.next()
        self.messages = [self.write(self.batch, f"run {self.runs}", keys) for keys in self.plan]
        self.writer.commit(self.messages, self.batch)
        self.batch += 1
        self.tried = False
        self.start_run(1, 0)

    @invariant()
    def check(self) -> None:
        found = counts(self.store)
        assert set(found.values()) <= {1}
        done = {key for batch in range(self.batch) for key in self.rows(batch)}
        assert done <= set(found)
        now = set(self.rows(self.batch)) if self.tried else set()
        assert set(found) <= done | now


TestStream = Stream.TestCase
TestStream.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


def test_a_batch_below_the_last_one_of_its_query_is_an_error(faults: Faults) -> None:
    def write(batch: int, key: bytes) -> None:
        options = SinkOptions(mode="increment", query=b"days", batch=batch)
        writer = sink_staging.BatchWriter(HERE, options)
        writer.commit([writer.write(batches([key]))])

    write(20260131, b"a")
    write(20260131, b"other rows")
    with pytest.raises(Invalid, match=r"older than its last one, 20260131; .*forget\(b'days'\)"):
        write(20260130, b"backfill")
    assert counts(faults.db) == {b"a": 1}
    faults.db.staging.forget(b"days")
    write(20260130, b"backfill")
    assert counts(faults.db) == {b"a": 1, b"backfill": 1}


def test_rows_that_become_dead_letters_are_counted_and_warned_of(
    faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.db.split(b"t")
    faults.db.put(b"text", b"no integer")
    faults.db.increment(b"full", 2**63 - 1)
    options = SinkOptions(mode="increment", query=b"q", batch=1)
    writer = sink_staging.BatchWriter(HERE, options)
    writer.commit([writer.write(batches([b"a", b"text", b"full"]))])
    last = faults.db.staging.last(b"q")
    assert last is not None
    assert (last.batch, last.dead) == (1, 2)
    assert [each for each in caplog.messages if "batch 1 has 2 rows that are dead letters" in each]
    assert len(faults.db.dead_letters()) == 2
    caplog.clear()
    nothing = SinkOptions(mode="increment", query=b"q", batch=2)
    writer = sink_staging.BatchWriter(HERE, nothing)
    writer.commit([writer.write(batches([b"a"]))])
    last = faults.db.staging.last(b"q")
    assert last is not None
    assert last.dead == 0
    assert caplog.messages == []


def test_rows_of_a_stream_that_become_dead_letters_are_warned_of(
    faults: Faults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults.db.split(b"t")
    faults.db.put(b"text", b"no integer")
    as_task(monkeypatch, batch=7)
    writer = sink_staging.StreamWriter(HERE, COUNT)
    writer.commit([writer.write(batches([b"a", b"text"]))], 7)
    assert [each for each in caplog.messages if "batch 7 has 1 row that is a dead letter" in each]
