"""The options of both engines follow from the budget of memory, the descriptors and the store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from postroom.kv import engine_folder
from postroom.kv.engine import Budget
from postroom.kv.engine_folder import table_bytes
from tests.kv.on_disk import INSTALLED, OnDisk

MIB = 1 << 20
BUDGET = Budget(40 * MIB)
OTHER_TABLES_OPEN = 777


@pytest.mark.parametrize("name", INSTALLED)
def test_an_engine_has_its_share_of_memory_and_of_descriptors_and_large_tables(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine_folder.resource,
        "getrlimit",
        lambda _: (5 * OTHER_TABLES_OPEN, 5 * OTHER_TABLES_OPEN),
    )
    given = _of_leveldb if name == "leveldb" else _of_rocksdb
    open_files, options = given(tmp_path, monkeypatch)
    assert open_files >= OTHER_TABLES_OPEN
    assert options == {
        "tables": table_bytes(tmp_path),
        "memtable": BUDGET.write_buffer_bytes,
        "blocks": BUDGET.blocks_bytes,
    }


def _of_leveldb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, int]]:
    from postroom.kv import leveldb  # noqa: PLC0415 - it may not be installed

    seen: dict[str, int] = {}
    make = leveldb.plyvel.DB

    def recorded(*arguments: Any, **options: Any) -> Any:
        seen.update(options)
        return make(*arguments, **options)

    monkeypatch.setattr(leveldb.plyvel, "DB", recorded)
    OnDisk("leveldb").open(folder, budget=BUDGET).close()
    return seen["max_open_files"] - leveldb.OTHER_FILES - leveldb.MAPPED_TABLES, {
        "tables": seen["max_file_size"],
        "memtable": seen["write_buffer_size"],
        "blocks": seen["lru_cache_size"],
    }


def _of_rocksdb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, int]]:
    from postroom.kv import rocksdb  # noqa: PLC0415 - it may not be installed

    blocks: list[int] = []
    make = rocksdb.rocksdict.Cache

    def recorded(size: int) -> Any:
        blocks.append(size)
        return make(size)

    monkeypatch.setattr(rocksdb.rocksdict, "Cache", recorded)
    OnDisk("rocksdb").open(folder, budget=BUDGET).close()
    written = max(folder.glob("OPTIONS-*")).read_text()

    def told(option: str) -> int:
        found = re.search(rf"^ *{option}=(\d+)$", written, re.MULTILINE)
        assert found is not None, option
        return int(found[1])

    return told("max_open_files"), {
        "tables": told("target_file_size_base"),
        "memtable": told("write_buffer_size") // rocksdb.SPARE_FACTOR,
        "blocks": blocks[0],
    }
