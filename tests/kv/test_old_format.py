"""A store of an earlier format is converted, once, or left alone."""

from __future__ import annotations

from random import Random  # noqa: TID251 - made from a seed

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.marker import MARKER_KEY
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.storage import Storage
from tests.kv.book import SEGMENT_BYTES, STATE, entry, value


def old_store() -> tuple[MemoryDisk, dict[bytes, bytes]]:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    stored = {
        keys.store_key("store"): b"\x93\x01\xc4\x01a\x01",
        keys.store_key("clock ceiling"): keys.u64(77),
        keys.raft_log_prefix(1) + b"h": b"hard",
        entry(1, 8): value(8),
        entry(1, 9): value(9, SEGMENT_BYTES),
        keys.raft_log_prefix(1) + b"s": b"spool",
        STATE: b"state",
    }
    engine.write(dict(stored), sync=True)
    engine.close()
    return disk, stored


def read_all(disk: MemoryDisk) -> dict[bytes, bytes]:
    engine = MemoryEngine(disk)
    try:
        storage = Storage.open(engine, disk.log, lambda: b"j" * 16, segment_bytes=SEGMENT_BYTES)
    except BaseException:
        engine.close()
        raise
    try:
        return dict(storage.iterate(b"", b"\xff"))
    finally:
        storage.close()


def test_a_store_of_format_1_is_converted() -> None:
    disk, stored = old_store()
    assert read_all(disk) == stored
    assert read_all(disk) == stored
    moved = [key for key, _ in disk.content.iterate(b"", keys.RANGE)]
    assert moved == [MARKER_KEY, keys.raft_log_prefix(1) + b"s"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("power", [None, 1, 2, 3])
def test_a_conversion_that_is_cut_short_anywhere_is_begun_again(power: int | None) -> None:
    disk, stored = old_store()
    begun = disk.writes
    read_all(disk)
    for number in range(begun + 1, disk.writes + 1):
        disk, stored = old_store()

        def kill(at: int, number: int = number) -> None:
            if at == number:
                raise Killed

        disk.at_write = kill
        with pytest.raises(Killed):
            read_all(disk)
        disk.at_write = None
        disk.crash(None if power is None else Random(power))
        assert read_all(disk) == stored, f"killed at write {number}"
        assert read_all(disk) == stored


def test_something_else_is_left_alone() -> None:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    engine.write({b"foreign": b"1"}, sync=True)
    engine.close()
    with pytest.raises(StoreCorrupted, match="not a Postroom store"):
        read_all(disk)
    assert list(disk.content.iterate(b"", b"\xff")) == [(b"foreign", b"1")]
    assert not disk.log.files


def test_a_log_without_its_state_is_refused() -> None:
    disk, _ = old_store()
    read_all(disk)
    empty = MemoryDisk()
    empty.log = disk.log
    with pytest.raises(StoreCorrupted, match="The state of the store is missing"):
        read_all(empty)
