"""A store tells its format: an older one that is read gets the newest, another one is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import msgspec
import pytest

import postroom
from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import marker
from postroom.kv.marker import FORMAT_VERSION, MARKER_KEY
from postroom.kv.memory import MemoryEngine
from postroom.kv.opening import open_engine
from postroom.server import opening
from postroom.server.opening import STORE_KEY, StoreRecord, open_store, read_store

CLUSTER = b"c" * 16


def engine_with(record: bytes) -> MemoryEngine:
    engine = MemoryEngine()
    engine.write({STORE_KEY: record}, sync=True)
    return engine


def test_a_store_is_made_in_the_newest_format() -> None:
    engine = MemoryEngine()
    made = open_store(engine, Random(1), 1)
    assert made == read_store(engine) == StoreRecord(FORMAT_VERSION, made.cluster_id, 1)
    assert msgspec.msgpack.decode(engine.get(STORE_KEY) or b"") == [
        "postroom", FORMAT_VERSION, made.cluster_id, 1,
    ]  # fmt: skip


def test_a_store_of_an_older_format_that_is_read_gets_the_newest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_with(msgspec.msgpack.encode(StoreRecord(FORMAT_VERSION, CLUSTER, 1)))
    for module in (marker, opening):
        monkeypatch.setattr(module, "FORMAT_VERSION", FORMAT_VERSION + 1)
    assert open_store(engine, Random(1), 1) == StoreRecord(FORMAT_VERSION + 1, CLUSTER, 1)
    monkeypatch.undo()
    with pytest.raises(VersionMismatch, match=f"format {FORMAT_VERSION + 1}.*nothing was changed"):
        read_store(engine)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_postroom_0_1_is_refused(version: int) -> None:
    engine = engine_with(msgspec.msgpack.encode([version, CLUSTER, 1]))
    with pytest.raises(VersionMismatch, match=rf"by Postroom 0\.1 \(its format {version}\)"):
        read_store(engine)


def test_a_record_of_another_shape_is_damage() -> None:
    for fields in ([], ["postroom"], ["postroom", 1], ["postroom", 1, CLUSTER, "x"], ["other", 1]):
        with pytest.raises(StoreCorrupted, match="cannot be read"):
            read_store(engine_with(msgspec.msgpack.encode(fields)))


def test_a_folder_of_postroom_0_1_is_refused_by_open(tmp_path: Path) -> None:
    postroom.open(tmp_path).close()
    engine = open_engine(tmp_path)
    old = b"\x93\x02\xc4\x10" + b"j" * 16 + b"\xcf" + (7).to_bytes(8, "big")
    engine.write({MARKER_KEY: old}, sync=True)
    engine.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    with pytest.raises(VersionMismatch, match=r"by Postroom 0\.1 .* give another folder"):
        postroom.open(tmp_path)
    engine = open_engine(tmp_path)
    assert engine.get(MARKER_KEY) == old
    engine.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()} == before
