"""The archive as Spark writes and reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import Invalid
from postroom.pipeline.jobs import archive
from postroom.pipeline.jobs.archive import read_archive
from postroom.pipeline.jobs.archive.folders import HadoopFolder, open_folder


class Killed(BaseException):
    """The death of a process, as good as kill -9."""


def finish(db: postroom.Database, *ids: str) -> None:
    with db.begin() as tx:
        for id_ in ids:
            tx.enqueue("q/é", id_.encode(), id=id_, kind="k", headers={"n": 1}, group="g")
            tx.enqueue_message(b"inbox", id_.encode())
    q = db.queue("q/é")
    while messages := q.claim(10):
        q.acknowledge(messages)
    with db.begin() as tx:
        tx.reap_queue(b"inbox")


def test_history_is_in_files_once_and_is_read_back(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    folder = str(tmp_path / "an archive [*]" / "of é {a,b}?\\z")
    q = db.create_queue("q/é", archive=True)
    with pytest.raises(Invalid, match="no archive"):
        read_archive(spark, str(tmp_path / "nothing"))
    nothing = archive(spark, store, str(tmp_path / "nothing"))
    assert (nothing.number, nothing.files, nothing.rows) == (1, 0, 0)
    assert read_archive(spark, str(tmp_path / "nothing")).queues.count() == 0
    finish(db, "a", "b")
    first = archive(spark, store, folder)
    assert (first.queue_messages, first.inbox_messages, first.files, first.rows) == (2, 2, 2, 4)
    finish(db, "c")

    def kill(step: str) -> None:
        if step == "manifest":
            raise Killed

    with pytest.raises(Killed):
        archive(spark, store, folder, failpoint=kill)
    left = {each.path for each in open_folder(spark, folder).files("files")}
    told: list[tuple[str, int, int | None]] = []
    second = archive(spark, store, folder, files_max=1, progress=lambda *given: told.append(given))
    assert (second.queue_messages, second.inbox_messages) == (1, 1)
    assert (second.files, second.rows, second.compacted) == (2, 6, 4)
    assert {stage for stage, _, _ in told} == {
        "history into files", "fewer files", "out of the store",
    }  # fmt: skip
    found = read_archive(spark, folder)
    rows = {bytes(row["id"]): row for row in found.queues.collect()}
    assert set(rows) == {b"a", b"b", b"c"}
    (message,) = (each for each in q.archive() if each.id == "c")
    row = rows[b"c"]
    assert (row["queue"], row["kind"], row["group"], row["state"]) == ("q/é", "k", "g", "archived")
    assert (bytes(row["payload"]), row["headers"]) == (b"c", '{"n": 1}')
    assert (row["created_at"], row["fired_at"], row["done_at"]) == (
        message.created_at, message.fired_at, message.done_at,
    )  # fmt: skip
    assert sorted(bytes(each["value"]) for each in found.inboxes.collect()) == [b"a", b"b", b"c"]
    paths = {each.path for each in open_folder(spark, folder).files("files")}
    assert all(each.startswith("files/1-") for each in left & paths), "what was killed is gone"
    manifest = json.loads((Path(folder) / "manifests" / "00000002.json").read_text())
    assert all(
        Path(each["path"]).parts[4].startswith(("q=q__-", "day=")) for each in manifest["files"]
    )


def test_another_file_system_is_asked_through_spark(spark: Any, tmp_path: Path) -> None:
    assert not isinstance(open_folder(spark, "file:///tmp/x"), HadoopFolder)
    root = f"file://{tmp_path}/else where%20[x]"
    folder = HadoopFolder(spark._jvm, spark._jsc.hadoopConfiguration(), root)
    assert folder.files("manifests") == []
    content = bytes(range(256)) * 300
    assert folder.put_new("manifests/1.json", content)
    assert not folder.put_new("manifests/1.json", b"two")
    assert folder.read("manifests/1.json") == content
    assert ("manifests/1.json", len(content)) in folder.files("manifests")
    folder.sync(["manifests/1.json"])
    folder.delete("manifests/1.json")
    assert folder.files("manifests") == []
    with pytest.raises(Invalid, match="driver"):
        open_folder(object(), "hdfs://elsewhere/x")  # type: ignore[arg-type]
