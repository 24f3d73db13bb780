"""The engines on disk that are installed, as tests open them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from postroom.kv import leveldb_files
from postroom.kv.engine import Engine
from postroom.kv.engine_folder import ENGINES, EngineName, is_installed

END: Final = b"\xff" * 8

INSTALLED: Final[list[EngineName]] = [engine for engine in ENGINES if is_installed(engine)]
"""Both where LevelDB's package has wheels, RocksDB elsewhere."""


@dataclass(frozen=True)
class OnDisk:
    """One of them."""

    name: EngineName

    def open(self, folder: Path, **options: Any) -> Engine:
        if self.name == "leveldb":
            from postroom.kv.leveldb import LevelDBEngine  # noqa: PLC0415 - it may not be installed

            return LevelDBEngine.open(folder, **options)
        from postroom.kv.rocksdb import RocksDBEngine  # noqa: PLC0415 - it may not be installed

        return RocksDBEngine.open(folder, **options)

    def count(self, folder: Path) -> int:
        """Return how many keys there are, after opening and closing."""
        engine = self.open(folder, create=False)
        try:
            return sum(1 for _ in engine.iterate(b"", END))
        finally:
            engine.close()

    def tables(self, folder: Path) -> list[Path]:
        """Return the table files."""
        return sorted(folder.glob("*.ldb" if self.name == "leveldb" else "*.sst"))

    @property
    def library(self) -> str:
        """Return a Python expression that opens the folder ``path`` by the library alone."""
        if self.name == "leveldb":
            return "__import__('plyvel').DB(path)"
        return "__import__('rocksdict').Rdict(path)"


def newest_log(folder: Path) -> Path:
    """Return the log that the engine writes, or wrote last."""
    return max(folder.glob("[0-9]*.log"))


def crash(live: Path, copy: Path) -> Path:
    """Copy what is left of the store in ``live`` if its process dies now."""
    shutil.copytree(live, copy)
    return copy


def split_log(log: Path, at: int) -> tuple[Path, Path]:
    """Split a log of LevelDB before a batch, as if a new log had been begun there."""
    batches = list(leveldb_files.records(log.read_bytes()))
    assert encoded_log(batches) == log.read_bytes()
    newer = log.with_name(f"{int(log.stem) + 50:06}.log")
    newer.write_bytes(encoded_log(batches[at:]))
    log.write_bytes(encoded_log(batches[:at]))
    return log, newer


def encoded_log(batches: Iterable[bytes]) -> bytes:
    """Encode batches in LevelDB's format: a fragment for each part in a block of 32 KiB."""
    log = bytearray()
    for batch in batches:
        rest, begun = batch, False
        while True:
            room = 32768 - len(log) % 32768
            if room < 7:
                log += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (3 if rest else 4) if begun else (2 if rest else 1)
            checksum = leveldb_files._masked_crc32c(bytes([kind]) + part)
            log += checksum.to_bytes(4, "little") + len(part).to_bytes(2, "little")
            log += bytes([kind]) + part
            begun = True
            if not rest:
                break
    return bytes(log)
