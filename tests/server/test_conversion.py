"""A folder of format 1, as an earlier version left it, is opened."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import msgspec
import pytest

import postroom
from postroom.errors import VersionMismatch
from postroom.kv import keys
from postroom.kv.leveldb import LevelDBEngine
from postroom.server import store
from postroom.server.opening import open_storage
from postroom.server.store import STORE_KEY, read_store
from tests.client.stores import Store


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The node writes everything into the engine, where there is no log beside it."""
    made = Store(partial(LevelDBEngine.open, tmp_path / "old"))
    for number in range(50):
        made.db.put(b"key/%d" % number, b"%d" % number)
    with made.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"message")
    made.db.close()
    engine = LevelDBEngine.open(tmp_path / "old")
    record = read_store(engine)
    assert record is not None
    first = msgspec.structs.replace(record, format_version=1)
    engine.write({STORE_KEY: msgspec.msgpack.encode(first)}, sync=True)
    engine.close()
    return tmp_path / "old"


def check(folder: Path) -> None:
    with postroom.open(folder) as db:
        assert [db.get(b"key/%d" % number) for number in range(50)] == [
            b"%d" % number for number in range(50)
        ]
        assert [message.value for message in db.peek(b"inbox")] == [b"message"]
        db.put(b"more", b"1")


def test_it_is_converted_and_goes_on(old: Path) -> None:
    for _ in range(3):
        check(old)
    assert list((old / "log").glob("segment-?"))  # the first is let go where there is little room
    engine = LevelDBEngine.open(old)
    moved = [key for key, _ in engine.iterate(b"", keys.RANGE)]
    engine.close()
    assert moved == [STORE_KEY, keys.raft_log_prefix(1) + b"a"]


def test_the_identity_stays(old: Path) -> None:
    engine = LevelDBEngine.open(old)
    before = read_store(engine)
    engine.close()
    check(old)
    storage = open_storage(old, Random(1))
    assert before is not None
    assert read_store(storage) == msgspec.structs.replace(before, format_version=2)
    storage.close()


def test_an_earlier_version_refuses_it(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(old)
    monkeypatch.setattr(store, "FORMAT_VERSIONS_READ", (1,))
    monkeypatch.setattr(store, "FORMAT_VERSION", 1)
    engine = LevelDBEngine.open(old)
    with pytest.raises(VersionMismatch, match="format 2, this version of Postroom knows 1"):
        read_store(engine)
    engine.close()


def test_a_conversion_that_ended_before_the_segment_had_its_name(old: Path) -> None:
    open_storage(old, Random(1)).close()
    segment = old / "log" / "segment-1"
    segment.rename(segment.with_name("segment-1.new"))
    (old / "log" / "mark").unlink()
    check(old)


def test_what_a_conversion_left_that_had_hardly_begun(old: Path) -> None:
    (old / "log").mkdir()
    (old / "log" / "segment-1.new").write_bytes(b"half of it")
    check(old)


def test_a_copy_from_before_can_still_be_opened(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "copy")
    check(old)
    check(tmp_path / "copy")
