"""Staged batches: each row of a published batch takes effect once, whatever is repeated or late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

import postroom
from postroom import limits
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.client.sync import CoreDatabase
from postroom.errors import Invalid
from postroom.messaging.ingest.machine import encode
from postroom.messaging.ingest.requests import (
    ApplyStaged,
    PublishStaged,
    ReadStaging,
    StageRows,
    Winner,
)
from postroom.messaging.ingest.staging import QueryRecord, StagedRecords, job_name, query_key
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.bounds import Bounds
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import Delete, Increment, Put
from tests.client.stores import Store

QUERY = b"query"


def job_of(number: int) -> bytes:
    return number.to_bytes(24, "big")


def attempt_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def ask(db: CoreDatabase, write: Any) -> Any:
    """Carry out one step, as the store makes it."""
    return db.sender.run(repeat_one(db.sender, write))


def stage(
    db: CoreDatabase, rows: list[Any], *, job: int = 1, attempt: int = 1, number: int = 0,
    batch: int = 0, sink: bytes = b"",
) -> Any:  # fmt: skip
    return ask(
        db,
        StageRows(QUERY, batch, job_of(job), sink, attempt_of(attempt), number, packed(rows)),
    )


def publish(db: CoreDatabase, *winners: tuple[int, int], job: int = 1, batch: int = 0) -> bool:
    won = [(attempt_of(attempt), chunks) for attempt, chunks in winners]
    return db.staging.publish(QUERY, batch, job_of(job), won)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
    monkeypatch.setattr(limits, "STAGED_DELETED_AT_ONCE_MAX", 2)


def test_all_kinds_of_rows(db: postroom.Database) -> None:
    db.create_queue("q")
    db.put(b"gone", b"1")
    stage(db, [Put(b"a", b"1"), Delete(b"gone"), Increment(b"n", 5)])
    stage(db, [EnqueueMessage(b"m", b"hello", {"h": 1})], number=1)
    stage(db, [EnqueueInQueue("q", b"x", "", b"x", b"work")], number=2)
    assert db.get(b"a") is None
    assert [info.key for info in db.inboxes()] == []
    assert publish(db, (1, 3))
    assert (db.get(b"a"), db.get(b"gone")) == (b"1", None)
    assert postroom.integer(db.get(b"n")) == 5
    assert [(m.value, m.headers) for m in db.peek(b"m")] == [(b"hello", {"h": 1})]
    assert db.queue("q").stats().ready == 1
    staging = db.staging.read()
    assert (staging.jobs, staging.attempts) == (0, 0)


def test_staged_rows_are_invisible_and_those_of_losers_stay_so(db: postroom.Database) -> None:
    stage(db, [Put(b"won", b"1")], attempt=1)
    stage(db, [Put(b"lost", b"1")], attempt=2)
    assert list(db.scan()) == []
    assert publish(db, (1, 1))
    assert list(db.scan()) == [(b"won", b"1")]


def test_a_small_batch_is_one_transaction(store: Store) -> None:
    db = store.db
    stage(db, [Put(b"k%d" % n, b"") for n in range(100)])
    publish(db, (1, 1))
    with db.hold() as at:
        stamps = b"".join(page.timestamps for page in db.bulk.columns(at=at))
    assert len(stamps) == 800
    assert stamps == stamps[:8] * 100


def test_a_large_batch_goes_in_steps_that_anybody_can_finish(
    store: Store, small_steps: None
) -> None:
    db = store.db
    for number in range(3):
        stage(db, [Increment(b"k%d%d" % (number, n), 1) for n in range(4)], number=number)
    new, more = ask(db, PublishStaged(QUERY, 0, job_of(1), [Winner(attempt_of(1), 3)]))
    assert (new, more) == (True, True)
    assert len(list(db.scan())) == 3
    with pytest.raises(Invalid, match="not applied yet"):
        ask(db, PublishStaged(QUERY, 1, job_of(2), []))
    with pytest.raises(Invalid, match="not applied yet"):
        db.staging.forget(QUERY)
    db.staging.sweep()  # the clean-up finishes it
    assert [postroom.integer(value) for _, value in db.scan()] == [1] * 12
    assert publish(db, (1, 3)) is False


def test_a_batch_is_published_once_whoever_asks(db: postroom.Database) -> None:
    stage(db, [Increment(b"n", 1)], job=1)
    stage(db, [Increment(b"n", 1)], job=2)
    assert publish(db, (1, 1), job=1)
    assert not publish(db, (1, 1), job=1)
    assert not publish(db, (1, 1), job=2)
    assert postroom.integer(db.get(b"n")) == 1
    assert stage(db, [Increment(b"n", 1)], job=3) is False
    assert db.staging.read().jobs == 1  # the one of job 2


def test_an_aborted_job_takes_no_rows_and_is_not_published(db: postroom.Database) -> None:
    stage(db, [Put(b"a", b"1")])
    assert db.staging.abort(QUERY, 0, job_of(1))
    with pytest.raises(Invalid, match="was aborted"):
        stage(db, [Put(b"a", b"1")], attempt=2)
    with pytest.raises(Invalid, match="was aborted"):
        publish(db, (1, 1))
    assert db.staging.abort(QUERY, 0, job_of(9))  # has staged nothing yet
    with pytest.raises(Invalid, match="was aborted"):
        stage(db, [Put(b"a", b"1")], job=9)
    stage(db, [Put(b"a", b"2")], job=2)  # the next try
    assert publish(db, (1, 1), job=2)
    assert db.get(b"a") == b"2"


def test_jobs_are_aborted_by_their_sink(db: postroom.Database) -> None:
    stage(db, [Put(b"a", b"1")], job=1, sink=b"mine")
    stage(db, [Put(b"a", b"2")], job=2, sink=b"other")
    assert db.staging.abort(b"", 0, sink=b"mine")
    with pytest.raises(Invalid, match="was aborted"):
        publish(db, (1, 1), job=1)
    assert publish(db, (1, 1), job=2)


def test_an_abort_after_the_commit_changes_nothing(store: Store, small_steps: None) -> None:
    db = store.db
    stage(db, [Increment(b"k%d" % n, 1) for n in range(7)])
    ask(db, PublishStaged(QUERY, 0, job_of(1), [Winner(attempt_of(1), 1)]))
    assert not db.staging.abort(QUERY, 0, job_of(1))  # half-way
    db.staging.finish(QUERY)
    assert not db.staging.abort(QUERY, 0, job_of(1))  # done
    assert len(list(db.scan())) == 7


def test_an_incomplete_attempt_is_not_published(db: postroom.Database) -> None:
    stage(db, [Put(b"a", b"1")])
    for winner in ((1, 2), (2, 1)):
        with pytest.raises(Invalid, match=r"run the job again"):
            publish(db, winner)
    assert db.get(b"a") is None


def test_an_attempt_that_could_not_be_applied_wholly_is_not_published(
    db: postroom.Database,
) -> None:
    stage(db, [Put(b"a", b"1")], number=1)
    stage(db, [Put(b"b", b"1")], attempt=2)
    with pytest.raises(Invalid, match="have gaps"):
        publish(db, (1, 1))
    with pytest.raises(Invalid, match="name each once"):
        publish(db, (2, 1), (2, 1))
    with pytest.raises(Invalid, match="0 of the 1 chunks"):
        db.staging.publish(b"another", 0, job_of(1), [(attempt_of(2), 1)])
    with pytest.raises(Invalid, match="another batch"):
        publish(db, (2, 1), batch=1)
    assert list(db.scan()) == []
    assert publish(db, (2, 1))
    assert list(db.scan()) == [(b"b", b"1")]


def test_a_staged_row_that_cannot_be_carried_out_is_a_dead_letter(db: postroom.Database) -> None:
    db.put(b"text", b"no integer")
    stage(db, [Put(b"a", b"1"), Increment(b"text", 1), Put(b"b", b"1")])
    assert publish(db, (1, 1))
    assert (db.get(b"a"), db.get(b"b")) == (b"1", b"1")
    (letter,) = db.dead_letters()
    assert "WrongType" in letter.reason
    db.put(b"text", b"\x00" * 8)
    assert db.replay([letter.id]) == 1
    db.drain()
    assert db.dead_letters() == []
    assert postroom.integer(db.get(b"text")) == 1


def test_rows_for_a_queue_that_was_dropped_wait_for_it(db: postroom.Database) -> None:
    db.create_queue("q")
    stage(db, [EnqueueInQueue("q", b"x", "", b"x", b"work")])
    db.queue("q").drop()
    with pytest.raises(Invalid, match="queue"):
        publish(db, (1, 1))
    db.create_queue("q")
    publish(db, (1, 1))
    assert db.queue("q").stats().ready == 1


def test_a_writer_that_has_published_half_is_told_not_to_write_again(
    db: postroom.Database, small_steps: None
) -> None:
    db.create_queue("q")
    stage(db, [Put(b"k%d" % n, b"") for n in range(3)])
    stage(db, [EnqueueInQueue("q", b"x", "", b"x", b"work")], number=1)
    db.queue("q").drop()
    with pytest.raises(Invalid, match="Do not write it again"):
        publish(db, (1, 2))
    assert db.get(b"k2") == b""
    db.create_queue("q")
    db.staging.sweep()
    assert db.queue("q").stats().ready == 1


def test_a_query_that_cannot_go_on_is_in_nobodys_way(
    db: postroom.Database, small_steps: None
) -> None:
    db.create_queue("q")
    stage(db, [Put(b"k%d" % n, b"") for n in range(3)])
    stage(db, [EnqueueInQueue("q", b"x", "", b"x", b"work")], number=1)
    ask(db, PublishStaged(QUERY, 0, job_of(1), [Winner(attempt_of(1), 2)]))
    db.queue("q").drop()
    rows = packed([Put(b"later%d" % n, b"") for n in range(5)])
    ask(db, StageRows(b"zz", 0, job_of(2), b"", attempt_of(2), 0, rows))
    ask(db, PublishStaged(b"zz", 0, job_of(2), [Winner(attempt_of(2), 1)]))
    ask(db, StageRows(b"zzz", 0, job_of(3), b"", attempt_of(3), 0, rows))
    with pytest.raises(Invalid, match="queue"):
        db.staging.sweep(0.0)
    assert [each.unfinished for each in db.staging.read().queries] == [True, False]
    assert db.staging.read().attempts == 1  # the one that cannot go on
    assert db.get(b"later4") == b""
    db.create_queue("q")
    db.staging.sweep(0.0)
    assert db.queue("q").stats().ready == 1


def test_wrong_rows_and_deep_headers_are_refused_before_they_are_staged(
    db: postroom.Database,
) -> None:
    for rows in (b"\xc1", b"\x91\x92\xa3put\x01", packed([["drop_queue", "q"]])):
        with pytest.raises(Invalid, match="no rows"):
            ask(db, StageRows(QUERY, 0, job_of(1), b"", attempt_of(1), 0, rows))
    nested: Any = {}
    for _ in range(30):
        nested = {"a": nested}
    with pytest.raises(Invalid, match="nested"):
        stage(db, [EnqueueMessage(b"k", b"", nested)])


def test_leftovers_go_by_age_and_with_the_next_batch(store: Store) -> None:
    db = store.db
    stage(db, [Put(b"a", b"1")], job=1, batch=0)
    stage(db, [Put(b"a", b"2")], job=2, batch=1)
    stage(db, [Put(b"a", b"3")], job=3, batch=5)
    publish(db, (1, 1), job=2, batch=1)
    db.staging.sweep()
    assert db.staging.read().jobs == 1  # batch 5 may yet come
    store.advance(61.0)
    db.staging.sweep(60.0)
    assert (db.staging.read().jobs, db.staging.read().attempts) == (0, 0)
    with pytest.raises(Invalid, match="run the job again"):
        publish(db, (1, 1), job=3, batch=5)
    assert db.staging.forget(QUERY)
    assert not db.staging.forget(QUERY)


def test_a_query_of_one_batch_is_forgotten_after_a_time(store: Store) -> None:
    db = store.db
    stage(db, [Put(b"a", b"1")])
    db.staging.publish(QUERY, 0, job_of(1), [(attempt_of(1), 1)], once=True)
    store.advance(50.0)
    db.staging.sweep(60.0)
    assert db.staging.read().queries
    store.advance(11.0)
    db.staging.sweep(60.0)
    assert not db.staging.read().queries


class Turns:
    """A reader of stored pairs in turns of ten steps."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        self._stored, self.steps, self.most = stored, 0, 0

    def iterate(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from (
            (key, self._stored[key]) for key in sorted(self._stored) if lower <= key < upper
        )

    def is_used_up(self) -> bool:
        return self.steps >= 10


def test_a_list_of_staged_batches_is_read_over_short_turns() -> None:
    at = StagedRecords(1, Bounds(RangeDescriptor(1)))
    names = [b"%03d" % number for number in range(95)]
    record = encode(QueryRecord(7, 1, False, None))
    view: Any = Turns(
        {query_key(name): record for name in names}
        | {at.jobs.prefix + job_name(name, job_of(1)): b"" for name in names[:33]}
    )
    answer: Any = at.read_staging(view, ReadStaging())
    try:
        while True:
            next(answer)
            view.most, view.steps = max(view.most, view.steps), 0
    except StopIteration as stopped:
        found = stopped.value
    assert view.most == 10
    assert [(each.query, each.batch) for each in found.queries] == [(name, 7) for name in names]
    assert (found.jobs, found.attempts, found.loads) == (33, 0, 0)


class Batches(RuleBasedStateMachine):
    """One query, many jobs, in any order, against what must come of it."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.db = self.store.db
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
        self.patch.setattr(limits, "STAGED_DELETED_AT_ONCE_MAX", 2)
        self.last = -1
        self.unfinished = False
        self.staged: dict[int, dict[int, dict[int, list[bytes]]]] = {}
        self.batch_of: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.rows = 0
        self.expected: set[bytes] = set()

    def teardown(self) -> None:
        self.db.staging.finish(QUERY)
        self.expect(exactly=True)
        self.store.counters()
        self.patch.undo()
        self.db.close()

    @rule(target=jobs, ahead=st.integers(-1, 1))
    def begin(self, ahead: int) -> int:
        job = len(self.batch_of) + 1
        self.batch_of[job] = max(self.last + ahead, 0)
        self.staged[job] = {}
        return job

    @rule(job=jobs, attempt=st.integers(1, 3), number=st.integers(0, 2), rows=st.integers(0, 4))
    def stage(self, job: int, attempt: int, number: int, rows: int) -> None:
        chunks = self.staged[job].get(attempt, {})
        keys = chunks.get(number) or [b"%d" % (self.rows + n) for n in range(rows)]
        self.rows += rows
        requests = [Increment(key, 1) for key in keys]
        batch = self.batch_of[job]
        if batch <= self.last:
            late = stage(self.db, requests, job=job, attempt=attempt, number=number, batch=batch)
            assert late is False
            return
        if job in self.fenced:
            with pytest.raises(Invalid):
                stage(self.db, requests, job=job, attempt=attempt, number=number, batch=batch)
            return
        stage(self.db, requests, job=job, attempt=attempt, number=number, batch=batch)
        # The earlier one stays: a chunk that is sent again has the same rows.
        self.staged[job].setdefault(attempt, {}).setdefault(number, keys)

    def whole(self, job: int) -> Callable[[int], bool]:
        """Return whether an attempt has staged something, with chunks numbered without gaps."""
        staged = self.staged[job]
        return lambda a: a in staged and max(staged[a]) + 1 == len(staged[a])

    @rule(job=jobs, chosen=st.sets(st.integers(1, 3)))
    def publish(self, job: int, chosen: set[int]) -> None:
        batch, staged = self.batch_of[job], self.staged[job]
        won = [Winner(attempt_of(a), len(staged.get(a, [])) or 1) for a in sorted(chosen)]
        request = PublishStaged(QUERY, batch, job_of(job), won)
        if batch <= self.last:
            assert ask(self.db, request)[0] is False
        elif self.unfinished or job in self.fenced or not all(map(self.whole(job), chosen)):
            with pytest.raises(Invalid):
                ask(self.db, request)
        else:
            self.last = batch
            new, self.unfinished = ask(self.db, request)
            assert new
            for attempt in chosen:
                self.expected.update(*staged[attempt].values())

    @rule(job=jobs)
    def abort(self, job: int) -> None:
        aborted = self.db.staging.abort(QUERY, self.batch_of[job], job_of(job))
        if aborted:
            self.fenced.add(job)
        else:
            assert self.batch_of[job] <= self.last

    @precondition(lambda self: self.unfinished)
    @rule()
    def apply(self) -> None:
        self.unfinished = ask(self.db, ApplyStaged(QUERY))

    @rule()
    def kill(self) -> None:
        self.store.kill()

    @rule(key=st.sampled_from([b"1", b"2", b"5", b"q", QUERY, b"r"]))
    def split(self, key: bytes) -> None:
        if key not in {each.start for each in self.db.ranges()}:
            self.db.split(key)

    @rule()
    def sweep(self) -> None:
        self.db.staging.sweep()
        self.unfinished = False
        assert self.db.staging.read().attempts <= sum(map(len, self.staged.values()))

    @invariant()
    def expect(self, *, exactly: bool = False) -> None:
        found = {key: postroom.integer(value) for key, value in self.db.scan()}
        assert set(found.values()) <= {1}
        assert set(found) <= self.expected
        if exactly or not self.unfinished:
            assert set(found) == self.expected


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
