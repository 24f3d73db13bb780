"""A folder of a format that is not read is left alone; an older one that is gets the newest."""

from __future__ import annotations

from random import Random  # noqa: TID251 - made from a seed

import msgspec
import pytest

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import keys, marker
from postroom.kv.marker import FORMAT_VERSION, MARKER_KEY
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.storage import Storage
from tests.kv.book import SEGMENT_BYTES, STATE

LOG_ID = b"j" * 16


def read_all(disk: MemoryDisk) -> dict[bytes, bytes]:
    engine = MemoryEngine(disk)
    try:
        storage = Storage.open(engine, disk.log, lambda: LOG_ID, segment_bytes=SEGMENT_BYTES)
    except BaseException:
        engine.close()
        raise
    try:
        return dict(storage.iterate(b"", b"\xff"))
    finally:
        storage.close()


def disk_with(stored: dict[bytes, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    engine.write(dict(stored), sync=True)
    engine.close()
    return disk


def check_unchanged(disk: MemoryDisk, stored: dict[bytes, bytes]) -> None:
    assert dict(disk.content.iterate(b"", b"\xff" * 9)) == stored
    assert not disk.log.files


OF_0_1 = {
    "format 1": msgspec.msgpack.encode([1, b"c" * 16, 1]),
    "format 2": b"\x93\x02\xc4\x10" + LOG_ID + b"\xcf" + keys.u64(7),
}
"""The record in the place of the marker, as Postroom 0.1 wrote it."""


@pytest.mark.parametrize("record", OF_0_1.values(), ids=OF_0_1)
def test_a_folder_of_postroom_0_1_is_refused_and_left_alone(record: bytes) -> None:
    stored = {MARKER_KEY: record, STATE: b"state"}
    disk = disk_with(stored)
    match = r"by Postroom 0\.1 .*nothing was changed: open it with Postroom 0.1, or give another"
    with pytest.raises(VersionMismatch, match=match):
        read_all(disk)
    check_unchanged(disk, stored)


@pytest.mark.parametrize(
    "record",
    [b"", b"\xc1", b"\x90", b"\x91\xa8postroom", b"\x92\xa5other\x01", b"\x94\xa8postroom\x01"],
)
def test_a_marker_that_cannot_be_read_is_damage(record: bytes) -> None:
    stored = {MARKER_KEY: record, STATE: b"state"}
    disk = disk_with(stored)
    with pytest.raises(StoreCorrupted, match=r"cannot be read.*nothing was changed"):
        read_all(disk)
    check_unchanged(disk, stored)


def test_a_folder_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    with monkeypatch.context() as later:
        later.setattr(marker, "FORMAT_VERSION", FORMAT_VERSION + 1)
        read_all(disk)
    before = disk.content.get(MARKER_KEY)
    match = f"format {FORMAT_VERSION + 1}, this version of Postroom reads format {FORMAT_VERSION};"
    with pytest.raises(VersionMismatch, match=match):
        read_all(disk)
    assert disk.content.get(MARKER_KEY) == before


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_folder_of_an_older_format_gets_the_newest_one_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    storage = Storage.open(engine, disk.log, lambda: LOG_ID, segment_bytes=SEGMENT_BYTES)
    storage.serve(list)
    storage.write({STATE: b"state"}, sync=True)
    if is_closed:
        storage.close()
    else:
        disk.crash(Random(1))
    monkeypatch.setattr(marker, "FORMAT_VERSION", FORMAT_VERSION + 1)
    Storage.open(MemoryEngine(disk), disk.log, lambda: LOG_ID, segment_bytes=SEGMENT_BYTES)
    disk.crash(Random(1))
    monkeypatch.undo()
    with pytest.raises(VersionMismatch, match=f"format {FORMAT_VERSION + 1}"):
        read_all(disk)
    monkeypatch.setattr(marker, "FORMAT_VERSION", FORMAT_VERSION + 1)
    assert read_all(disk) == {STATE: b"state"}


class Killed(Exception):
    pass


@pytest.mark.parametrize("power", [None, 1, 2, 3])
def test_a_new_store_whose_making_is_cut_short_anywhere_is_made_again(power: int | None) -> None:
    disk = MemoryDisk()
    read_all(disk)
    writes = disk.writes
    assert writes >= 3
    for number in range(1, writes + 1):
        disk = MemoryDisk()

        def kill(at: int, number: int = number) -> None:
            if at == number:
                raise Killed

        disk.at_write = kill
        with pytest.raises(Killed):
            read_all(disk)
        disk.at_write = None
        disk.crash(None if power is None else Random(power))
        assert read_all(disk) == {}, f"killed at write {number}"
        assert disk.content.get(MARKER_KEY)


def test_something_else_is_left_alone() -> None:
    disk = disk_with({b"foreign": b"1"})
    with pytest.raises(StoreCorrupted, match="not a Postroom store"):
        read_all(disk)
    check_unchanged(disk, {b"foreign": b"1"})


def test_a_log_without_its_state_is_refused() -> None:
    disk = MemoryDisk()
    read_all(disk)
    empty = MemoryDisk()
    empty.log = disk.log
    with pytest.raises(StoreCorrupted, match="The state of the store is missing"):
        read_all(empty)
