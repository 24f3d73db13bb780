"""What is particular to the engine on LevelDB: errors of opening, damage, crashes, rotation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random  # noqa: TID251 (each use is seeded)
from typing import Any

import pytest

from postroom.errors import AccessDenied, StoreCorrupted, StoreLocked, Unavailable
from postroom.kv import torn_log
from postroom.kv.engine import EngineFailed
from postroom.kv.leveldb import ENTRY_OVERHEAD_BYTES, LevelDBEngine, LogRotation

END = b"\xff" * 8


def count(folder: Path) -> int:
    """How many keys there are, after opening and closing."""
    engine = LevelDBEngine.open(folder, create=False)
    try:
        return sum(1 for _ in engine.iterate(b"", END))
    finally:
        engine.close()


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def newest_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A folder as a crash leaves it: 300 write sets of one key of 1000 bytes are in its log."""
    engine = LevelDBEngine.open(tmp_path / "live")
    for number in range(300):
        engine.write({b"%03d" % number: os.urandom(1000)}, sync=False)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    engine.close()
    return tmp_path / "crashed"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The only table file of a folder with 1000 keys."""
    engine = LevelDBEngine.open(tmp_path / "table")
    engine.write({b"%03d" % number: os.urandom(100) for number in range(1000)}, sync=False)
    engine.close()
    (file,) = (tmp_path / "table").glob("*.ldb")
    return file


# Opening


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = (
        "import sys; from pathlib import Path; from postroom.kv.leveldb import LevelDBEngine\n"
        "engine = LevelDBEngine.open(Path(sys.argv[1])); engine.write({b'a': b'1'}, sync=True)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_another_process_is_named(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    for _ in range(2):
        with pytest.raises(
            StoreLocked,
            match=rf"store is open in process {other_process.pid} on host .*postroom\.connect",
        ):
            LevelDBEngine.open(tmp_path / "store")
    other_process.kill()
    other_process.wait()
    assert count(tmp_path / "store") == 1


def test_a_second_opening_by_the_same_process_keeps_the_lock(tmp_path: Path) -> None:
    engine = LevelDBEngine.open(tmp_path / "store")
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        LevelDBEngine.open(tmp_path / "." / "store")
    script = "import plyvel, sys; plyvel.DB(sys.argv[1])"
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Resource temporarily unavailable" in process.stderr
    engine.close()


def test_a_folder_held_by_another_program_on_leveldb(tmp_path: Path) -> None:
    LevelDBEngine.open(tmp_path / "store").close()
    script = "import plyvel, sys; db = plyvel.DB(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreLocked, match="open in another process"):
            LevelDBEngine.open(tmp_path / "store")
        process.kill()
    assert count(tmp_path / "store") == 0


def test_what_does_not_exist_is_made_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(StoreCorrupted, match=r"There is no store in .*Check the path"):
        LevelDBEngine.open(tmp_path / "a" / "b", create=False)
    assert not (tmp_path / "a").exists()
    LevelDBEngine.open(tmp_path / "a" / "b").close()
    assert count(tmp_path / "a" / "b") == 0


def test_a_path_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AccessDenied, match="cannot be opened for writing"):
            LevelDBEngine.open(path)


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    folder = tmp_path / "device"
    folder.mkdir()
    mount(folder, "size=4m", ["-t", "tmpfs", "tmpfs"])
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(folder: Path, options: str, arguments: list[str]) -> None:
    command = ["mount", "-o", options, *arguments, str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")


def test_a_read_only_device(small_device: Path) -> None:
    LevelDBEngine.open(small_device / "store").close()
    mount(small_device, "remount,ro", [])
    for folder in (small_device / "store", small_device / "new"):
        with pytest.raises(AccessDenied, match=r"Read-only file system.*how its device is mounted"):
            LevelDBEngine.open(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    LevelDBEngine.open(tmp_path / "store").close()
    (tmp_path / "store" / "owner").chmod(0o400)
    with pytest.raises(AccessDenied, match="Permission denied"):
        LevelDBEngine.open(tmp_path / "store")


def fill(engine: LevelDBEngine) -> None:
    for number in range(1000):
        engine.write({b"%05d" % number: os.urandom(50_000)}, sync=True)


def test_a_device_that_fills_up(small_device: Path) -> None:
    engine = LevelDBEngine.open(small_device / "store")
    with pytest.raises(EngineFailed, match=r"No space left.*unknown"):
        fill(engine)
    assert engine.free_bytes() < 100_000
    with pytest.raises(EngineFailed, match="No space left"):
        engine.write({b"small": b""}, sync=False)
    written = sum(1 for _ in engine.iterate(b"", END))
    assert written > 20
    engine.close()
    with pytest.raises(Unavailable, match=r"No space left.*Free some room"):
        LevelDBEngine.open(small_device / "store")
    mount(small_device, "remount,size=16m", [])
    assert count(small_device / "store") in (written, written + 1)


# Damage


@pytest.mark.parametrize("cut", [1, 5, 900, 1000, 1010, 5000])
def test_a_log_torn_by_a_crash_opens(crashed: Path, cut: int) -> None:
    log = newest_log(crashed)
    os.truncate(log, log.stat().st_size - cut)
    assert count(crashed) == 300 - (cut + 1030) // 1031


def test_zeros_after_the_end_of_the_log_are_no_damage(crashed: Path) -> None:
    log = newest_log(crashed)
    os.truncate(log, log.stat().st_size + 100_000)
    assert count(crashed) == 300


@pytest.fixture
def cut_short(tmp_path: Path) -> tuple[Path, int]:
    """A folder that crashed in the write of a record over many blocks, and where that begins."""
    engine = LevelDBEngine.open(tmp_path / "live")
    engine.write({b"%03d" % number: os.urandom(1000) for number in range(50)}, sync=True)
    engine.write({b"x": os.urandom(1000)}, sync=True)
    begin = newest_log(tmp_path / "live").stat().st_size
    engine.write({b"y%03d" % number: os.urandom(1000) for number in range(200)}, sync=False)
    shutil.copytree(tmp_path / "live", tmp_path / "cut")
    engine.close()
    return tmp_path / "cut", begin


def zero(file: Path, start: int, stop: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[start:stop] = bytes(len(data[start:stop]))
    file.write_bytes(data)


@pytest.mark.parametrize("pages", [(0, 99), (1, 2), (3, 4), (10, 99), (25, 30)])
def test_a_last_write_with_pages_missing_is_cut_off(
    cut_short: tuple[Path, int], pages: tuple[int, int]
) -> None:
    folder, begin = cut_short
    log = newest_log(folder)
    first_page = begin - begin % 4096
    torn = log.read_bytes()[begin:]
    start, stop = (first_page + 4096 * page for page in pages)
    zero(log, max(begin, start), stop)
    zeroed = log.read_bytes()[begin:]
    assert torn != zeroed
    assert count(folder) == 51
    kept = list(folder.glob("*.torn"))
    assert [file.read_bytes() for file in kept] in ([zeroed], [])
    assert count(folder) == 51


def test_a_synced_write_with_pages_missing_is_damage(crashed: Path) -> None:
    log = newest_log(crashed)
    zero(log, 4096 * 20, 4096 * 22)
    with pytest.raises(StoreCorrupted, match="is damaged"):
        LevelDBEngine.open(crashed)
    assert not list(crashed.glob("*.torn"))


@pytest.mark.parametrize("at", [0, 10, 5000, 100_000])
def test_a_flipped_bit_in_the_last_write_is_damage(cut_short: tuple[Path, int], at: int) -> None:
    folder, begin = cut_short
    flip(newest_log(folder), begin + at)
    with pytest.raises(StoreCorrupted, match="is damaged"):
        LevelDBEngine.open(folder)


def test_damage_within_the_log_is_refused(crashed: Path) -> None:
    log = newest_log(crashed)
    flip(log, log.stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch.*Restore"):
            LevelDBEngine.open(crashed)
    flip(log, log.stat().st_size // 2)
    assert count(crashed) == 300


@pytest.mark.parametrize("missing", ["CURRENT", "MANIFEST-*", "*.ldb"])
def test_a_missing_file_is_damage(table: Path, missing: str) -> None:
    (file,) = table.parent.glob(missing)
    file.rename(table.parent.parent / "aside")
    with pytest.raises(StoreCorrupted, match="is damaged"):
        LevelDBEngine.open(table.parent)
    (table.parent.parent / "aside").rename(file)
    assert count(table.parent) == 1000


def test_a_log_of_somebody_else_is_not_damage(tmp_path: Path) -> None:
    (tmp_path / "program.log").write_text("started\n")
    engine = LevelDBEngine.open(tmp_path)
    engine.write({b"a": b"1"}, sync=False)
    engine.close()
    assert count(tmp_path) == 1
    assert (tmp_path / "program.log").read_text() == "started\n"


@pytest.mark.parametrize("where", [0.0, 0.5, 0.95])
def test_damage_in_a_table_is_found_by_the_first_read(table: Path, where: float) -> None:
    flip(table, int(table.stat().st_size * where) + 20)
    engine = LevelDBEngine.open(table.parent)
    for reverse in (False, True):
        with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch"):
            list(engine.iterate(b"", END, reverse=reverse))
    with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch"):
        list(map(engine.get, [b"%03d" % number for number in range(1000)]))
    engine.close()


# Closing and compacting


def test_closing_leaves_no_log_to_read(tmp_path: Path) -> None:
    engine = LevelDBEngine.open(tmp_path)
    engine.write({b"a": bytes(100_000)}, sync=False)
    assert newest_log(tmp_path).stat().st_size > 100_000
    engine.close()
    assert sum(log.stat().st_size for log in tmp_path.glob("*.log")) == 0
    assert (tmp_path / "owner").read_text() == ""
    assert count(tmp_path) == 1


def test_compaction_removes_what_was_deleted(tmp_path: Path) -> None:
    engine = LevelDBEngine.open(tmp_path)
    engine.write({b"a": b"1", b"q": b"2", b"r": b"3"}, sync=False)
    many = [b"q%05d" % number for number in range(10_000)]
    engine.write(dict.fromkeys(many, b"x"), sync=False)
    engine.write(dict.fromkeys(many, None), sync=False)
    engine.compact(b"q", b"r")
    assert list(engine.iterate(b"", END)) == [(b"a", b"1"), (b"q", b"2"), (b"r", b"3")]
    assert sum(table.stat().st_size for table in tmp_path.glob("*.ldb")) < 2000
    engine.close()


# Rotation of the log


class RecordingDatabase:
    """The database, but for noting which batches are made to be synced."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.syncs: list[bool] = []

    def write_batch(self, *, sync: bool = False) -> Any:
        self.syncs.append(sync)
        return self._db.write_batch(sync=sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def test_writes_are_synced_from_the_danger_zone_on() -> None:
    rotation = LogRotation(write_buffer_bytes=1000)
    assert [rotation.must_sync(200) for _ in range(5)] == [False, False, True, True, True]
    rotation.rotated(200)
    assert [rotation.must_sync(200) for _ in range(2)] == [False, True]
    assert LogRotation(1000).must_sync(5000)


def sizes_of_values(kind: str, rng: Random) -> list[int]:
    match kind:
        case "tiny":
            return [rng.randrange(4) for _ in range(40_000)]
        case "wasteful":  # a block of the memtable's arena takes three of these, and 24 % are lost
            return [1000 + rng.randrange(12) for _ in range(1500)]
        case "large":
            return [rng.choice([300_000, 10, 140_000]) for _ in range(60)]
        case _:
            return [int(10 ** rng.uniform(0, 5)) for _ in range(600)]


@pytest.mark.parametrize("kind", ["tiny", "wasteful", "large", "mixed"])
def test_the_write_before_a_rotation_was_synced(tmp_path: Path, kind: str) -> None:
    rng = Random(7)
    engine = LevelDBEngine.open(tmp_path, write_buffer_bytes=256 * 1024)
    engine._db = recording = RecordingDatabase(engine._db)
    log, synced_before, rotations, synced = newest_log(tmp_path), True, 0, 0
    sizes = sizes_of_values(kind, rng)
    per_write = 100 if kind == "tiny" else 1
    for start in range(0, len(sizes), per_write):
        writes = {rng.randbytes(8): bytes(size) for size in sizes[start : start + per_write]}
        engine.write(writes, sync=False)
        if newest_log(tmp_path) != log:
            assert synced_before
            log, rotations = newest_log(tmp_path), rotations + 1
        synced_before = recording.syncs[-1]
        synced += synced_before
    assert rotations >= 3
    if kind != "large":
        assert synced < 0.7 * len(sizes) / per_write
    engine.close()


def test_writes_during_a_compaction_are_synced(tmp_path: Path) -> None:
    engine = LevelDBEngine.open(tmp_path)
    db = engine._db

    class CompactingDatabase(RecordingDatabase):
        def compact_range(self, **span: bytes) -> None:
            engine.write({b"before": b""}, sync=False)
            db.compact_range(**span)
            engine.write({b"after": b""}, sync=False)

    engine._db = recording = CompactingDatabase(db)
    engine.write({b"a": bytes(1000)}, sync=False)
    engine.compact(b"a", b"b")
    assert engine._rotation.memtable_bytes < 2 * ENTRY_OVERHEAD_BYTES
    made_anew = [False, True]  # a batch that turned out to have to be synced
    assert recording.syncs == [False, True, *made_anew * 2, True, *made_anew * 2]
    engine._db = db
    engine.close()


# --- logs that do not fit together


def encoded_log(batches: Iterable[bytes]) -> bytes:
    """LevelDB's format: a fragment for each part of a batch that lies in a block of 32 KiB."""
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
            checksum = torn_log._masked_crc32c(bytes([kind]) + part)
            log += checksum.to_bytes(4, "little") + len(part).to_bytes(2, "little")
            log += bytes([kind]) + part
            begun = True
            if not rest:
                break
    return bytes(log)


@pytest.fixture
def two_logs(crashed: Path) -> Path:
    """A folder whose memtable was about to become a table when the process died: two logs."""
    log = newest_log(crashed)
    batches = list(torn_log.records(log.read_bytes()))
    assert encoded_log(batches) == log.read_bytes()
    newer = log.with_name(f"{int(log.stem) + 50:06}.log")
    newer.write_bytes(encoded_log(batches[100:]))
    log.write_bytes(encoded_log(batches[:100]))
    return crashed


def test_two_logs_are_read(two_logs: Path) -> None:
    assert count(two_logs) == 300


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_the_older_one_of_two_logs_is_not_cut(two_logs: Path, left: float) -> None:
    """LevelDB would read what is left of it, and all of the newer one: a hole."""
    older, _ = sorted(two_logs.glob("*.log"))
    os.truncate(older, int(older.stat().st_size * left))
    with pytest.raises(StoreCorrupted, match="is cut off"):
        LevelDBEngine.open(two_logs)


def test_the_older_one_of_two_logs_is_not_missing(two_logs: Path) -> None:
    older, _ = sorted(two_logs.glob("*.log"))
    older.unlink()
    with pytest.raises(StoreCorrupted, match=rf"{older.name} is missing, or the manifest is cut"):
        LevelDBEngine.open(two_logs)


def test_a_manifest_without_its_last_edit_is_refused(tmp_path: Path) -> None:
    """After a clean close: 300 keys would be gone without a word."""
    for _ in range(2):
        engine = LevelDBEngine.open(tmp_path / "store")
        engine.write({b"%03d" % number: os.urandom(1000) for number in range(300)}, sync=True)
        engine.close()
    manifest = next((tmp_path / "store").glob("MANIFEST-*"))
    os.truncate(manifest, manifest.stat().st_size - 5)
    with pytest.raises(StoreCorrupted, match="manifest is cut"):
        LevelDBEngine.open(tmp_path / "store")


def test_where_another_log_tells_what_is_missing_the_end_is_cut_off(
    cut_short: tuple[Path, int],
) -> None:
    """A flipped bit, and records behind it: see ``replays``."""
    folder, begin = cut_short
    flip(newest_log(folder), begin - 500)
    engine = LevelDBEngine.open(folder, replays=True)
    assert sum(1 for _ in engine.iterate(b"", b"\xff")) == 50
    engine.close()
