"""Backups of several ranges with staged rows and loads, which go on in the restored store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.backup import restore
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.ingest.requests import LoadRows, PublishStaged, StageRows, Winner
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import Increment, Put
from tests.backup.moves import split_store

QUERIES = (b"a query", b"n query", b"z query")
JOB, ATTEMPT, RUN = b"j" * 24, b"a" * 16, b"r" * 16
SPOTS = (b"b", b"n", b"z")


def ask(db: postroom.Database, write: Any) -> Any:
    return db.sender.run(repeat_one(db.sender, write))


def stage(db: postroom.Database, query: bytes) -> None:
    for number in range(4):
        rows: list[Any] = [Increment(spot + b"/n", 1) for spot in SPOTS]
        rows += [Put(spot + b"/" + query, b"%d" % number) for spot in SPOTS]
        rows += [EnqueueMessage(spot + b"/" + query, b"%d" % number) for spot in SPOTS]
        ask(db, StageRows(query, 0, JOB, b"", ATTEMPT, number, packed(rows)))


def load(db: postroom.Database, keys: list[bytes]) -> None:
    stream = db.staging.stream()
    stream.send(LoadRows(b"load", RUN, keys, [b"1"] * len(keys)))
    stream.flush()


@pytest.mark.parametrize("sends", [False, True])
def test_batches_and_loads_go_on_in_the_restored_store(
    sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch is staged, one is half applied, and one has all of its rows on their way."""
    monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 10)
    if not sends:
        monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    with split_store() as db:
        db.staging.begin_load(b"load", RUN, b"load", None)
        load(db, [b"load/1", b"n/load", b"z/load"])
        for query in QUERIES:
            stage(db, query)
        for query in QUERIES[1:]:
            ask(db, PublishStaged(query, 0, JOB, [Winner(ATTEMPT, 4)]))
        db.backup(tmp_path / "full")
    monkeypatch.undo()
    with postroom.open(":memory:") as db:
        restore(db, tmp_path / "full")
        db.staging.sweep()
        db.staging.publish(QUERIES[0], 0, JOB, [(ATTEMPT, 4)])
        db.drain()
        for spot in SPOTS:
            assert postroom.integer(db.get(spot + b"/n")) == 4 * len(QUERIES)
            for query in QUERIES:
                key = spot + b"/" + query
                assert db.get(key) == b"3"
                assert [each.value for each in db.peek(key)] == [b"0", b"1", b"2", b"3"]
        load(db, [b"load/1", b"load/2", b"n/load", b"z/load"])
        assert db.staging.end_load(b"load", RUN, b"load", None, done=True, keep=True)
        assert db.staging.read().attempts == 0
        assert db.status().counters.conserved()
