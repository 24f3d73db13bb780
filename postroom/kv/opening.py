"""Ways to open a folder: the engine that wrote it does; for a new one that which was asked for.

Two engines stand behind the same port: LevelDB (package ``plyvel``) and RocksDB (``rocksdict``).
Nothing above this package knows which one it is. If neither the folder nor the caller says, the
first one is taken that is installed, LevelDB before RocksDB.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from postroom.kv.engine import DEFAULT_BUDGET, Budget, StateEngine
from postroom.kv.engine_folder import (
    ENGINES,
    EngineName,
    engine_of,
    is_installed,
    mismatch,
    not_installed,
)


def open_engine(
    path: Path,
    engine: EngineName | None = None,
    *,
    create: bool = True,
    replays: bool = False,
    budget: Budget = DEFAULT_BUDGET,
) -> StateEngine:
    """Open the folder ``path``; with ``create``, make it if there is none.

    Args:
        path: the folder.
        engine: which engine; ``None``: the one that wrote it, for a new folder the first that is
            installed.
        create: whether a store is made if there is none.
        replays: another log brings it up to date, and tells how far it must have come.
        budget: of memory.

    Raises:
        ValueError: there is no such engine.
        VersionMismatch: another engine wrote it, or one that is not installed.
        StoreLocked: it is open already, in the process that the message names.
        StoreCorrupted: it is damaged, or contains no store and ``create`` is false.
        AccessDenied: it cannot be written, or is no folder.
        Unavailable: the device is full.
        Invalid: RocksDB only: the path is not UTF-8.
        Error: the engine that was asked for is not installed.
    """
    check_engine_name(engine)
    written = None
    with contextlib.suppress(OSError):  # opening it tells more about it
        written = engine_of(path)
    chosen = engine or written or _first_installed()
    if written not in {None, chosen}:  # also if what was asked for is not installed
        assert written is not None
        raise mismatch(path, written, chosen)
    if not is_installed(chosen):
        raise not_installed(path, chosen, written=written is not None)
    if chosen == "leveldb":
        from postroom.kv.leveldb import LevelDBEngine  # noqa: PLC0415 - it may not be installed

        return LevelDBEngine.open(path, create=create, replays=replays, budget=budget)
    from postroom.kv.rocksdb import RocksDBEngine  # noqa: PLC0415 - it may not be installed

    return RocksDBEngine.open(path, create=create, replays=replays, budget=budget)


def open_to_read(path: Path, budget: Budget = DEFAULT_BUDGET) -> StateEngine:
    """Open the folder ``path``, whose device is full, without writing to it.

    Raises:
        Error: it cannot be opened so, either.
    """
    if engine_of(path) == "leveldb":
        from postroom.kv.leveldb import LevelDBEngine  # noqa: PLC0415 - it may not be installed

        return LevelDBEngine.open_to_read(path, budget=budget)
    from postroom.kv.rocksdb import RocksDBEngine  # noqa: PLC0415 - it may not be installed

    return RocksDBEngine.open_to_read(path, budget=budget)


def check_engine_name(engine: str | None) -> None:
    """Check that ``engine`` is the name of one, or ``None``."""
    if engine is not None and engine not in ENGINES:
        names = " or ".join(f'"{name}"' for name in ENGINES)
        raise ValueError(f"engine is {names}, or None for what the folder has, not {engine!r}")


def _first_installed() -> EngineName:
    return next(filter(is_installed, ENGINES), ENGINES[0])
