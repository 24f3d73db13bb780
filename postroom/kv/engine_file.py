"""The engine of a folder: the file ``engine``, one line with its name.

It is durable before the engine makes its first file, and never changes. LevelDB would read the
files of RocksDB, its descendant, as far as it understands them, and RocksDB those of LevelDB. Each
deletes the files that it does not know. A folder is therefore opened by the engine that wrote it,
or not at all.

A database without this file is not opened. If the other files contradict it, the folder is damaged:
RocksDB writes ``OPTIONS-*`` and ``IDENTITY``, LevelDB neither.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from postroom.errors import Error, VersionMismatch, how_to_install
from postroom.kv.folder import damaged, sync_folder

EngineName: TypeAlias = Literal["leveldb", "rocksdb"]

ENGINE_FILE: Final = "engine"
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""All that a folder can be written by. A new one is written by the first that is installed."""

PACKAGES: Final[dict[EngineName, str]] = {"leveldb": "plyvel", "rocksdb": "rocksdict"}

_NEW_ENGINE_FILE: Final = "engine.new"
_LINE_BYTES: Final = 100
_LINE: Final = re.compile(rb"[a-z]+\n")
_HOW_TO_INSTALL: Final[dict[EngineName, str]] = {
    "leveldb": "pip install plyvel (it has no ready wheels for Python 3.13 and later)",
    "rocksdb": how_to_install("rocksdb"),
}


def is_installed(engine: EngineName) -> bool:
    """Return whether the package that ``engine`` needs can be imported."""
    return find_spec(PACKAGES[engine]) is not None


def engine_of(folder: Path) -> EngineName | None:
    """Return the engine that wrote ``folder``; ``None``: there is no store in it.

    Raises:
        VersionMismatch: this version does not know that engine, or nothing tells it.
        StoreCorrupted: the file is damaged, or the others are those of another engine.
        OSError: it cannot be read.
    """
    if not (folder / "CURRENT").exists():
        return None
    name = _read(folder)
    for engine in ENGINES:
        if engine == name:
            return _not_contradicted(folder, engine)
    if name is None:
        raise VersionMismatch(
            f"The folder {folder} holds a database without the file {ENGINE_FILE!r}, which tells "
            "its engine: a version of Postroom before 0.2 wrote it, or another program, or the "
            "file was lost. Nothing was changed: open it with the version that wrote it, or give "
            f"another folder. A lost file is one line, {' or '.join(ENGINES)}."
        )
    raise VersionMismatch(
        f"The store in {folder} was written by the engine {name!r}, and this version of Postroom "
        f"knows {' and '.join(ENGINES)}. Nothing was changed: open it with a version that knows it."
    )


def claim(folder: Path, engine: EngineName) -> None:
    """Make sure that ``folder``, which the caller holds, is one of ``engine``, now and later.

    Raises:
        VersionMismatch: another engine wrote it.
        StoreCorrupted: the file is damaged, or the others are those of another engine.
        OSError: it cannot be read or written.
    """
    written = engine_of(folder)
    if written not in {None, engine}:
        assert written is not None
        raise mismatch(folder, written, engine)
    if written is None:
        _write(folder, engine)


def mismatch(folder: Path, written: EngineName, asked: EngineName) -> VersionMismatch:
    """Return the error for a folder of another engine than the one that was asked for."""
    return VersionMismatch(
        f"The store in {folder} was written by the engine {written}, and cannot be opened by "
        f"{asked}. Nothing was changed: ask for the engine {written}, or for none in particular, "
        f"or give another folder.{_needs(written)}"
    )


def not_installed(folder: Path, engine: EngineName, *, written: bool) -> Error:
    """Return the error for an engine whose package is not installed.

    The folder was written by ``engine``, or is to be written by it.
    """
    if written:
        return VersionMismatch(
            f"The store in {folder} was written by the engine {engine}. Nothing was changed."
            f"{_needs(engine)}"
        )
    return Error(f"The store in {folder} cannot be opened by {engine}.{_needs(engine)}")


def _needs(engine: EngineName) -> str:
    if is_installed(engine):
        return ""
    return (
        f" The engine {engine} needs the package {PACKAGES[engine]}, which is not installed: "
        f"{_HOW_TO_INSTALL[engine]}."
    )


def _told_by_files(folder: Path) -> EngineName | None:
    """``None``: there are none yet that only one engine makes."""
    if (folder / "IDENTITY").exists() or any(folder.glob("OPTIONS-*")):
        return "rocksdb"
    return "leveldb" if any(folder.glob("*.ldb")) else None


def _not_contradicted(folder: Path, named: EngineName) -> EngineName:
    told = _told_by_files(folder)
    if told in {None, named}:
        return named
    raise damaged(folder, f"its file engine says {named}, and its other files are those of {told}")


def _read(folder: Path) -> str | None:
    try:
        with (folder / ENGINE_FILE).open("rb") as file:
            line = file.read(_LINE_BYTES)
    except FileNotFoundError:
        return None
    if not _LINE.fullmatch(line):
        raise damaged(folder, f"its file engine holds no name of an engine, but {line!r}")
    return line.decode().rstrip()


def _write(folder: Path, engine: EngineName) -> None:
    """Write the file. A loss of power leaves no file, or a whole one."""
    new = folder / _NEW_ENGINE_FILE
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, f"{engine}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(folder / ENGINE_FILE)
    sync_folder(folder)
