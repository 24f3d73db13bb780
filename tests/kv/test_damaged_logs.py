"""A log that was cut short, or lacks something, or can no longer be written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random  # noqa: TID251 - made from a seed

import pytest

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import log_reader as log_format
from postroom.kv.engine import EngineFailed
from postroom.kv.log_device import FolderDevice, WriteFault
from postroom.kv.log_reader import BLOCK_BYTES, FIRST_RECORD_AT
from tests.kv.book import Book, entry, value

# --- torn ends


@pytest.mark.parametrize("seed", range(30))
def test_a_write_that_the_power_cuts_short_is_there_or_not(seed: int) -> None:
    book = Book()
    for index in range(1, 6):
        book.add(1, index)
    book.disk.write_faults = {book.disk.writes + 1: WriteFault.THERE_WHOLE}
    with pytest.raises(EngineFailed):
        book.add(1, 6, 3000)
    del book.groups.entries[1][6]
    book.reopen(power=Random(seed))
    book.check()
    for index in range(6, 12):  # new entries are never mixed up with old ones
        book.add(1, index, 500)
        book.reopen(power=Random(seed))
        book.check()
        assert max(book.found) == entry(1, index)


@pytest.mark.parametrize("seed", range(30))
def test_unsynced_records_are_lost_from_some_place_on(seed: int) -> None:
    book = Book()
    for index in range(1, 6):
        book.add(1, index)
    for index in range(6, 30):
        book.add(1, index, sync=False)
    book.reopen(power=Random(seed))
    there = sorted(int.from_bytes(key[-8:], "big") for key in book.found)
    assert there == list(range(1, len(there) + 1))
    assert len(there) >= 5
    for index in [index for index in book.groups.entries[1] if index > len(there)]:
        del book.groups.entries[1][index]
    for index in range(len(there) + 1, len(there) + 5):
        book.add(1, index, 700)
        book.reopen(power=Random(seed))
        book.check()
        assert max(book.found) == entry(1, index)


def test_a_sync_without_anything_to_write_makes_durable_what_was_written() -> None:
    """``durability="interval"``: records are written, and synced later."""
    for seed in range(10):
        book = Book()
        for index in range(1, 40):
            book.add(1, index, sync=False)
        book.storage.write_turn({}, sync=True)
        book.reopen(power=Random(seed))
        book.check()


def test_a_synced_record_makes_those_before_it_durable() -> None:
    for seed in range(10):
        book = Book()
        for index in range(1, 40):
            book.add(1, index, sync=index == 39)
        book.reopen(power=Random(seed))
        book.check()


@pytest.mark.usefixtures("long_segments")
def test_records_behind_a_torn_one_are_not_read_behind_its_successor() -> None:
    """The same numbers, the same log, the right places: an earlier epoch."""
    book = Book()
    book.add(1, 1)
    for index in (2, 3, 4):
        book.add(1, index, sync=False)
    file = book.disk.log.files["segment-1"]
    file.sync()
    book.disk.crash()
    second = FIRST_RECORD_AT + 2 * BLOCK_BYTES
    assert any(file.durable[second : second + 100])
    third = bytes(file.durable[second + BLOCK_BYTES : second + 2 * BLOCK_BYTES])
    file.durable[second : second + BLOCK_BYTES] = bytes(BLOCK_BYTES)
    book.disk.log.mark(0)
    book.open()
    assert sorted(book.found) == [entry(1, 1)]
    del book.groups.entries[1]
    book.add(1, 2, 50)
    assert bytes(file.durable[second + BLOCK_BYTES : second + 2 * BLOCK_BYTES]) == third
    book.reopen()
    assert sorted(book.found) == [entry(1, 1), entry(1, 2)]


# --- damage: a follower, whose state knows nothing of these entries yet


def follower(folder: Path) -> Book:
    book = Book(lambda _: FolderDevice(folder))
    for index in range(1, 60):
        book.groups.entries.setdefault(1, {})[index] = value(index, 1500)
        book.storage.write_turn({entry(1, index): value(index, 1500)}, sync=True)
    return book


def attempts(folder: Path) -> Iterable[Callable[[Path], object]]:
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        yield lambda copy, name=path.name: (copy / name).unlink()
        for left in {0, size // 2, size - BLOCK_BYTES, size - 1}:
            yield lambda copy, name=path.name, left=left: shorten(copy / name, left)
        for begin in (0, BLOCK_BYTES, FIRST_RECORD_AT, size // 2):
            yield lambda copy, name=path.name, begin=begin: spoil(copy / name, begin, None)
        for begin in range(0, size, BLOCK_BYTES):
            yield lambda copy, name=path.name, begin=begin: spoil(copy / name, begin + 30, 1)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[: max(size, 0)])


def spoil(path: Path, begin: int, flips: int | None) -> None:
    data = bytearray(path.read_bytes())
    if flips is None:
        data[begin:] = bytes(len(data[begin:]))
    elif begin < len(data):
        data[begin] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("closed", [False, True])
def test_a_log_that_lacks_anything_acknowledged_is_refused(tmp_path: Path, closed: bool) -> None:
    book = follower(tmp_path / "log")
    if closed:
        book.storage.close()
    refused, state = 0, book.disk.content
    for damage in attempts(tmp_path / "log"):
        book.disk.crash()
        book.disk._durable = state
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        damage(tmp_path / "copy")
        book.device = lambda _: FolderDevice(tmp_path / "copy")
        try:
            book.open()
            book.check()
            book.storage.close()
        except StoreCorrupted:
            refused += 1
        shutil.rmtree(tmp_path / "copy")
    assert refused > 20


@pytest.mark.usefixtures("long_segments")
def test_after_a_loss_of_power_later_records_tell_of_damage() -> None:
    """The mark may be an old one then."""
    book = Book()
    for index in range(1, 8):
        book.storage.write_turn({entry(1, index): value(index)}, sync=True)
    book.disk.crash()
    book.disk.log.mark(0)
    book.disk.log.files["segment-1"].durable[FIRST_RECORD_AT + 4 * BLOCK_BYTES + 50] ^= 1
    with pytest.raises(StoreCorrupted, match=r"record 5 cannot be read, but record \d+, at"):
        book.open()


def test_the_only_segment_without_a_header_is_refused() -> None:
    """Found by the simulator: a ``ValueError`` came out of it."""
    book = Book()
    book.add(1, 1)
    book.disk.crash()
    book.disk.log.files["segment-1"].durable[20] ^= 1
    with pytest.raises(StoreCorrupted, match="no segment can be read, but record 2 was durable"):
        book.open()


def test_a_state_that_was_rolled_back_is_refused() -> None:
    book = Book()
    before = None
    for index in range(1, 500):
        book.add(1, index)
        book.apply(1, index)
        if index == 3:
            before = book.disk.content
    assert before is not None
    book.disk.crash()
    book.disk._durable = before
    with pytest.raises(StoreCorrupted, match=r"The state of the store is damaged.*durable beyond"):
        book.open()


def test_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(log_format, "FORMAT_VERSION", 2)
        book = Book()
    book.disk.crash()
    with pytest.raises(VersionMismatch, match="the log is written in format 2"):
        book.open()


# --- failing


@pytest.mark.parametrize("fault", list(WriteFault))
@pytest.mark.parametrize("number", [1, 2])
def test_a_storage_does_not_write_after_a_failure(fault: WriteFault, number: int) -> None:
    """Neither into the log nor into the state, whichever of them has failed."""
    book = Book()
    book.add(1, 1)
    book.disk.write_faults = {book.disk.writes + number: fault}
    with pytest.raises(EngineFailed):
        book.add(1, 2)
    writes = book.disk.writes
    for _ in range(2):
        with pytest.raises(EngineFailed):
            book.add(1, 3)
    book.storage.close()
    assert book.disk.writes == writes
