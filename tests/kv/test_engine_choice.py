"""The engine that opens a folder: its writer; for a new one the engine that was asked for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import postroom
import postroom.aio
from postroom.errors import Error, StoreCorrupted, VersionMismatch
from postroom.kv import engine_folder, opening
from postroom.kv.engine_folder import ENGINE_FILE, ENGINES, EngineName, engine_of
from postroom.kv.opening import open_engine
from tests.kv.on_disk import INSTALLED, OnDisk

PAIRS = list(itertools.permutations(INSTALLED, 2))
"""Pairs of the engine that wrote a folder and one to open it: none where there is only one."""


def written_by(engine: EngineName, folder: Path) -> dict[str, bytes]:
    """Make a store; its files, but for diaries and locks."""
    with postroom.open(folder, engine=engine) as db:
        db.put(b"key", engine.encode())
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(("LO", "owner"))
    }


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_folder_is_opened_by_the_engine_that_wrote_it(tmp_path: Path, engine: EngineName) -> None:
    written_by(engine, tmp_path)
    assert (tmp_path / ENGINE_FILE).read_text() == f"{engine}\n"
    assert engine_of(tmp_path) == engine
    with postroom.open(tmp_path) as db:
        assert db.get(b"key") == engine.encode()
    with postroom.open(tmp_path, engine=engine) as db:
        assert db.get(b"key") == engine.encode()


def test_a_new_folder_is_written_by_the_first_that_is_installed(tmp_path: Path) -> None:
    postroom.open(tmp_path).close()
    assert engine_of(tmp_path) == INSTALLED[0]


@pytest.mark.parametrize(("written", "asked"), PAIRS)
def test_the_other_engine_is_refused(
    tmp_path: Path, written: EngineName, asked: EngineName
) -> None:
    before = written_by(written, tmp_path)
    match = (
        f"written by the engine {written}.* by {asked}. Nothing was changed: ask for .*{written}"
    )
    with pytest.raises(VersionMismatch, match=match):
        postroom.open(tmp_path, engine=asked)
    with pytest.raises(VersionMismatch, match=match):
        OnDisk(asked).open(tmp_path)  # not even when nobody has looked before
    assert files(tmp_path) == before
    with postroom.open(tmp_path) as db:
        assert db.get(b"key") == written.encode()


@pytest.mark.parametrize("engine", INSTALLED)
def test_the_asyncio_form_chooses_too(tmp_path: Path, engine: EngineName) -> None:
    async def scenario() -> None:
        async with await postroom.aio.open(tmp_path, engine=engine) as db:
            await db.put(b"key", b"1")

    asyncio.run(scenario())
    assert engine_of(tmp_path) == engine


@pytest.mark.parametrize("engine", INSTALLED)
def test_a_folder_without_the_file_is_refused(tmp_path: Path, engine: EngineName) -> None:
    before = written_by(engine, tmp_path)
    (tmp_path / ENGINE_FILE).unlink()
    for asked in (None, engine):
        with pytest.raises(VersionMismatch, match=r"before 0\.2 wrote it.* Nothing was changed"):
            postroom.open(tmp_path, engine=asked)
    before.pop(ENGINE_FILE)
    assert files(tmp_path) == before
    (tmp_path / ENGINE_FILE).write_text(f"{engine}\n")
    with postroom.open(tmp_path) as db:
        assert db.get(b"key") == engine.encode(), "the line in the message repairs it"


def test_the_engine_name_of_a_start_that_was_cut_does_not_bind(tmp_path: Path) -> None:
    """The name is written before the store is made."""
    for name in ("leveldb", "rocksdb", ""):
        (tmp_path / "owner").touch()
        (tmp_path / ENGINE_FILE).write_text(name)
        (tmp_path / "engine.new").write_text("rock")
        assert engine_of(tmp_path) is None
    with postroom.open(tmp_path, engine=INSTALLED[-1]) as db:
        db.put(b"key", b"1")
    assert engine_of(tmp_path) == INSTALLED[-1]
    assert not (tmp_path / "engine.new").exists()


def test_an_engine_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    before = written_by(INSTALLED[0], tmp_path)
    (tmp_path / ENGINE_FILE).write_text("lmdb\n")
    with pytest.raises(VersionMismatch, match=r"written by the engine 'lmdb', and this .* knows"):
        postroom.open(tmp_path)
    assert files(tmp_path) == before | {ENGINE_FILE: b"lmdb\n"}


@pytest.mark.parametrize("content", [b"", b"leveldb", b"\x00" * 8, b"level\xe4\n", b"x\n" * 80])
def test_a_name_that_is_damaged_is_refused(tmp_path: Path, content: bytes) -> None:
    written_by(INSTALLED[0], tmp_path)
    (tmp_path / ENGINE_FILE).write_bytes(content)
    with pytest.raises(StoreCorrupted, match="its file engine contains no name"):
        postroom.open(tmp_path)
    assert (tmp_path / ENGINE_FILE).read_bytes() == content


@pytest.mark.parametrize("written", INSTALLED)
def test_a_name_that_is_not_what_the_files_are_is_damage(
    tmp_path: Path, written: EngineName
) -> None:
    before = written_by(written, tmp_path)
    other = next(engine for engine in ENGINES if engine != written)
    (tmp_path / ENGINE_FILE).write_text(f"{other}\n")
    with pytest.raises(
        StoreCorrupted, match=f"file engine says {other}, .* are those of {written}"
    ):
        postroom.open(tmp_path)
    assert files(tmp_path) == before | {ENGINE_FILE: f"{other}\n".encode()}


def test_a_store_that_was_only_just_made(tmp_path: Path) -> None:
    """RocksDB makes CURRENT before any file that LevelDB would not make."""
    (tmp_path / ENGINE_FILE).write_text("rocksdb\n")
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    assert engine_of(tmp_path) == "rocksdb"


def test_only_names_of_engines(tmp_path: Path) -> None:
    for path in (tmp_path / "new", ":memory:"):
        with pytest.raises(ValueError, match='engine is "leveldb" or "rocksdb", or None'):
            postroom.open(path, engine="lmdb")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


# --- an engine that is not installed


@pytest.fixture
def uninstall(monkeypatch: pytest.MonkeyPatch) -> Callable[[EngineName], None]:
    """Return a function after whose call the package of an engine cannot be found."""

    def gone(engine: EngineName) -> None:
        def is_installed(asked: EngineName) -> bool:
            return asked != engine and asked in INSTALLED

        for module in (engine_folder, opening):
            monkeypatch.setattr(module, "is_installed", is_installed)

    return gone


@pytest.mark.parametrize(("written", "left"), PAIRS)
def test_a_folder_of_an_engine_that_is_not_installed(
    tmp_path: Path, uninstall: Callable[[EngineName], None], written: EngineName, left: EngineName
) -> None:
    before = written_by(written, tmp_path / "store")
    other = tmp_path / "other"
    written_by(left, other)
    uninstall(written)
    for engine in (None, written):
        with pytest.raises(VersionMismatch, match=rf"by the engine {written}.*pip install"):
            open_engine(tmp_path / "store", engine)
    with pytest.raises(VersionMismatch, match=rf"engine {left}, and .*by {written}. Nothing"):
        open_engine(other, written)
    with pytest.raises(
        VersionMismatch, match=rf"engine {written}, and .*by {left}.*pip install"
    ) as e:
        open_engine(tmp_path / "store", left)
    assert "postroom[" not in str(e.value), "there is no index to install that from"
    assert files(tmp_path / "store") == before
    open_engine(tmp_path / "new").close()
    assert engine_of(tmp_path / "new") == left


@pytest.mark.parametrize("engine", ENGINES)
def test_asking_for_an_engine_that_is_not_installed(
    tmp_path: Path, uninstall: Callable[[EngineName], None], engine: EngineName
) -> None:
    uninstall(engine)
    with pytest.raises(Error, match=rf"cannot be opened by {engine}.*needs the package.*pip inst"):
        open_engine(tmp_path / "new", engine)
    assert not (tmp_path / "new").exists()
