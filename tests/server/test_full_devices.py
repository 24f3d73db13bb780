"""A store whose device is full: it is read, takes deletions, and is written again when it can be.

On file systems of its own where one may be mounted, and with injected faults anywhere.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import errors
from postroom.kv import engine_folder
from postroom.kv.engine import EngineFailed, EngineFull
from postroom.kv.engine_folder import EngineName, OpenFolder
from postroom.kv.folder import DeviceFull
from postroom.kv.full_device import ReopeningEngine
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.opening import open_engine, open_to_read
from postroom.kv.storage import Storage
from postroom.server import disk_guard
from tests.kv.on_disk import INSTALLED

MIB = 1024 * 1024
PATIENCE_SECONDS = 30.0


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 48 MiB."""
    folder = tmp_path / "device"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(device: Path, free_bytes: int = 0) -> None:
    """Leave so much free, all at once; or less, if the store writes meanwhile."""
    with (device / "filler").open("ab") as filler:
        while (amount := free_on(device) - free_bytes) > 0:
            with contextlib.suppress(OSError):  # the store has taken some of it
                os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, amount)


def free_on(device: Path) -> int:
    """Return how many bytes are free."""
    room = os.statvfs(device)
    return room.f_bavail * room.f_frsize


def opened(device: Path, engine: EngineName | None = None, **options: Any) -> Any:
    """Open a store that tells a refused caller at once."""
    db: Any = postroom.open(device / "store", engine=engine, **options)
    db._core._sender.patience_seconds = 0.0
    return db


def refused(db: Any) -> None:
    """Wait until the store has found out that there is no room."""
    for _ in range(2000):
        try:
            db.put(b"01", b"value")
        except errors.Unavailable as error:
            assert "nothing was changed" in str(error)  # noqa: PT017 - it may take several
            return
    raise AssertionError("everything is taken")


def put_at_last(db: Any, key: bytes, seconds: float = 100.0) -> None:
    """Put something, as soon as there is room."""
    for _ in range(int(seconds / 0.05)):
        try:
            return db.put(key, b"value")
        except errors.Unavailable:
            db._core._sender._stopped.wait(0.05)
    raise AssertionError(db.status().refused)


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_store_on_a_full_device_is_read_and_takes_deletions(
    device: Path, engine: EngineName
) -> None:
    with opened(device, engine) as db:
        for number in range(50):
            db.put(b"%02d" % number, bytes(20_000))
        assert not db.status().refused
        fill(device)
        refused(db)
        assert len(list(db.scan())) == 50
        db.delete(b"00")
        db.delete_range(b"01", b"10")
        assert len(list(db.scan())) == 40
        assert db.get(b"49") == bytes(20_000)
        assert "is full" in db.status().refused
        (device / "filler").unlink()
        put_at_last(db, b"new")
        assert not db.status().refused
    with opened(device) as db:
        assert len(list(db.scan())) == 41


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("left", [4096, 24_576, 49_152])
def test_a_device_that_is_full_all_at_once_stops_no_store(
    device: Path, engine: EngineName, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little room the log has left, and although no thread has had time to make more."""
    monkeypatch.setattr(Storage, "_make_spare", lambda _: None)
    with opened(device, engine) as db:
        for number in range(20):
            db.put(b"%02d" % number, bytes(20_000))
        db.put(b"key", b"value")
        log = db._core._sender.node.engine._log
        while log._segments[-1].file.size - log._end > left:
            db.put(b"key", b"value")
        fill(device)
        for _ in range(10):
            refused(db)
        db.delete(b"key")  # a large value needs as much of the log
        assert len(list(db.scan())) == 20
        (device / "filler").unlink()
        put_at_last(db, b"new")


def eventually(holds: Callable[[], object], act: Callable[[], object]) -> None:
    """Act, which may be refused, until something holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until
        with contextlib.suppress(errors.Unavailable):
            act()


def test_deleted_data_is_compacted_while_room_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_guard, "COMPACT_SECONDS", 0.1)
    with opened(tmp_path) as db:
        storage, compacted = db._core._sender.node.engine, list[Any]()
        monkeypatch.setattr(storage.applied, "compact", lambda *span: compacted.append(span))
        monkeypatch.setattr(storage.state, "free_bytes", lambda: 10 * MIB)
        eventually(lambda: compacted, lambda: db.delete(b"key"))
        assert db.status().refused


def test_the_log_gets_room_for_deletions_while_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "_make_spare", lambda _: None)
    with opened(tmp_path) as db:
        storage = db._core._sender.node.engine
        assert not storage._log.has_spare
        monkeypatch.setattr(storage.state, "free_bytes", lambda: 10 * MIB)
        eventually(lambda: storage._log.has_spare, lambda: db.put(b"key", b"value"))


@pytest.mark.parametrize("free", [0, 1, 3, 10, 100])
def test_deletions_are_taken_at_any_amount_of_free_space(
    tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushes and compactions of the store may need 464 MiB."""
    with opened(tmp_path) as db:
        for number in range(20):
            db.put(b"%02d" % number, b"value")
        queue = db.create_queue("q")
        with db.begin() as tx:
            tx.enqueue("q", b"message")
        (message,) = queue.claim(1)
        state = db._core._sender.node.engine.state
        monkeypatch.setattr(state, "free_bytes", lambda: free * MIB)
        monkeypatch.setattr(state, "working_bytes", lambda: 464 * MIB)
        refused(db)
        assert db.status().refused
        message.acknowledge()
        db.delete(b"00")
        assert db.delete_range(b"01", b"10") == 9
        queue.drop()
        assert len(list(db.scan())) == 10
        refused(db)


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("free", [1, 3, 10])
def test_a_nearly_full_device_takes_deletions(device: Path, engine: EngineName, free: int) -> None:
    with opened(device, engine, disk_reserve_bytes=8 * MIB) as db:
        for number in range(300):
            db.put(b"%03d" % number, bytes(20_000))
        fill(device, free * MIB)
        refused(db)
        for number in range(5):  # the log has room for so many, whatever the engine takes
            db.delete(b"%03d" % number)
        assert db.status().refused
        assert len(list(db.scan())) == 295
        (device / "filler").unlink()
        put_at_last(db, b"new")
    with opened(device) as db:
        assert len(list(db.scan())) == 296


@pytest.mark.parametrize("engine", INSTALLED)
def test_deletions_are_refused_before_the_log_has_no_room_left(
    device: Path, engine: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "_make_spare", lambda _: None)
    with opened(device, engine) as db:
        for number in range(500):
            db.put(b"%03d" % number, b"value")
        fill(device)
        refused(db)
        deleted = 0
        with contextlib.suppress(errors.Unavailable):
            while deleted < 500:
                db.delete(b"%03d" % deleted)
                deleted += 1
        assert deleted < 500
        assert "nothing written" in db.status().refused
        assert len(list(db.scan())) == 500 - deleted
        (device / "filler").unlink()
        put_at_last(db, b"new")
        db.delete(b"499")


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_store_opens_on_a_full_device(
    device: Path, engine: EngineName, caplog: pytest.LogCaptureFixture
) -> None:
    db = opened(device, engine)
    for number in range(50):
        db.put(b"%02d" % number, bytes(20_000))
    fill(device)
    db.delete(b"00")
    db.close()
    with opened(device) as db:
        assert len(list(db.scan())) == 49
        assert db.get(b"49") == bytes(20_000)
        refused(db)
        assert db.status().refused
        assert "the device is full" in caplog.text
        db.delete(b"01")
    with opened(device) as db:
        assert len(list(db.scan())) == 48
        (device / "filler").unlink()
        put_at_last(db, b"new")
        assert len(list(db.scan())) == 49


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_folder_that_is_opened_to_read_is_left_as_it_is(
    tmp_path: Path, engine: EngineName
) -> None:
    folder = tmp_path / "store"
    written = open_engine(folder, engine)
    written.write({b"%d" % number: bytes(1000) for number in range(100)}, sync=True)
    written.close()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "owner"}
    read = open_to_read(folder)
    assert read.get(b"7") == bytes(1000)
    assert len(list(read.iterate(b"", b"\xff"))) == 100
    assert "no room" in read.full
    with pytest.raises(EngineFull, match="for reading only"):
        read.write({b"a": b"1"}, sync=False)
    with pytest.raises(errors.StoreLocked):
        open_engine(folder)
    read.close()
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "owner"}
    assert {name: after[name] for name in before if name != "LOG"} == {
        name: content for name, content in before.items() if name != "LOG"
    }
    open_engine(folder).close()


def test_an_engine_is_opened_again_when_there_is_room() -> None:
    disk = MemoryDisk(capacity_bytes=100)
    engine = ReopeningEngine(partial(MemoryEngine, disk), partial(MemoryEngine, disk))
    engine.write({b"a": bytes(50)}, sync=False)
    with pytest.raises(EngineFull):
        engine.write({b"b": bytes(500)}, sync=False)
    with pytest.raises(EngineFull):
        engine.prepare({b"b": b""})
    assert engine.get(b"a") == bytes(50)
    disk.capacity_bytes = None
    assert engine.open_again()
    engine.write({b"b": bytes(500)}, sync=False)
    assert engine.get(b"b") == bytes(500)


def test_a_folder_that_cannot_be_written_is_opened_to_read() -> None:
    disk = MemoryDisk()
    is_full = True

    def open_to_write() -> MemoryEngine:
        if is_full:
            raise DeviceFull("no room")
        return MemoryEngine(disk)

    def to_read() -> MemoryEngine:
        engine = MemoryEngine(disk)
        disk.capacity_bytes = 0
        with pytest.raises(EngineFull):
            engine.write({b"a": b"1"}, sync=False)
        return engine

    engine = ReopeningEngine(open_to_write, to_read)
    assert engine.full
    assert not engine.open_again()
    is_full, disk.capacity_bytes = False, None
    assert engine.open_again()
    assert not engine.full


def test_a_sync_that_finds_no_room_is_a_failure_like_any_other(tmp_path: Path) -> None:
    folder = OpenFolder(tmp_path / "store", INSTALLED[0], create=True)
    error = folder.failure(OSError(28, "No space left on device"))
    assert type(error) is EngineFailed
    assert type(folder.failure(Exception("IO error: No space left on device"))) is EngineFull
    folder.release()


def test_the_room_that_is_needed_follows_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OpenFolder(tmp_path / "store", INSTALLED[0], create=True)
    monkeypatch.setattr(OpenFolder, "free_bytes", lambda _: 100 * MIB)
    assert folder.working_bytes(16 * MIB) == 0
    (folder.path / "000001.log").write_bytes(bytes(1000))
    (folder.path / "000002.ldb").write_bytes(bytes(7000))
    # The log is flushed; what that comes to, and all tables, are compacted.
    assert folder.working_bytes(16 * MIB) == 1000 + 8000
    monkeypatch.setattr(engine_folder, "COMPACTED_TABLES", 0)
    assert folder.working_bytes(100) == 1600  # both engines limit a compaction
    folder.release()
