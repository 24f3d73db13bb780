"""A folder is free again once its engine is closed, in whatever state that is.

An error of it that is still held does not keep it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Error, StoreCorrupted
from postroom.kv.engine import BlockDamaged, EngineFailed
from postroom.kv.opening import open_engine
from tests.kv.on_disk import END, INSTALLED, OnDisk

ENGINES = [OnDisk(name) for name in INSTALLED]


@pytest.mark.parametrize("on_disk", ENGINES, ids=lambda each: each.name)
@pytest.mark.parametrize("how", ["get", "iterate", "backwards", "snapshot"])
def test_an_error_of_damage_does_not_keep_the_folder_locked(
    on_disk: OnDisk, tmp_path: Path, how: str
) -> None:
    engine = on_disk.open(tmp_path)
    engine.write({b"%04d" % number: bytes(500) for number in range(100)}, sync=True)
    engine.close()
    sound = {table: table.read_bytes() for table in on_disk.tables(tmp_path)}
    for table, content in sound.items():
        data = bytearray(content)
        data[20:60] = bytes(byte ^ 0xFF for byte in data[20:60])
        table.write_bytes(data)
    engine = on_disk.open(tmp_path)
    reader = engine.snapshot() if how == "snapshot" else engine
    errors: list[Error] = []
    try:
        if how == "iterate":
            list(reader.iterate(b"", END))
        elif how == "backwards":
            list(reader.iterate(b"", END, reverse=True))
        else:
            reader.get(b"0000")
    except BlockDamaged as error:
        errors.append(error)
    assert errors, "damage is noticed"
    engine.close()
    for table, content in sound.items():
        if table.exists():
            table.write_bytes(content)
    on_disk.open(tmp_path).close()


@pytest.mark.parametrize("on_disk", ENGINES, ids=lambda each: each.name)
def test_an_opening_that_fails_half_way_does_not_keep_the_folder_locked(
    on_disk: OnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> None:
        raise OSError(5, "Input/output error")

    on_disk.open(tmp_path).close()
    module: Any = sys.modules[f"postroom.kv.{on_disk.name}"]
    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_path", fails)
        with pytest.raises(StoreCorrupted) as failed:
            on_disk.open(tmp_path)
    on_disk.open(tmp_path).close()
    assert failed.value is not None


@pytest.mark.parametrize("on_disk", ENGINES, ids=lambda each: each.name)
def test_a_closing_that_fails_does_not_keep_the_folder_locked(
    on_disk: OnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = open_engine(tmp_path, on_disk.name)
    engine.write({b"a": b"1"}, sync=True)

    def fails(**_: object) -> None:
        raise EngineFailed("the device refuses")

    monkeypatch.setattr(engine, "_flush", fails)
    with pytest.raises(EngineFailed) as failed:
        engine.close()
    assert on_disk.count(tmp_path) == 1
    assert failed.value is not None
