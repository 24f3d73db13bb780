"""Every file of a store, damaged in every way, after a clean close and after a kill.

All that was acknowledged is there, or ``StoreCorrupted`` is raised. It is raised when the store is
opened or, for a block of a table file, when that is read for the first time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import postroom
from postroom.errors import CommitUnknown, Invalid, StoreCorrupted, Unavailable, VersionMismatch
from postroom.server import opening
from tests.kv.on_disk import newest_log, split_log

REPOSITORY = Path(__file__).parents[2]
SEGMENT_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 100_000
"""The size with which LevelDB has begun some of its logs."""
PUTS = 120

WRITER = f"""
import os, signal, sys
from postroom.server import opening
opening.LOG_SEGMENT_BYTES = {SEGMENT_BYTES}
from postroom.kv.leveldb import LevelDBEngine
LevelDBEngine.open.__func__.__kwdefaults__["write_buffer_bytes"] = {WRITE_BUFFER_BYTES}
import postroom
db = postroom.open(sys.argv[1])
for number in range({PUTS}):
    db.put(b"key/%03d" % number, bytes([number]) * 3000)
if sys.argv[2] == "close":
    db.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def written(folder: Path, end: str) -> Path:
    for each in (1, 2):  # table files are made, and a segment is used again
        subprocess.run(
            [sys.executable, "-c", WRITER, folder, "close" if each == 1 else end],
            cwd=REPOSITORY,
            check=False,
        )
    return folder


@pytest.fixture(scope="module", params=["close", "kill"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every kind of record."""
    return written(tmp_path_factory.mktemp(request.param) / "store", request.param)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LOG_SEGMENT_BYTES", SEGMENT_BYTES)


# --- how a file is damaged: each answers the ways, by name


def cut(size: int) -> Iterator[int]:
    """Yield the sizes that may be left of a file."""
    yield from {0, size // 2, max(size - 4096, 0), max(size - 5, 0), max(size - 1, 0)} - {size}


def flipped(path: Path) -> Iterator[int]:
    """Yield bytes at which a bit is flipped: evenly, and in each block that holds something."""
    data = path.read_bytes()
    yield from {len(data) * part // 4 for part in range(4)} if data else ()
    for at in range(0, len(data), 4096):
        if any(data[at : at + 64]):
            yield at + 20


def damages(path: Path) -> Iterator[Callable[[Path], object]]:
    data = path.read_bytes()
    yield lambda file: file.unlink()
    for size in cut(len(data)):
        yield lambda file, size=size: os.truncate(file, size)
    for begin in (0, len(data) // 2, max(len(data) - 4096, 0)):
        yield lambda file, begin=begin: zero(file, begin)
    for at in sorted(set(flipped(path)))[:10]:
        yield lambda file, at=at: flip(file, at)


def zero(file: Path, begin: int) -> None:
    data = bytearray(file.read_bytes())
    data[begin:] = bytes(len(data) - begin)
    file.write_bytes(data)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    if at < len(data):
        data[at] ^= 0x10
    file.write_bytes(data)


KINDS = {
    "CURRENT": r"CURRENT",
    "manifest": r"MANIFEST-\d+",
    "engine log": r"\d+\.log",
    "table": r"\d+\.ldb",
    "segment": r"log/segment-\d+",
    "mark": r"log/mark",
    "names": r"owner|engine",
    "others": r"LOCK|LOG|LOG\.old",
}


UNREAD_STRIDE = 4
"""The stride in the damages to files that nothing is read from: few of them are tried."""


def test_every_file_has_a_row(sound: Path) -> None:
    names = [str(path.relative_to(sound)) for path in sound.rglob("*") if path.is_file()]
    for name in names:
        assert any(re.fullmatch(kind, name) for kind in KINDS.values()), name
    for kind in KINDS.values():
        assert any(re.fullmatch(kind, name) for name in names), kind


@pytest.mark.parametrize("kind", KINDS)
def test_damage(sound: Path, kind: str, tmp_path: Path) -> None:
    refused = intact = 0
    for path in sorted(sound.rglob("*")):
        name = str(path.relative_to(sound))
        if not path.is_file() or not re.fullmatch(KINDS[kind], name):
            continue
        chosen = [*damages(path)][:: UNREAD_STRIDE if kind == "others" else 1]
        for number, damage in enumerate(chosen):
            copy = tmp_path / "copy"
            shutil.copytree(sound, copy)
            damage(copy / name)
            try:
                check(copy)
                intact += 1
            except (StoreCorrupted, Invalid, VersionMismatch):
                refused += (
                    1  # the last two: it does not look like a store, or like another engine's
                )
            except (CommitUnknown, Unavailable):
                refused += 1  # compaction has met a block that nobody asked for
            except AssertionError as error:
                raise AssertionError(f"{name}, damage {number}: {error}") from error
            shutil.rmtree(copy)
    assert refused + intact
    if kind in ("mark", "others"):
        assert not refused
    if kind in ("CURRENT", "manifest", "segment", "table"):
        assert refused


def check(folder: Path) -> None:
    """Check that everything is there, and can be written to."""
    with postroom.open(folder) as db:
        for number in range(PUTS):
            found = db.get(b"key/%03d" % number)
            assert found == bytes([number]) * 3000, f"key {number} is {found and found[:1]!r}"
        db.put(b"more", b"1")
    with postroom.open(folder) as db:
        assert db.get(b"more") == b"1"
        assert db.get(b"key/000") is not None


KILLED_BETWEEN_SYNCS = f"""
import os, signal, sys
import postroom
from postroom.kv import gathering
gathering.FEW = 0
db = postroom.open(sys.argv[1])
for number in range({PUTS}):
    db.put(b"key/%03d" % number, bytes([number]) * 3000)
    list(db.scan())
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A program whose state is written for each scan, and is not synced."""


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_a_loss_of_power_may_leave_a_hole_between_logs_of_the_state(
    tmp_path: Path, left: float
) -> None:
    """The log of the store has what the state has lost."""
    folder = tmp_path / "store"
    subprocess.run(
        [sys.executable, "-c", KILLED_BETWEEN_SYNCS, folder], cwd=REPOSITORY, check=False
    )
    older, newer = split_log(newest_log(folder), 80)
    os.truncate(older, int(older.stat().st_size * left))
    assert newer.stat().st_size > 100_000
    with postroom.open(folder) as db:
        assert dict(db.scan()) == {b"key/%03d" % each: bytes([each]) * 3000 for each in range(PUTS)}
    assert newer.with_suffix(".torn").exists()


@pytest.mark.parametrize("part", ["log", "state"])
def test_half_of_a_store_is_refused(sound: Path, part: str, tmp_path: Path) -> None:
    """The whole log gone, or all files of the engine: then it looks like no store at all."""
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    if part == "log":
        shutil.rmtree(copy / "log")
    else:
        for path in copy.iterdir():
            if path.is_file():
                path.unlink()
    with pytest.raises(StoreCorrupted if part == "log" else Invalid):
        postroom.open(copy)


def test_parts_of_two_stores_are_refused(sound: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", "close")
    copy = tmp_path / "copy"
    shutil.copytree(sound, copy)
    shutil.rmtree(copy / "log")
    shutil.copytree(other / "log", copy / "log")
    with pytest.raises(StoreCorrupted, match="is of another log"):
        postroom.open(copy)
