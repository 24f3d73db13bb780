"""Restores: killed anywhere and run again, the store is what the export says, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.client.sync_parts import Restore
from postroom.errors import Error
from postroom.pipeline.jobs.export import export
from postroom.pipeline.jobs.export_files import Folder
from postroom.pipeline.jobs.job import JobFailed
from postroom.pipeline.jobs.restore import abandon_restore, restore
from postroom.server.loopback import LoopbackServer
from tests.client.images import Workload, read
from tests.pipeline.jobs.in_process import InProcess, Killed

exporting = import_module("postroom.pipeline.jobs.export")
restoring = import_module("postroom.pipeline.jobs.restore")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Run the tasks of both jobs here."""
    monkeypatch.setattr(restoring, "CHUNK_ROWS", 16)
    return InProcess(monkeypatch, exporting, restoring)


@pytest.fixture
def exported(
    tasks: InProcess, served: str, db: postroom.Database, tmp_path: Path
) -> tuple[str, list[tuple[bytes, bytes]]]:
    """Return the folder of an export, and all that is in it."""
    work = Workload(db, 4, delays=(None, 3600.0))
    for _ in range(40):
        work.step()
    _, found = read(db)
    export(None, {"connect": served, "insecure": "true"}, str(tmp_path / "export"))  # type: ignore[arg-type]
    tasks.begun = 0
    return str(tmp_path / "export"), found


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield an empty store."""
    server = LoopbackServer(tmp_path / "empty", create=True)
    yield {"connect": server.address, "insecure": "true"}
    server.close()


def connected(store: dict[str, str]) -> Any:
    return postroom.connect(store["connect"], insecure=True)


def test_killed_anywhere_and_run_again(
    tasks: InProcess, exported: tuple[str, list[tuple[bytes, bytes]]], empty: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, found = exported
    for method in ("send", "end_part", "end"):
        for times in (0, 2):
            with monkeypatch.context() as patched:
                patched.setattr(Restore, method, _killed_after(getattr(Restore, method), times))
                if method == "end" and times:
                    continue
                with pytest.raises(Killed):
                    restore(None, empty, folder)  # type: ignore[arg-type]
    done = restore(None, empty, folder)  # type: ignore[arg-type]
    assert done.files_before == done.files > 3
    with connected(empty) as db:
        assert read(db)[1] == found
        assert db.status().counters.enqueued > 0
    del tasks


def _killed_after(whole: Any, times: int) -> Any:
    left = [times]

    def method(*given: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return whole(*given)

    return method


def test_damage_is_found_before_anything_of_a_file_is_restored(
    tasks: InProcess, exported: tuple[str, list[tuple[bytes, bytes]]], empty: dict[str, str]
) -> None:
    del tasks
    folder, found = exported
    manifest = Folder(folder).manifest()
    assert manifest is not None
    largest = max(manifest.files, key=lambda file: file.bytes)
    path = Path(folder) / largest.path
    sound = path.read_bytes()
    flipped = sound[:100] + bytes([sound[100] ^ 1]) + sound[101:]
    for damaged in (sound[:-1], flipped, None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(Error, match="checksum"):
            restore(None, empty, folder)  # type: ignore[arg-type]
        path.write_bytes(sound)
    with connected(empty) as db:
        assert db.images.read().state == "restoring"
    restore(None, empty, folder)  # type: ignore[arg-type]
    with connected(empty) as db:
        assert read(db)[1] == found


def test_a_restore_is_abandoned_and_another_one_begun(
    tasks: InProcess, exported: tuple[str, list[tuple[bytes, bytes]]], empty: dict[str, str]
) -> None:
    folder, found = exported
    tasks.kill_at = 3
    with pytest.raises(Killed):
        restore(None, empty, folder)  # type: ignore[arg-type]
    tasks.kill_at = None
    abandon_restore(None, empty)  # type: ignore[arg-type]
    with connected(empty) as db:
        assert not read(db)[1]
    restore(None, empty, folder)  # type: ignore[arg-type]
    with connected(empty) as db:
        assert read(db)[1] == found


def test_a_store_that_counts_something_else_stays_closed(
    tasks: InProcess, exported: tuple[str, list[tuple[bytes, bytes]]], empty: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    del tasks
    folder, _ = exported
    with monkeypatch.context() as patched:
        patched.setattr(Restore, "send", lambda *_: None)
        with pytest.raises(JobFailed, match="it stays closed"):
            restore(None, empty, folder)  # type: ignore[arg-type]
    with connected(empty) as db:
        assert db.images.read().state == "restoring"


def test_a_restore_from_a_folder_without_an_export_fails(
    tasks: InProcess, empty: dict[str, str], tmp_path: Path
) -> None:
    del tasks
    with pytest.raises(JobFailed, match="no export"):
        restore(None, empty, str(tmp_path / "nowhere"))  # type: ignore[arg-type]
    with connected(empty) as db:
        db.put(b"a", b"1")
