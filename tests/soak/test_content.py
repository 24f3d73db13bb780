"""The findings of a soak in a folder that holds more than it ought to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import postroom
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.opening import open_engine
from postroom.ranges.contract import ROOT_ID
from tests.soak import content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with postroom.open(tmp_path / "store") as db:
        for number in range(100):
            db.put(b"key", b"%d" % number)
        with db.begin() as tx:
            tx.enqueue_message(b"inbox", b"message")
    return tmp_path


def _engine(folder: Path) -> Path:
    (current,) = folder.rglob("CURRENT")
    return current.parent


def test_growth_that_can_be_explained_is_not_reported(folder: Path) -> None:
    told, wrong = content.look_through(folder)
    assert wrong == []
    assert len(told) == 1
    assert "history" in told[0]


def test_a_version_that_is_on_no_list(folder: Path) -> None:
    engine = open_engine(_engine(folder), create=False)
    stamp = from_seconds(1.0).to_bytes(8, "big")
    old = {keys.history_key(keys.head_key(b"key"), stamp): b"v" + stamp + b"forgotten"}
    engine.write(dict(old), sync=True)
    engine.close()
    assert any("nobody will ever remove" in each for each in content.look_through(folder)[1])


def test_garbage_that_is_not_collected(folder: Path) -> None:
    engine = open_engine(_engine(folder), create=False)
    engine.write({keys.garbage_prefix(ROOT_ID) + keys.u64(from_seconds(1.0)): b"\x90"}, sync=True)
    engine.close()
    assert any("is not collected" in each for each in content.look_through(folder)[1])


def test_values_that_nobody_wrote(folder: Path) -> None:
    with postroom.open(folder / "store") as db, db.begin() as tx:
        for number in range(content.VALUES_MAX):
            tx.put(b"%d" % number, b"")
    assert any("nobody writes so many" in each for each in content.look_through(folder)[1])


def test_tables_that_hold_nothing(folder: Path) -> None:
    for number in range(content.UNCOMPACTED_TABLES + 2):
        shutil.copy(_engine(folder) / "LOCK", _engine(folder) / f"9{number:05}.ldb")
    wrong = content.look_through(folder)[1]
    assert any("tables for" in each for each in wrong), wrong


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    assert content.look_through(tmp_path)[1] == ["no store was found"]
