"""Folders of all kinds, opened on devices of all kinds: the documented error; nothing changes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
import postroom.aio
from postroom import errors
from postroom.kv import keys
from postroom.kv.engine_folder import EngineName, descriptors_for_tables
from postroom.kv.marker import FORMAT_VERSION
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.opening import open_engine
from postroom.server.opening import StoreRecord
from tests.client.refusals import MIB, in_transaction, refused
from tests.client.stores import Store
from tests.client.watched_engine import dump
from tests.kv.on_disk import INSTALLED, OnDisk

# --- opening


@pytest.mark.parametrize("options", [{"durability": "sometimes"}, {"gc_ttl": 0}, {"codec": "x"}])
def test_unknown_options_are_value_errors(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        postroom.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("engine", INSTALLED)
def test_the_status_tells_the_budget_of_memory_and_what_is_in_use(
    tmp_path: Path, engine: EngineName
) -> None:
    with postroom.open(tmp_path / "store", memory_bytes=9 * MIB, engine=engine) as db:
        storage = db.status().storage
        assert storage.engine == engine
        assert storage.memory_bytes == 9 * MIB
        assert storage.tables_open_max >= descriptors_for_tables()
        assert storage.own_bytes > MIB
        assert storage.mapped_bytes > MIB


def test_the_asyncio_form_has_a_budget_too(tmp_path: Path) -> None:
    async def run() -> postroom.Status:
        async with await postroom.aio.open(tmp_path / "store", memory_bytes=9 * MIB) as db:
            return await db.status()

    assert asyncio.run(run()).storage.memory_bytes == 9 * MIB


def test_a_path_is_a_name_or_a_path() -> None:
    with pytest.raises(TypeError, match="path is a folder's name"):
        postroom.open(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path is empty"):
        postroom.open("")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"gc_ttl": "60"}, TypeError, "gc_ttl is a number of seconds, not str"),
        ({"gc_ttl": True}, TypeError, "gc_ttl is a number of seconds, not bool"),
        ({"disk_reserve_bytes": -1}, ValueError, "disk_reserve_bytes is at least 0, not -1"),
        ({"disk_reserve_bytes": 1.5}, TypeError, "disk_reserve_bytes is a whole number, not float"),
        ({"memory_bytes": 1 << 20}, ValueError, "memory_bytes is at least 8388608, not 1048576"),
        ({"memory_bytes": "1GiB"}, TypeError, "memory_bytes is a whole number, not str"),
    ],
)
def test_numbers_are_checked(
    tmp_path: Path, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        postroom.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_an_impossible_folder_is_refused_without_damage(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    names = ("n" * 300, "round/store")
    anywhere = [Path("/proc/store")] if Path("/proc").is_dir() else []
    for path in (*(tmp_path / name for name in names), *anywhere):
        with pytest.raises(postroom.Invalid, match=r"no folder .*; nothing was changed: give ano"):
            postroom.open(path)


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a store, but for the engine's diary and the locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("LO", "owner"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store on disk, closed."""
    with postroom.open(tmp_path / "store") as db:
        db.put(b"a", b"1")
    return tmp_path / "store"


_HOLD = "import sys, postroom; db = postroom.open(sys.argv[1]); print('open', flush=True); input()"


def test_a_folder_that_another_process_has_open(folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        match = rf"{folder} is open in process {holder.pid} on host .*close it there"
        with pytest.raises(errors.StoreLocked, match=match):
            postroom.open(folder)
        holder.kill()
    with postroom.open(folder) as db:
        assert db.get(b"a") == b"1"


def test_a_folder_that_this_process_has_open(folder: Path) -> None:
    with postroom.open(folder) as db:
        match = rf"open already, in this process \({os.getpid()}\): use that Database"
        with pytest.raises(errors.StoreLocked, match=match):
            postroom.open(folder)
        db.put(b"a", b"2")
    with postroom.open(folder) as db:
        assert db.get(b"a") == b"2"


def test_a_folder_whose_list_of_files_is_damaged(folder: Path) -> None:
    (manifest,) = folder.glob("MANIFEST-*")
    manifest.write_bytes(b"\x00" * 100)
    before = files(folder)
    with pytest.raises(errors.StoreCorrupted, match=f"{folder} is damaged.*from a backup"):
        postroom.open(folder)
    assert files(folder) == before


def test_a_folder_whose_data_is_damaged(folder: Path) -> None:
    (table,) = OnDisk(INSTALLED[0]).tables(folder)
    table.write_bytes(bytes(255 - byte for byte in table.read_bytes()[:100]) * 4)
    before = table.read_bytes()
    with pytest.raises(errors.StoreCorrupted, match=f"{folder} is damaged.*Nothing was changed"):
        postroom.open(folder)
    assert table.read_bytes() == before


def rewrite_record(folder: Path, record: bytes) -> None:
    engine = open_engine(folder)
    engine.write({keys.store_key("store"): record}, sync=True)
    engine.close()


def contents(folder: Path) -> dict[bytes, bytes]:
    engine = open_engine(folder)
    try:
        return dump(engine)
    finally:
        engine.close()


def test_a_folder_of_a_newer_format(folder: Path) -> None:
    newer = StoreRecord(FORMAT_VERSION + 1, b"cluster", 1)
    rewrite_record(folder, msgspec.msgpack.encode(newer))
    before = contents(folder)
    with pytest.raises(
        errors.VersionMismatch, match=f"format {FORMAT_VERSION + 1}.*open it with a"
    ):
        postroom.open(folder)
    assert contents(folder) == before


def test_a_folder_whose_store_record_is_damaged(folder: Path) -> None:
    rewrite_record(folder, b"\xc1")
    before = contents(folder)
    with pytest.raises(errors.StoreCorrupted):
        postroom.open(folder)
    assert contents(folder) == before


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "else")
    engine.write({b"foreign": b"1"}, sync=True)
    engine.close()
    before = contents(tmp_path / "else")
    with pytest.raises(errors.StoreCorrupted, match=r"b'foreign'.*not a Postroom store.*give anot"):
        postroom.open(tmp_path / "else")
    assert contents(tmp_path / "else") == before


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.Invalid, match=r"is a file, and a store is a folder"):
        postroom.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# --- devices


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of its own, of 24 MiB."""
    folder = tmp_path / "device"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(*arguments: str) -> None:
    if os.geteuid() or subprocess.run(["mount", *arguments], check=False).returncode:
        pytest.skip("needs the right to mount a file system")


def test_a_read_only_device(device: Path) -> None:
    with postroom.open(device / "store", disk_reserve_bytes=0) as db:
        db.put(b"a", b"1")
    before = files(device / "store")
    mount("-o", "remount,ro", str(device))
    with pytest.raises(errors.AccessDenied, match=r"Read-only file system.*how its device is moun"):
        postroom.open(device / "store")
    assert files(device / "store") == before


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(errors.AccessDenied, match="its owner and permissions"):
        postroom.open(folder)
    folder.chmod(0o700)


def test_a_device_that_fills_up_refuses_writes_in_time(device: Path) -> None:
    store = Store(partial(open_engine, device / "store"), disk_reserve_bytes=4 * MIB)
    store.db.put(b"a", b"1")
    filler = device / "filler"
    filler.write_bytes(bytes(device_room(device) - 2 * MIB))
    store.advance(0.1)
    refused(store, lambda db: db.put(b"a", b"2"), errors.Unavailable, r"only \d+ bytes are free.*")
    store.db.delete(b"a")
    refused(store, in_transaction(lambda tx: tx.reap_queue(b"a")), errors.Unavailable, "free some")
    assert store.db.get(b"a") is None
    filler.unlink()
    store.advance(1.1)
    store.db.put(b"a", b"2")
    store.db.close()


def device_room(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def test_a_full_device_without_a_reserve_loses_nothing(device: Path) -> None:
    acknowledged = -1
    db = postroom.open(device / "store", disk_reserve_bytes=0)
    (device / "filler").write_bytes(bytes(device_room(device) - 2 * MIB))

    def fill() -> None:
        nonlocal acknowledged
        for number in range(100):
            db.put(b"%03d" % number, bytes(100_000))
            acknowledged = number

    with pytest.raises((errors.CommitUnknown, errors.Unavailable)):
        fill()
    # If the state finds no room first, the store is still read. If the log does, it has stopped.
    try:
        first: bytes | str | None = db.get(b"000")
    except errors.Unavailable as error:
        first = str(error)
    assert first == bytes(100_000) or re.search("a write failed.*that the device has", str(first))
    db.close()
    (device / "filler").unlink()
    with postroom.open(device / "store", disk_reserve_bytes=0) as db:
        found = len(list(db.scan()))
        assert acknowledged + 1 <= found <= acknowledged + 2
        db.put(b"a", b"1")


def test_a_store_in_memory_that_fills_up_refuses_writes_in_time() -> None:
    disk = MemoryDisk(capacity_bytes=4 * MIB)
    store = Store(partial(MemoryEngine, disk), disk_reserve_bytes=2 * MIB)
    for number in range(2):
        store.db.put(b"%d" % number, bytes(MIB))
    store.advance(0.1)
    refused(store, lambda db: db.put(b"a", b"1"), errors.Unavailable, "are kept in reserve")
    store.db.delete(b"0")
    assert store.db.get(b"0") is None
