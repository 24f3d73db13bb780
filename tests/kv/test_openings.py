"""An opening that fails leaves no records and no open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.log_device import SECTOR_BYTES, FolderDevice, FolderFile
from postroom.kv.log_reader import BLOCK_BYTES
from tests.kv.book import Book, entry


def test_records_lost_with_their_opening_do_not_come_back() -> None:
    """The power loses the first of the second opening's records.

    The third opening writes another record in its place, just as long, and is killed. The records
    that once followed there do not follow now.
    """
    book = Book()
    for index in range(1, 5):
        book.add(1, index)
    book.reopen()
    book.add(1, 5, sync=False)
    after_first = book.storage._log._end
    book.add(1, 6, sync=False)
    for file in book.disk.log.files.values():
        for at in list(file._cache):
            if at * SECTOR_BYTES >= after_first:
                file._settle(at)
        file._cache.clear()  # the power fails
    book.reopen()
    for index in (5, 6):
        if entry(1, index) not in book.found:
            book.groups.entries[1].pop(index)
    third = max(book.groups.entries[1]) + 1
    assert len(book.found) == third - 1
    book.add(1, third, 50)
    book.reopen()
    book.check()
    assert max(book.found) == entry(1, third)
    assert book.note == keys.u64(third)


# --- files


class Files:
    """A count of the open files of logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = 0
        for kind in (FolderDevice, FolderFile):
            self._count(monkeypatch, kind)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        begin, end = kind.__init__, kind.close  # type: ignore[misc, attr-defined]

        def opened(this: object, path: Path) -> None:
            begin(this, path)
            self.open += 1

        def closed(this: object) -> None:
            end(this)
            self.open -= 1

        monkeypatch.setattr(kind, "__init__", opened)
        monkeypatch.setattr(kind, "close", closed)


def test_a_refused_log_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that tries to open it again and again would run out of descriptors."""
    files = Files(monkeypatch)
    devices: list[FolderDevice] = []

    def device(_: object) -> FolderDevice:
        devices.append(FolderDevice(tmp_path / "log"))
        return devices[-1]

    book = Book(device)
    for index in range(1, 40):
        book.add(1, index, BLOCK_BYTES)
        book.apply(1, index)
    content = book.disk.content
    for index in range(40, 80):
        book.add(1, index, BLOCK_BYTES)
        book.apply(1, index)
    book.storage.close()
    assert files.open == 0
    book.disk._durable = content  # a state of before, which the log knows to be durable beyond that
    with pytest.raises(StoreCorrupted, match="was durable beyond record"):
        book.open()
    devices.pop().close()  # the caller's
    assert files.open == 0
