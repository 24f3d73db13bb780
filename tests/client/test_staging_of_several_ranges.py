"""Staged batches over several ranges: each row takes effect once, in order, whatever splits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client.commits import alone, repeat_one
from postroom.client.staging import packed
from postroom.errors import Invalid, OutboxFull, Unavailable
from postroom.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from postroom.messaging.handover.receiving import HandedOver
from postroom.messaging.ingest.requests import (
    ApplyStaged,
    PublishStaged,
    StageRows,
    Winner,
)
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import Delete, Increment, Put
from tests.client.worker.running import eventually

QUERY = b"query"
JOB, ATTEMPT = b"j" * 24, b"a" * 16
KEYS = (b"a", b"n", b"query/1", b"x", b"z")


class Delivery:
    """A switch by which ranges take nothing from each other."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_open = True
        self.deaf: bytes | None = None
        self._take = HandedOver.hand_over

        def hand_over(of: HandedOver, ctx: Any, request: Any) -> Any:
            if not self.is_open or request.start == self.deaf:
                raise Unavailable("nothing is taken now")
            return self._take(of, ctx, request)

        patch.setattr(HandedOver, "hand_over", hand_over)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Take nothing within a block."""
        self.is_open = False
        try:
            yield
        finally:
            self.is_open = True


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    return Delivery(monkeypatch)


@pytest.fixture
def db(delivery: Delivery) -> Iterator[postroom.Database]:
    """Return a store of three ranges; queries lie in the second one."""
    with postroom.open(":memory:") as store:
        for key in (b"m", b"x"):
            store.split(key)
        yield store


def ask(db: postroom.Database, write: Any) -> Any:
    return db.sender.run(repeat_one(db.sender, write))


def stage(
    db: postroom.Database, *rows: Any, number: int = 0, batch: int = 0, job: bytes = JOB
) -> None:
    ask(db, StageRows(QUERY, batch, job, b"", ATTEMPT, number, packed(list(rows))))


def publish(db: postroom.Database, chunks: int = 1, batch: int = 0, job: bytes = JOB) -> bool:
    return db.staging.publish(QUERY, batch, job, [(ATTEMPT, chunks)])


def begin(db: postroom.Database, chunks: int = 1) -> bool:
    """Publish the batch with its first step; return whether there is more."""
    _, more = ask(db, PublishStaged(QUERY, 0, JOB, [Winner(ATTEMPT, chunks)]))
    return bool(more)


def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
    monkeypatch.setattr(limits, "STAGED_DELETED_AT_ONCE_MAX", 2)


def test_rows_of_all_kinds_reach_their_ranges(db: postroom.Database) -> None:
    db.create_queue("q")
    for key in KEYS:
        db.put(key + b"/gone", b"1")
    rows: list[Any] = []
    for key in KEYS:
        rows += [Put(key, b"1"), Delete(key + b"/gone"), Increment(key + b"/n", 5)]
        rows += [EnqueueMessage(key, b"hello", {"h": 1})]
        rows += [EnqueueInQueue("q", key, "", b"id of " + key, b"work")]
        rows += [EnqueueInQueue("q", key, "", b"made up" + key, b"more", is_unique=True)]
    stage(db, *rows)
    assert publish(db)
    for key in KEYS:
        assert (db.get(key), db.get(key + b"/gone")) == (b"1", None)
        assert postroom.integer(db.get(key + b"/n")) == 5
        assert [(m.value, m.headers) for m in db.peek(key)] == [(b"hello", {"h": 1})]
    assert db.queue("q").stats().ready == 2 * len(KEYS)
    found = db.staging.read()
    assert (found.jobs, found.attempts) == (0, 0)
    assert [(each.query, each.unfinished) for each in found.queries] == [(QUERY, False)]


def test_a_queue_row_with_a_known_id_of_another_range_is_left_out(db: postroom.Database) -> None:
    db.create_queue("q", on_duplicate="error")
    for batch in range(2):
        row = EnqueueInQueue("q", b"n", "", b"a", b"%d" % batch)
        stage(db, row, batch=batch, job=b"%024d" % batch)
        publish(db, batch=batch, job=b"%024d" % batch)
    assert [each.payload for each in db.queue("q").messages()] == [b"0"]


def test_a_row_that_another_range_cannot_carry_out_is_a_dead_letter(db: postroom.Database) -> None:
    db.put(b"z", b"no integer")
    stage(db, Increment(b"z", 1), Put(b"zz", b"1"))
    publish(db)
    assert db.get(b"zz") == b"1"
    (letter,) = db.dead_letters()
    assert "WrongType" in letter.reason
    assert db.status().counters.conserved()


def test_the_last_batch_tells_its_dead_rows_in_all_ranges(db: postroom.Database) -> None:
    assert db.staging.last(QUERY) is None
    bad = [Increment(key, 1) for key in KEYS]
    for key in KEYS:
        db.put(key, b"no integer")
    for batch, rows in enumerate((bad, [*bad, *bad])):
        stage(db, *rows, batch=batch, job=b"%024d" % batch)
        publish(db, batch=batch, job=b"%024d" % batch)
        last = db.staging.last(QUERY)
        assert last is not None
        assert (last.batch, last.dead) == (batch, len(rows))
    with db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"z", 1))  # another client sends it
    assert len(db.dead_letters()) == 3 * len(KEYS) + 1
    assert db.staging.last(QUERY) == last


def test_the_largest_rows_go_to_other_ranges(db: postroom.Database) -> None:
    key, value = b"z" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX
    stage(db, Put(key, value))
    stage(db, EnqueueMessage(key, value), number=1)
    publish(db, 2)
    assert db.get(key) == value
    assert [message.value for message in db.peek(key)] == [value]


def test_rows_of_a_key_keep_their_order_while_ranges_split(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch)
    keys = [*KEYS, b"q", b"r", b"s"]
    number = 0
    for number in range(10):
        writes = [Put(key, b"%d" % number) for key in keys]
        mail = [EnqueueMessage(key, b"%d" % number) for key in keys]
        stage(db, *writes, *mail, number=number)
    more = begin(db, number + 1)
    for at in (b"a", b"r", b"query/1", b"p", b"z", b"query"):  # the last ones move the query
        for _ in range(3):
            more = ask(db, ApplyStaged(QUERY))
        assert more
        db.split(at)
    db.staging.finish(QUERY)
    assert [db.get(key) for key in keys] == [b"9"] * len(keys)
    for key in keys:
        assert [message.value for message in db.peek(key)] == [b"%d" % n for n in range(10)]
    db.drain()
    assert db.status().counters.conserved()
    assert db.staging.read().attempts == 0


def test_a_query_moves_with_its_staged_rows(db: postroom.Database) -> None:
    stage(db, Put(b"a", b"1"), Put(b"z", b"1"))
    db.split(QUERY)
    stage(db, Put(b"n", b"1"), number=1)
    db.split(b"n")
    assert publish(db, 2)
    assert [db.get(key) for key in (b"a", b"n", b"z")] == [b"1"] * 3
    db.split(b"q")
    assert not publish(db, 2)
    assert db.staging.forget(QUERY)


def test_a_full_outbox_ends_a_step_early_and_nothing_is_lost_or_doubled(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(db, *(Increment(key, 1) for key in (b"n", b"a", b"z", b"q")))
    with monkeypatch.context() as patch:
        patch.setattr(limits, "OUTGOING_MAX", 0)
        assert begin(db)
        assert postroom.integer(db.get(b"n")) == 1  # the rows before the first one that is sent
        monkeypatch.setattr("postroom.client.commits.RETRY_SECONDS_MAX", 0.0)
        with pytest.raises(OutboxFull):
            ask(db, ApplyStaged(QUERY))
        assert [db.get(key) for key in (b"a", b"z", b"q")] == [None] * 3
    monkeypatch.undo()
    db.staging.finish(QUERY)
    assert [postroom.integer(db.get(key)) for key in (b"n", b"a", b"z", b"q")] == [1] * 4


def test_a_sweep_and_an_abort_reach_every_range(db: postroom.Database) -> None:
    for number, query in enumerate((b"a", b"n", b"z")):
        for kind in (b"fenced", b"left"):
            rows = packed([Put(b"k", b"1")])
            ask(db, StageRows(query + kind, 7, b"%024d" % number, kind, ATTEMPT, 0, rows))
    assert db.staging.read().attempts == 6
    assert db.staging.abort(b"", 7, sink=b"fenced")
    db.staging.sweep()
    assert (db.staging.read().jobs, db.staging.read().attempts) == (6, 3)
    db.staging.sweep(0.0)
    assert (db.staging.read().jobs, db.staging.read().attempts) == (0, 0)


def test_steps_of_a_sweep_come_to_every_range(db: postroom.Database) -> None:
    for query in (b"a", b"n", b"z"):
        ask(db, StageRows(query, 0, JOB, b"", ATTEMPT, 0, packed([Put(b"k", b"1")])))
        db.staging.abort(query, 0, JOB)
        db.staging.publish(query, 1, b"%024d" % 1, [])
    for _ in range(200):  # each is in any range
        db.staging.sweep_some()
        if not db.staging.read().jobs:
            break
    assert db.staging.read().jobs == 0


def test_lists_of_staged_queries_are_merged(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"a1", b"a2", b"n1", b"n2", b"z1"]
    for name in names:
        db.staging.publish(name, 3, JOB, [])
    assert [each.query for each in db.staging.read().queries] == names
    assert [each.query for each in db.staging.read(b"a2").queries] == names[1:]
    for module in ("messaging.ingest.staging", "client.routing.merges"):
        monkeypatch.setattr(f"postroom.{module}.STAGED_COUNTED_MAX", 2)
    assert [each.query for each in db.staging.read().queries] == names[:2]
    assert [each.query for each in db.staging.read(b"a3").queries] == names[2:4]


def test_batches_that_were_left_half_way_are_finished_in_all_ranges(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch)
    for module in ("messaging.ingest.staging", "client.routing.merges"):
        monkeypatch.setattr(f"postroom.{module}.STAGED_UNFINISHED_MAX", 2)
    names = [name + b"%d" % number for name in (b"a", b"n", b"z") for number in range(3)]
    for name in names:
        rows = packed([Increment(name + b"/%d" % n, 1) for n in range(5)] + [Increment(b"sum", 1)])
        ask(db, StageRows(name, 0, JOB, b"", ATTEMPT, 0, rows))
        ask(db, PublishStaged(name, 0, JOB, [Winner(ATTEMPT, 1)]))
    db.staging.sweep()
    assert postroom.integer(db.get(b"sum")) == len(names)
    assert not any(each.unfinished for each in db.staging.read().queries)


def test_a_batch_is_applied_when_its_rows_have_arrived(
    db: postroom.Database, delivery: Delivery
) -> None:
    stage(db, Put(b"a", b"1"), Put(b"n", b"1"))
    with ThreadPoolExecutor(1) as threads:
        with delivery.stopped():
            publishing = threads.submit(publish, db)
            eventually(lambda: db.get(b"n") == b"1")
            assert db.get(b"a") is None
            assert db.staging.read().queries[0].unfinished
        assert publishing.result()
    assert db.get(b"a") == b"1"


def test_a_split_waits_for_the_rows_that_its_query_has_sent(
    db: postroom.Database, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch)
    stage(db, *(Put(b"a", b"%d" % number) for number in range(10)))
    with ThreadPoolExecutor(1) as threads:
        with delivery.stopped():
            assert begin(db)
            splitting = threads.submit(db.split, QUERY)
            monkeypatch.setattr("postroom.client.commits.RETRY_SECONDS_MAX", 0.0)
            eventually(lambda: _is_paused(db))
            assert len(db.ranges()) == 3
        splitting.result()
    monkeypatch.undo()
    db.staging.finish(QUERY)
    assert db.get(b"a") == b"9"


def _is_paused(db: postroom.Database) -> bool:
    try:
        ask(db, ApplyStaged(QUERY))
    except Unavailable as error:
        return "about to split" in str(error)
    return False


@pytest.mark.parametrize("query", [b"", b"q" * (limits.STAGED_QUERY_BYTES_MAX + 1)])
def test_a_job_of_a_query_that_cannot_be_is_not_fenced(db: postroom.Database, query: bytes) -> None:
    with pytest.raises(Invalid, match="a query has a name"):
        db.staging.abort(query, 0, JOB)
    assert db.staging.read().jobs == 0


def test_a_range_that_takes_nothing_holds_up_only_batches_with_rows_for_it(
    db: postroom.Database, delivery: Delivery
) -> None:
    delivery.deaf = b"x"
    with db.begin() as tx:
        tx.put(b"n", b"1")
        tx.enqueue_message(b"z", b"of another client")
    stage(db, Put(b"a", b"1"), Put(b"n", b"2"))
    assert publish(db)
    stage(db, Put(b"a", b"3"), batch=1, job=b"%024d" % 1)
    ask(db, PublishStaged(QUERY, 1, b"%024d" % 1, [Winner(ATTEMPT, 1)]))
    assert db.split(QUERY).start == QUERY
    db.staging.finish(QUERY)
    assert db.get(b"a") == b"3"
    delivery.deaf = None


def test_a_split_waits_without_a_pause_while_too_much_from_others_is_on_its_way(
    db: postroom.Database, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.messaging.outbox.LOOKED_FOR_AT_ONCE", 1)
    monkeypatch.setattr("postroom.messaging.ingest.batches._PARTS_LOOKED_AT", 1)
    small_steps(monkeypatch)
    delivery.deaf = b"x"
    with db.begin() as tx:
        tx.put(b"n", b"1")
        for _ in range(5):
            tx.enqueue_message(b"z", b"of another client")
    stage(db, *(Put(b"a", b"%d" % number) for number in range(10)))
    assert begin(db)
    with ThreadPoolExecutor(1) as threads:
        splitting = threads.submit(db.split, QUERY)
        db.staging.finish(QUERY)
        assert db.get(b"a") == b"9"
        delivery.deaf = None
        splitting.result()


@pytest.mark.parametrize("kind", [Increment, EnqueueMessage])
def test_a_batch_leaves_half_of_the_outbox_to_others(
    db: postroom.Database, delivery: Delivery, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    small_steps(monkeypatch)
    monkeypatch.setattr(limits, "OUTGOING_MAX", 12)
    value: Any = 1 if kind is Increment else b"1"
    stage(db, *(kind(b"a", value) for _ in range(30)))
    with ThreadPoolExecutor(1) as threads:
        with delivery.stopped():
            publishing = threads.submit(publish, db)
            eventually(lambda: db.status().counters.outgoing >= 6)
            with db.begin() as tx:
                tx.put(b"n", b"1")
                tx.enqueue_message(b"z", b"of another client")
            assert db.status().counters.outgoing <= 9
        assert publishing.result()
    if kind is Increment:
        assert postroom.integer(db.get(b"a")) == 30
    else:
        assert len(db.peek(b"a", 100)) == 30


def test_a_batch_has_few_rows_on_their_way_at_a_time(
    db: postroom.Database, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_steps(monkeypatch)
    monkeypatch.setattr(limits, "STAGED_OUTGOING_MAX", 6)
    stage(db, *(Increment(b"a", 1) for _ in range(30)))
    with ThreadPoolExecutor(1) as threads:
        with delivery.stopped():
            publishing = threads.submit(publish, db)
            eventually(lambda: db.status().counters.outgoing >= 6)
            for _ in range(5):
                with pytest.raises(OutboxFull):
                    db.sender.run(_step_once(db))
            assert db.status().counters.outgoing <= 8
        assert publishing.result()
    assert postroom.integer(db.get(b"a")) == 30


async def _step_once(db: postroom.Database) -> None:
    """Carry out a step, and do not try again."""
    await db.sender.send(alone(db.sender, QUERY, ApplyStaged(QUERY)))
