"""The archive, and the report, of a store of several ranges that goes on to split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.pipeline.jobs import archive, read_archive, report
from tests.client.stores import Store
from tests.pipeline.jobs.archiving import GC_TTL, Archiver, Killed, killer
from tests.pipeline.jobs.test_report import select, work


@pytest.mark.parametrize("step", ["files of inboxes", "manifest", "trimming"])
def test_a_killed_archive_of_ranges_that_split_has_each_message_once(
    step: str, tmp_path: Path
) -> None:
    archiver = Archiver(Store(), tmp_path)
    cuts = iter([b"1", b"i", b"12", b"2", b"5", b"9"])
    for _ in range(5):
        archiver.db.split(next(cuts))
        archiver.work()
        with pytest.raises(Killed):
            archiver.run(killer(step))
        assert archiver.seen() == archiver.expected
        archiver.store.advance(5)  # inboxes keep their history for longer
    result = archiver.run()
    assert len(archiver.db.ranges()) == 6
    assert archiver.archived() == archiver.seen() == archiver.expected
    assert not result.gaps
    archiver.store.advance(2 * GC_TTL)
    archiver.run()
    assert archiver.db.queue("kept").stats().archived == 0, "it is all in files"
    assert archiver.archived() == archiver.expected


def test_a_report_of_several_ranges_and_their_archive_counts_each_message_once(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    kept, folder = str(tmp_path / "archive"), str(tmp_path / "report")
    db.create_queue("a", archive=True)
    db.create_queue("b", max_attempts=2)
    for cut in (b"1", b"in/1", b"user/3"):
        db.split(cut)
    work(db, 1)
    archive(spark, store, kept)
    db.split(b"in/0")
    work(db, 2)
    db.drain()
    found = read_archive(spark, kept)
    assert (found.queues.count(), found.inboxes.count()) == (5 + 4, 3)
    with db.begin() as tx:
        tx.put(b"a", b"1")
        tx.enqueue_message(b"in/0", b"", deliver_at=1000)
    result = report(spark, store, folder, archive=kept)
    assert (result.done, result.waiting, result.dead) == (10 + 8 + 6, 4, 2)
    rows = spark.read.parquet(f"{folder}/measures").collect()
    done = {row["queue"]: row["messages"] for row in select(rows, level="queue", measure="retries")}
    assert done == {"a": 10, "b": 8, "": 6}
    page = (Path(folder) / "report.html").read_text()
    assert "in outboxes" in page
