"""Exports: what is in the folder is the store at one timestamp, or there is no export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import postroom
from postroom.backup import reading
from postroom.errors import Invalid, SnapshotTooOld
from postroom.pipeline.jobs.export import export
from postroom.pipeline.jobs.export_files import Folder, Manifest, decoded
from postroom.pipeline.jobs.job import JobFailed
from postroom.pipeline.jobs.restore import restore
from postroom.server.loopback import LoopbackServer
from tests.client.images import Workload, read
from tests.pipeline.jobs.in_process import InProcess, Killed

exporting = import_module("postroom.pipeline.jobs.export")
restoring = import_module("postroom.pipeline.jobs.restore")
QUEUES = list(Workload.QUEUES)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Run the tasks of both jobs here."""
    return InProcess(monkeypatch, exporting, restoring)


@pytest.fixture
def store(served: str) -> dict[str, str]:
    return {"connect": served, "insecure": "true"}


@pytest.fixture
def filled(db: postroom.Database) -> postroom.Database:
    """Return a store in which a little of everything has happened."""
    work = Workload(db, 3, delays=(None, 3600.0))
    for _ in range(60):
        work.step()
    with db.begin() as tx:
        for number in range(3000):
            tx.put(b"many/%05d" % number, b"%d" % number * 20)
    return db


@pytest.fixture
def other(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Serve another store, which is empty."""
    server = LoopbackServer(tmp_path / "other", create=True)
    yield {"connect": server.address, "insecure": "true"}
    server.close()


def connected(store: dict[str, str]) -> Any:
    return postroom.connect(store["connect"], insecure=True)


def test_an_export_can_be_restored_into_an_empty_store(
    tasks: InProcess, filled: postroom.Database, store: dict[str, str], other: dict[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(exporting, "FILE_BYTES", 20_000)
    monkeypatch.setattr(exporting, "BATCH_ROWS", 100)
    monkeypatch.setattr(reading, "_PAGE_BYTES", 10_000)
    folder = str(tmp_path / "export")
    _, before = read(filled)
    told: list[tuple[str, int, int | None]] = []
    done = export(None, store, folder, progress=lambda *now: told.append(now))  # type: ignore[arg-type]
    assert sum(done.rows.values()) == len(before)
    assert done.rows["data"] >= 3000
    assert done.files > 8
    assert not done.done_before
    assert told[-1] == ("exporting parts", tasks.begun, tasks.begun)
    assert replace(done, done_before=True) == export(None, store, folder)  # type: ignore[arg-type]
    tasks.twice = True
    back = restore(None, other, folder)  # type: ignore[arg-type]
    assert (back.rows, back.timestamp, back.files_before) == (done.rows, done.timestamp, 0)
    with connected(other) as db:
        _, after = read(db)
        assert after == before
        assert db.get(b"many/00042") == filled.get(b"many/00042")
    again = restore(None, other, folder)  # type: ignore[arg-type]
    assert again.done_before
    with pytest.raises(Invalid, match="not empty"):
        restore(None, store, folder)  # type: ignore[arg-type]


def test_the_files_of_an_export_hold_the_store_and_its_manifest(
    tasks: InProcess, filled: postroom.Database, store: dict[str, str], tmp_path: Path
) -> None:
    tasks.twice = True
    filled.increment(b"number", 5)
    done = export(None, store, str(tmp_path / "export"))  # type: ignore[arg-type]
    table = pq.read_table(tmp_path / "export" / "data")
    assert table.num_rows == done.rows["data"], "files of tasks that ran twice are gone"
    rows = {row["key"]: row for row in table.to_pylist()}
    assert rows.keys() == {key for key, _ in filled.scan()}
    row = rows[b"many/00007"]
    assert (row["value"], row["integer"]) == (b"7" * 20, False)
    assert row["timestamp"] <= done.timestamp
    assert abs(row["time"] - postroom.Timestamp(row["timestamp"]).datetime).total_seconds() < 0.01
    assert rows[b"number"]["integer"]
    inbox = pq.read_table(tmp_path / "export" / "inbox")
    assert set(inbox["key"].to_pylist()) == {info.key for info in filled.inboxes()}
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert manifest["tables"]["data"]["rows"] == table.num_rows
    assert manifest["timestamp"] == done.timestamp


def test_an_export_that_was_killed_is_begun_anew(
    tasks: InProcess, filled: postroom.Database, store: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / "export"
    for kill_at in (0, 1):
        tasks.begun, tasks.kill_at = 0, kill_at
        with pytest.raises(Killed):
            export(None, store, str(folder))  # type: ignore[arg-type]
        assert Folder(str(folder)).manifest() is None
    tasks.kill_at = None

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "_replace", killed)
        with pytest.raises(Killed):
            export(None, store, str(folder))  # type: ignore[arg-type]
    (folder / "manifest.json.new").write_text("half")
    (folder / "started.json").rename(folder / "started.json.new")
    filled.put(b"later", b"1")
    done = export(None, store, str(folder))  # type: ignore[arg-type]
    named = {file.path for file in _manifest(folder).files}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
    assert found == named
    assert {path.name for path in folder.glob("*.json*")} == {"manifest.json", "started.json"}
    assert b"later" in pq.read_table(folder / "data")["key"].to_pylist()
    assert done.rows["data"] == len(list(filled.scan()))


def _manifest(folder: Path) -> Manifest:
    found = Folder(str(folder)).manifest()
    assert found is not None
    return found


def test_another_leader_means_another_snapshot(
    tasks: InProcess, filled: postroom.Database, store: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    del filled
    times = [0]
    whole = exporting.check_counts

    def deposed(*given: Any, **named: Any) -> None:
        times[0] += 1
        if times[0] < 3:
            raise SnapshotTooOld("another node leads")
        whole(*given, **named)

    monkeypatch.setattr(exporting, "check_counts", deposed)
    export(None, store, str(tmp_path / "one"))  # type: ignore[arg-type]
    assert tasks.begun == 6
    times[0] = -10
    with pytest.raises(JobFailed, match="leader changed"):
        export(None, store, str(tmp_path / "two"))  # type: ignore[arg-type]
    assert Folder(str(tmp_path / "two")).manifest() is None


def test_a_folder_that_is_no_export_is_left_alone(
    tasks: InProcess, store: dict[str, str], db: postroom.Database, tmp_path: Path
) -> None:
    del tasks, db
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "precious").write_text("1")
    for _ in range(2):
        with pytest.raises(Invalid, match="not empty"):
            export(None, store, str(folder))  # type: ignore[arg-type]
        assert (folder / "data" / "precious").exists()
        (folder / "started.json").write_text('{"export": "x"}')
        (folder / "notes.txt").write_text("1")


def test_files_that_miss_something_are_no_export(
    tasks: InProcess, filled: postroom.Database, store: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    del tasks, filled
    gathered = exporting._gathered

    def forgetful(pages: Any) -> Any:
        return ((table, rows[1:] or rows) for table, rows in gathered(pages))

    monkeypatch.setattr(exporting, "_gathered", forgetful)
    with pytest.raises(JobFailed, match="entries are in the files"):
        export(None, store, str(tmp_path / "export"))  # type: ignore[arg-type]
    assert Folder(str(tmp_path / "export")).manifest() is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"export": "zz"},
        {"timestamp": "x"},
        {"files": [{"table": "data", "path": "../x", "rows": 1, "bytes": 1, "sha256": ""}]},
        {"files": [{"table": "data", "path": "data/a/b", "rows": 1, "bytes": 1, "sha256": ""}]},
        {"files": [{"table": "x", "path": "x/b", "rows": 1, "bytes": 1, "sha256": ""}]},
    ],
)
def test_a_manifest_that_is_none(change: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "format": 1, "export": "0" * 32, "timestamp": 1, "time": "", "ranges": [1], "tables": {},
        "files": [],
    }  # fmt: skip
    decoded(json.dumps(sound).encode(), "here")
    with pytest.raises(Invalid):
        decoded(json.dumps(sound | change).encode(), "here")
    with pytest.raises(Invalid):
        decoded(b"[" * 100_000, "here")
