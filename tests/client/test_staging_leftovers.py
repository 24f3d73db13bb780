"""The leftovers of staging are taken back in bounded steps, and none is overlooked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client.staging import packed
from postroom.client.sync import CoreDatabase
from postroom.errors import Invalid
from postroom.messaging.ingest import staging
from postroom.messaging.ingest.requests import PublishStaged, StageRows, SweepStaged, Winner
from postroom.ranges.requests import Increment, Put
from tests.client.stores import Store
from tests.client.test_staging import ask, attempt_of, job_of, publish, small_steps, stage

__all__ = ["small_steps"]


@pytest.fixture
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGED_SWEPT_AT_ONCE_MAX", 3)


def jobs_of(db: CoreDatabase, count: int, **fields: Any) -> None:
    for number in range(count):
        stage(db, [Put(b"a", b"")], job=number + 1, **fields)


def test_steps_of_sweeping_go_on_where_the_one_before_has_stopped(
    store: Store, few_looks: None
) -> None:
    """Leftovers are found behind many records that stay."""
    db = store.db
    jobs_of(db, 10)
    store.restart(after_seconds=24 * 3600.0 + 1)
    for query in range(5):
        db.staging.publish(b"query/%d" % query, 0, job_of(20), [])
    left = [db.staging.read().jobs]
    for _ in range(6):
        db.staging.sweep_some()
        left.append(db.staging.read().jobs)
    assert left == [10, 10, 9, 6, 3, 0, 0]
    db.staging.sweep(0.0)
    assert len(db.staging.read().queries) == 5  # they may come back


def test_each_step_of_sweeping_is_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    db = store.db
    jobs_of(db, 20)
    store.advance(61.0)
    monkeypatch.setattr(limits, "STAGED_SWEPT_AT_ONCE_MAX", 6)
    monkeypatch.setattr(limits, "STAGED_DELETED_AT_ONCE_MAX", 5)
    begin, left = b"", []
    while begin or not left:
        begin = ask(db, SweepStaged(60.0, begin))
        left.append(db.staging.read().jobs)
    assert all(0 <= one - other <= 6 for one, other in pairwise(left))
    assert left[-1] == db.staging.read().attempts == 0
    assert ask(db, SweepStaged(0.0, b"\xff" * 100)) == b""
    assert ask(db, SweepStaged(0.0, b"\x02a")) == b""


def test_a_batch_left_half_published_is_found_among_many_queries(
    store: Store, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGED_COUNTED_MAX", 3)
    monkeypatch.setattr(staging, "STAGED_UNFINISHED_MAX", 2)
    db = store.db
    for number in range(8):
        db.staging.publish(b"a%d" % number, 0, job_of(50 + number), [])
    for number in range(5):
        rows = packed([Increment(b"k%d/%d" % (number, n), 1) for n in range(4)])
        query, job, attempt = b"z%d" % number, job_of(number), attempt_of(1)
        ask(db, StageRows(query, 0, job, b"", attempt, 0, rows))
        ask(db, PublishStaged(query, 0, job, [Winner(attempt, 1)]))
    db.staging.sweep_some(finish=True)
    assert [postroom.integer(value) for _, value in db.scan()] == [1] * 20


def test_all_jobs_of_a_sink_are_aborted_however_many_there_are(
    db: postroom.Database, few_looks: None
) -> None:
    jobs_of(db, 7, sink=b"mine")
    stage(db, [Put(b"a", b"2")], job=9, sink=b"mine", batch=1)
    assert db.staging.abort(b"", 0, sink=b"mine")
    for number in range(7):
        with pytest.raises(Invalid, match="was aborted"):
            publish(db, (1, 1), job=number + 1)
    assert db.staging.read().attempts == 1
