"""The report as Spark makes it, of a store and its archive together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.testing
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.layers.report import run as reporting
from postroom.layers.report.page import ROWS_MAX
from postroom.pipeline.jobs import archive, report
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import LocalArchiveFolder
from postroom.pipeline.jobs.archive.newest import note_begun, note_trimmed
from postroom.pipeline.jobs.job import JobFailed
from tests.client.stores import Store


def work(db: postroom.Database, number: int) -> None:
    with db.begin() as tx:
        for index in range(5):
            tx.enqueue("a", b"", id=f"{number}-{index}", key=b"user/%d" % index, kind="k")
            tx.enqueue("b", b"", id=f"{number}-{index}")
            tx.enqueue_message(b"in/%d" % (index % 2), b"")
    for name in ("a", "b"):
        while messages := db.queue(name).claim(10):
            for message in messages:
                if message.id.endswith("-4") and name == "b":
                    message.reject(0, reason="no such user")
                else:
                    message.acknowledge()
    with db.begin() as tx:
        tx.reap_queue(b"in/0")


def select(rows: list[Any], **wanted: object) -> list[Any]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_messages_of_archive_and_store_count_once(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    kept, folder = str(tmp_path / "archive"), tmp_path / "report"
    a = db.create_queue("a", archive=True)
    db.create_queue("b", max_attempts=2)
    work(db, 1)
    archive(spark, store, kept)  # gc_ttl has not passed: the store has all of it, too
    work(db, 2)
    with db.begin() as tx:
        tx.enqueue("a", b"", id="later", deliver_at=1000)
        tx.enqueue_message(b"in/0", b"", deliver_at=1000)
    result = report(spark, store, str(folder), archive=kept, title="the shop")
    assert (result.done, result.waiting, result.dead) == (10 + 8 + 6, 1 + 4, 2)
    rows = spark.read.parquet(str(folder / "measures")).collect()
    assert len(rows) == result.rows
    done = {row["queue"]: row["messages"] for row in select(rows, level="queue", measure="retries")}
    assert done == {"a": 10, "b": 8, "": 6}
    (prefix,) = select(rows, level="prefix", measure="delivery to reap")
    assert (prefix["prefix"], prefix["messages"]) == ("in", 6)
    (kind,) = select(rows, level="kind", measure="retries", queue="a")
    assert (kind["kind"], kind["max"]) == ("k", 0.0)
    took = [
        ((message.done_at >> LOGICAL_BITS) - (message.fired_at >> LOGICAL_BITS)) / 1000
        for message in a.archive()
        if message.done_at is not None and message.fired_at is not None
    ]
    (row,) = select(rows, level="queue", measure="firing to acknowledgement", queue="a")
    assert len(took) == row["messages"] == 10
    assert row["max"] == max(took)
    assert row["mean"] == pytest.approx(sum(took) / 10)
    assert min(took) <= row["p50"] <= row["p90"] <= row["p99"] <= row["max"]
    hours = select(rows, level="queue and period", source="queue")
    flows = {
        name: sum(each["messages"] for each in select(hours, measure=name))
        for name in ("enqueued", "done", "dead")
    }
    assert flows == {"enqueued": 21, "done": 18, "dead": 2}
    newest = max(each["period"] for each in select(hours, measure="backlog", queue="a"))
    (backlog,) = select(hours, measure="backlog", queue="a", period=newest)
    assert backlog["messages"] == 1
    (reason,) = select(rows, measure="dead, by reason")
    assert (reason["queue"], reason["kind"], reason["messages"]) == ("b", "no such user", 2)
    page = (folder / "report.html").read_text()
    assert "each second" in page, "all of it took less than minutes"
    assert "Messages of the shop" in page
    assert "no such user" in page


def test_a_foreign_archive_is_refused_by_the_report(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    for _ in range(2):  # never archived, and then into another folder
        with pytest.raises(JobFailed, match="no archive"):
            report(spark, store, str(tmp_path / "report"), archive=str(tmp_path / "misspelt"))
        note_trimmed(db, manifests.ArchiveManifest(1, "mine"))
    other = manifests.encode(manifests.ArchiveManifest(1, "another"))
    LocalArchiveFolder(tmp_path / "another").put_new(manifests.manifest_path(1), other)
    with pytest.raises(JobFailed, match="another store"):
        report(spark, store, str(tmp_path / "report"), archive=str(tmp_path / "another"))


def test_all_is_read_again_when_there_is_a_new_manifest_meanwhile(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []

    def write(*given: object) -> None:
        reads.append(given[3])

    def newest(*_: object) -> bool:
        return False

    monkeypatch.setattr(reporting, "_write", write)
    monkeypatch.setattr(reporting, "_is_newest", newest)
    store: Mapping[str, str] = {"connect": served, "insecure": "true"}
    note_begun(db, manifests.ArchiveManifest(0, "mine"))
    content = manifests.encode(manifests.ArchiveManifest(1, "mine"))
    LocalArchiveFolder(tmp_path / "archive").put_new(manifests.manifest_path(1), content)
    with pytest.raises(JobFailed, match="new manifest"):
        report(spark, store, str(tmp_path / "report"), archive=str(tmp_path / "archive"), hours=2)
    assert len(reads) == 3
    assert all(each.at - each.since == from_seconds(2 * 3600) for each in reads)


def test_the_backlog_of_busy_queues_is_counted_back_from_what_is_there(spark: Any) -> None:
    """It is, too, where many others have more that waits."""
    rows = [("now", "queue", f"{number:04}", "ready", 1000) for number in range(10 * ROWS_MAX)]
    rows.append(("now", "queue", "busy", "ready", 7))
    table = spark.createDataFrame(
        rows, "measure string, source string, queue string, kind string, messages bigint"
    )
    assert reporting._now(table, ["busy"])["queue", "busy"] == {"ready": 7}
    assert len(reporting._now(table, [])) == 10 * ROWS_MAX


def test_history_that_is_collected_while_it_is_asked_for_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with postroom.testing.Store() as store:
        store.db.put(b"k", b"v")
        early = reporting.report_bounds(store.db, None, int(store.db.now()), 0, "/")
        store.advance(5000)
        store.db.put(b"k", b"w")
        store.advance(5000)
        late, found = reporting.report_bounds, [early]
        monkeypatch.setattr(
            reporting, "report_bounds", lambda *given: (found or [late(*given)]).pop()
        )
        with store.db.hold() as at, reporting._protected(store.db, None, int(at), 0, "/") as what:
            assert what.after_inboxes > early.after_inboxes


def test_a_damaged_queue_is_left_out_and_named() -> None:
    store = Store()
    for name in ("sound", "torn"):
        store.db.create_queue(name)
    definition = keys.queue_definitions_prefix(1) + b"torn"
    store.engine.inner.write({definition: b"\x93\x01"}, sync=True)
    store.restart()
    what = reporting.report_bounds(store.db, None, int(store.db.now()), 0, "/")
    assert what.after_queues == {"sound": 0}
    (told,) = reporting._left_out(what)
    assert "the queue 'torn' is damaged" in told
