"""The duties of every engine on disk beside the port: errors of opening, damage, closing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.errors import AccessDenied, Invalid, StoreCorrupted, StoreLocked, Unavailable
from postroom.kv.engine import Engine, EngineFailed
from tests.kv.on_disk import END, INSTALLED, OnDisk, newest_log


@pytest.fixture(params=INSTALLED)
def on_disk(request: pytest.FixtureRequest) -> OnDisk:
    """Return each engine that is installed."""
    return OnDisk(request.param)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.fixture
def crashed(on_disk: OnDisk, tmp_path: Path) -> Path:
    """Return a folder as a crash leaves it: 300 write sets of 1000 bytes are in its log."""
    engine = on_disk.open(tmp_path / "live")
    for number in range(300):
        engine.write({b"%03d" % number: os.urandom(1000)}, sync=False)
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    engine.close()
    return tmp_path / "crashed"


@pytest.fixture
def table(on_disk: OnDisk, tmp_path: Path) -> Path:
    """Return the only table file of a folder with 1000 keys."""
    engine = on_disk.open(tmp_path / "table")
    engine.write({b"%03d" % number: os.urandom(100) for number in range(1000)}, sync=False)
    engine.close()
    (file,) = on_disk.tables(tmp_path / "table")
    return file


# Opening


@pytest.fixture
def other_process(on_disk: OnDisk, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = (
        "import sys; from pathlib import Path; from postroom.kv.opening import open_engine\n"
        "engine = open_engine(Path(sys.argv[1]), sys.argv[2])\n"
        "engine.write({b'a': b'1'}, sync=True)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store"), on_disk.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_another_process_is_named(
    on_disk: OnDisk, tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    for _ in range(2):
        with pytest.raises(
            StoreLocked,
            match=rf"store is open in process {other_process.pid} on host .*postroom\.connect",
        ):
            on_disk.open(tmp_path / "store")
    other_process.kill()
    other_process.wait()
    assert on_disk.count(tmp_path / "store") == 1


def test_a_second_opening_by_the_same_process_keeps_the_lock(
    on_disk: OnDisk, tmp_path: Path
) -> None:
    engine = on_disk.open(tmp_path / "store")
    with pytest.raises(StoreLocked, match=rf"already, in this process \({os.getpid()}\)"):
        on_disk.open(tmp_path / "." / "store")
    script = f"import sys; path = sys.argv[1]; {on_disk.library}"
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Resource temporarily unavailable" in process.stderr
    engine.close()


def test_a_folder_held_by_another_program_with_the_same_library(
    on_disk: OnDisk, tmp_path: Path
) -> None:
    on_disk.open(tmp_path / "store").close()
    script = (
        f"import sys; path = sys.argv[1]; db = {on_disk.library}; print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreLocked, match="open in another process"):
            on_disk.open(tmp_path / "store")
        process.kill()
    assert on_disk.count(tmp_path / "store") == 0


def test_a_missing_store_is_made_only_on_request(on_disk: OnDisk, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"there is no store in .*check the path"):
        on_disk.open(tmp_path / "a" / "b", create=False)
    assert not (tmp_path / "a").exists()
    on_disk.open(tmp_path / "a" / "b").close()
    assert on_disk.count(tmp_path / "a" / "b") == 0


def test_a_path_that_cannot_be_a_folder(on_disk: OnDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Invalid, match="is a file, and a store is a folder"):
        on_disk.open(tmp_path / "file")
    with pytest.raises(AccessDenied, match="cannot be opened for writing"):
        on_disk.open(tmp_path / "file" / "below")


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 4 MiB of its own."""
    folder = tmp_path / "device"
    folder.mkdir()
    mount(folder, "size=4m", ["-t", "tmpfs", "tmpfs"])
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(folder: Path, options: str, arguments: list[str]) -> None:
    command = ["mount", "-o", options, *arguments, str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")


def test_a_read_only_device(on_disk: OnDisk, small_device: Path) -> None:
    on_disk.open(small_device / "store").close()
    mount(small_device, "remount,ro", [])
    for folder in (small_device / "store", small_device / "new"):
        with pytest.raises(AccessDenied, match=r"Read-only file system.*how its device is mounted"):
            on_disk.open(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission(on_disk: OnDisk, tmp_path: Path) -> None:
    on_disk.open(tmp_path / "store").close()
    (tmp_path / "store" / "owner").chmod(0o400)
    with pytest.raises(AccessDenied, match="Permission denied"):
        on_disk.open(tmp_path / "store")


def fill(engine: Engine) -> None:
    for number in range(1000):
        engine.write({b"%05d" % number: os.urandom(50_000)}, sync=True)


def test_a_device_that_fills_up(on_disk: OnDisk, small_device: Path) -> None:
    engine = on_disk.open(small_device / "store")
    with pytest.raises(EngineFailed, match=r"No space left.*unknown"):
        fill(engine)
    assert engine.free_bytes() < 100_000
    with pytest.raises(EngineFailed, match="No space left"):
        engine.write({b"small": b""}, sync=False)
    written = sum(1 for _ in engine.iterate(b"", END))
    assert written > 20
    engine.close()
    with pytest.raises(Unavailable, match=r"No space left.*Free some room"):
        on_disk.open(small_device / "store")
    mount(small_device, "remount,size=16m", [])
    assert on_disk.count(small_device / "store") in (written, written + 1)


# Damage


@pytest.mark.parametrize("cut", [1, 5, 900, 1000, 1010, 5000])
def test_a_log_torn_by_a_crash_opens(on_disk: OnDisk, crashed: Path, cut: int) -> None:
    log = newest_log(crashed)
    os.truncate(log, log.stat().st_size - cut)
    assert on_disk.count(crashed) == 300 - (cut + 1030) // 1031


def test_zeros_after_the_end_of_the_log_are_no_damage(on_disk: OnDisk, crashed: Path) -> None:
    log = newest_log(crashed)
    os.truncate(log, log.stat().st_size + 100_000)
    assert on_disk.count(crashed) == 300


@pytest.fixture
def cut_short(on_disk: OnDisk, tmp_path: Path) -> tuple[Path, int]:
    """Return a folder that crashed in the write of a long record, and the record's beginning."""
    engine = on_disk.open(tmp_path / "live")
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
    on_disk: OnDisk, cut_short: tuple[Path, int], pages: tuple[int, int]
) -> None:
    folder, begin = cut_short
    log = newest_log(folder)
    first_page = begin - begin % 4096
    torn = log.read_bytes()[begin:]
    start, stop = (first_page + 4096 * page for page in pages)
    zero(log, max(begin, start), stop)
    zeroed = log.read_bytes()[begin:]
    assert torn != zeroed
    assert on_disk.count(folder) == 51
    kept = list(folder.glob("*.torn"))
    assert [file.read_bytes() for file in kept] in ([zeroed], [])
    assert on_disk.count(folder) == 51


def test_a_synced_write_with_pages_missing_is_damage(on_disk: OnDisk, crashed: Path) -> None:
    log = newest_log(crashed)
    zero(log, 4096 * 20, 4096 * 22)
    with pytest.raises(StoreCorrupted, match="is damaged"):
        on_disk.open(crashed)
    assert not list(crashed.glob("*.torn"))


@pytest.mark.parametrize("at", [0, 10, 5000, 100_000])
def test_a_flipped_bit_in_the_last_write_is_damage(
    on_disk: OnDisk, cut_short: tuple[Path, int], at: int
) -> None:
    folder, begin = cut_short
    flip(newest_log(folder), begin + at)
    with pytest.raises(StoreCorrupted, match="is damaged"):
        on_disk.open(folder)


def test_damage_within_the_log_is_refused(on_disk: OnDisk, crashed: Path) -> None:
    log = newest_log(crashed)
    flip(log, log.stat().st_size // 2)
    for _ in range(2):
        with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch.*Restore"):
            on_disk.open(crashed)
    flip(log, log.stat().st_size // 2)
    assert on_disk.count(crashed) == 300


@pytest.mark.parametrize("missing", ["CURRENT", "MANIFEST-*", "*table*"])
def test_a_missing_file_is_damage(on_disk: OnDisk, table: Path, missing: str) -> None:
    (file,) = [table] if missing == "*table*" else table.parent.glob(missing)
    file.rename(table.parent.parent / "aside")
    with pytest.raises(StoreCorrupted, match="is damaged"):
        on_disk.open(table.parent)
    (table.parent.parent / "aside").rename(file)
    assert on_disk.count(table.parent) == 1000


def test_a_log_of_somebody_else_is_not_damage(on_disk: OnDisk, tmp_path: Path) -> None:
    on_disk.open(tmp_path).close()
    (tmp_path / "program.log").write_text("started\n")
    engine = on_disk.open(tmp_path)
    engine.write({b"a": b"1"}, sync=False)
    engine.close()
    assert on_disk.count(tmp_path) == 1
    assert (tmp_path / "program.log").read_text() == "started\n"


@pytest.mark.parametrize("where", [0.0, 0.5, 0.95])
def test_damage_in_a_table_is_found_by_the_first_read(
    on_disk: OnDisk, table: Path, where: float
) -> None:
    flip(table, int(table.stat().st_size * where) + 20)
    engine = on_disk.open(table.parent)
    for reverse in (False, True):
        with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch"):
            list(engine.iterate(b"", END, reverse=reverse))
    with pytest.raises(StoreCorrupted, match=r"is damaged: .*checksum mismatch"):
        list(map(engine.get, [b"%03d" % number for number in range(1000)]))
    engine.close()


# Closing and compacting


def test_closing_leaves_no_log_to_read(on_disk: OnDisk, tmp_path: Path) -> None:
    engine = on_disk.open(tmp_path)
    engine.write({b"a": bytes(100_000)}, sync=False)
    assert newest_log(tmp_path).stat().st_size > 100_000
    engine.close()
    assert sum(log.stat().st_size for log in tmp_path.glob("*.log")) == 0
    assert (tmp_path / "owner").read_text() == ""
    assert on_disk.count(tmp_path) == 1


def test_compaction_removes_what_was_deleted(on_disk: OnDisk, tmp_path: Path) -> None:
    engine = on_disk.open(tmp_path)
    engine.write({b"a": b"1", b"q": b"2", b"r": b"3"}, sync=False)
    many = [b"q%05d" % number for number in range(10_000)]
    engine.write(dict.fromkeys(many, b"x"), sync=False)
    engine.write(dict.fromkeys(many, None), sync=False)
    engine.compact(b"q", b"r")
    assert list(engine.iterate(b"", END)) == [(b"a", b"1"), (b"q", b"2"), (b"r", b"3")]
    assert sum(table.stat().st_size for table in on_disk.tables(tmp_path)) < 2000
    engine.close()
