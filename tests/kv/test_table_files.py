"""Table files grow with the store, all of them stay open, and filters keep look-ups from blocks."""

from __future__ import annotations

import os
import random  # noqa: TID251 - seeded
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.kv import engine_folder
from postroom.kv.engine import BlockDamaged, WriteSet
from postroom.kv.engine_folder import (
    LARGEST_TABLE_BYTES,
    SMALLEST_TABLE_BYTES,
    TABLE_BYTES,
    descriptors_for_tables,
    fitting_write_buffer,
    table_bytes,
)
from tests.kv.on_disk import END, INSTALLED, OnDisk

MIB = 1 << 20
GIB = 1 << 30
PAIRS = 20_000


@pytest.fixture(params=INSTALLED)
def on_disk(request: pytest.FixtureRequest) -> OnDisk:
    return OnDisk(request.param)


def _sparse(folder: Path, name: str, size: int) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(size)


@pytest.fixture
def _large_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _device_of(monkeypatch, 1 << 40)


def _device_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    fields = list(os.statvfs("/"))
    fields[1], fields[2] = 4096, size // 4096
    monkeypatch.setattr(engine_folder.os, "statvfs", lambda _: os.statvfs_result(fields))


@pytest.mark.usefixtures("_large_device")
def test_tables_grow_with_the_store(tmp_path: Path) -> None:
    assert table_bytes(tmp_path) == TABLE_BYTES
    _sparse(tmp_path, "000001.ldb", 100 * GIB)
    _sparse(tmp_path, "000001.log", 1000 * GIB)
    assert table_bytes(tmp_path) == 128 * MIB
    _sparse(tmp_path, "000002.sst", 10_000 * GIB)
    assert table_bytes(tmp_path) == LARGEST_TABLE_BYTES


def test_tables_are_small_on_a_small_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _device_of(monkeypatch, 384 * MIB)
    assert table_bytes(tmp_path) == 3 * MIB
    _device_of(monkeypatch, 100 * MIB)
    assert table_bytes(tmp_path) == SMALLEST_TABLE_BYTES


def test_memtables_are_small_on_a_small_device() -> None:
    assert fitting_write_buffer(32 * MIB, 1 << 40) == 32 * MIB
    assert fitting_write_buffer(32 * MIB, GIB) == 16 * MIB
    assert fitting_write_buffer(32 * MIB, 10 * MIB) == 4 * MIB


@pytest.mark.parametrize(
    ("limit", "wanted"), [(1024, 204), (20_000, 4000), (resource.RLIM_INFINITY, 10_000)]
)
def test_a_share_of_the_descriptors_is_for_tables(
    limit: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_folder.resource, "getrlimit", lambda _: (limit, limit))
    assert descriptors_for_tables() == wanted


@pytest.fixture
def filled(on_disk: OnDisk, tmp_path: Path) -> Iterator[Any]:
    """Yield an engine with ``PAIRS`` pairs in table files."""
    source = random.Random(1)
    engine = on_disk.open(tmp_path)
    for first in range(0, PAIRS, 1000):
        writes: WriteSet = {
            b"%08d" % number: source.randbytes(100) for number in range(first, first + 1000)
        }
        engine.write(writes, sync=False)
    engine.compact(b"", END)
    yield engine
    engine.close()


def test_tables_and_how_many_may_be_open_are_told(on_disk: OnDisk, filled: Any) -> None:
    told = filled.table_files()
    assert told.engine == on_disk.name
    assert told.tables >= 1
    assert told.open_max >= descriptors_for_tables()


def test_a_lookup_for_a_key_that_never_was_reads_no_block(
    on_disk: OnDisk, filled: Any, tmp_path: Path
) -> None:
    """Every block is damaged, so whoever reads one raises. Filters and indexes are whole."""
    filled.close()
    for table in on_disk.tables(tmp_path):
        _damage_blocks(table)
    engine = on_disk.open(tmp_path)
    try:
        there = [b"%08d" % number for number in range(0, PAIRS // 2, 10)]
        assert _reads_of_blocks(engine, there) == len(there)
        assert _reads_of_blocks(engine, [key + b"x" for key in there]) < len(there) * 0.03
    finally:
        engine.close()


def _damage_blocks(table: Path) -> None:
    content = bytearray(table.read_bytes())
    for at in range(0, len(content) * 3 // 4, 256):  # filters and indexes come last
        content[at] ^= 0xFF
    table.write_bytes(content)


def _reads_of_blocks(engine: Any, keys: list[bytes]) -> int:
    read = 0
    for key in keys:
        try:
            engine.get(key)
        except BlockDamaged:
            read += 1
    return read
