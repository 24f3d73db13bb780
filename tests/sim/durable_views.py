"""Views of what a loss of power would leave on a disk: read anew whenever that has changed.

Each of these readings is a recovery, with everything that the product's reader of logs checks. Only
the records that stood there already, byte for byte, are not decoded again: a segment grows at its
end, and all others stay as they are::

    segment   header │ record │ record │ record │ new record │ ...
              └────── as at the last reading ───┘└─ decoded ─┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from postroom.kv import log_reader
from postroom.kv.engine import WriteSet
from postroom.kv.log_device import MemoryFile
from postroom.kv.log_reader import BLOCK_BYTES, NEW_SUFFIX, LogRecord, Segment, decode_header
from postroom.kv.marker import MARKER_KEY, decode_marker
from postroom.kv.memory import MemoryDisk, SortedMap


class _DurableFile:
    """The remains of a file after a loss of power that takes everything unsynced.

    Attributes:
        of: that file.
        size: in bytes.
        read_at: how many sectors were durable at the last reading; -1: there was none.
        prefix: what its first bytes were then, up to the end of the last record.
        records: what they hold.
        writes: what that comes to; ``None`` is a deletion.
    """

    def __init__(self, file: MemoryFile) -> None:
        self.of = file
        self.size = file.size
        self.forget()

    def forget(self) -> None:
        """Forget the view: it has to be read as a whole."""
        self.read_at = -1
        self.prefix = bytearray()
        self.records: list[LogRecord] = []
        self.writes: WriteSet = {}

    def add(self, records: list[LogRecord]) -> None:
        """Add records that were read after the others."""
        self.read_at = self.of.settled
        for record in records:
            self.writes.update(record.writes)
        self.records += records
        if records:
            self.prefix += self.of.durable[len(self.prefix) : records[-1].end]

    def write(self, offset: int, data: bytes, *, sync: bool) -> None:
        raise AssertionError("only looked at")

    def sync(self) -> None:
        raise AssertionError("only looked at")

    def read(self, offset: int, size: int) -> bytes:
        with memoryview(self.of.durable) as content:
            return bytes(content[offset : offset + size])

    def close(self) -> None: ...


class _Reading(log_reader._LogReading):
    """A reading of a log that knows what the one before it has decoded."""

    def _records(self, segment: Segment) -> Iterator[LogRecord]:
        file = segment.file
        assert isinstance(file, _DurableFile)
        if file.read_at != file.of.settled:
            if file.records and file.of.durable.startswith(file.prefix):
                file.add(list(self._added(segment, file.records[-1])))
            else:
                file.forget()
                file.add(list(super()._records(segment)))
        return iter(file.records)

    def _added(self, segment: Segment, last: LogRecord) -> Iterator[LogRecord]:
        after = log_reader.read_records(segment.file, last.end, self._seed, last.sequence + 1)
        for record in after:
            if record.epoch < last.epoch:
                return
            yield record


class _View:
    """The view of one disk."""

    def __init__(self) -> None:
        self._version = -1
        self._state: SortedMap | None = None
        self._files: dict[str, _DurableFile] = {}
        self._sectors: list[tuple[str, MemoryFile, int]] = []
        self.outcome: object = None

    def has_changed(self, disk: MemoryDisk) -> bool:
        """Return whether anything else would be left now than at the last call."""
        if self._version == disk.log.version and self._state is disk.durable:
            return False
        sectors = [(name, file, file.settled) for name, file in sorted(disk.log.files.items())]
        if sectors == self._sectors and self._state is disk.durable:
            self._version = disk.log.version
            return False
        self._version, self._state, self._sectors = disk.log.version, disk.durable, sectors
        return True

    def logged(self, disk: MemoryDisk) -> WriteSet:
        """Return what the log holds durably; ``None`` is a deletion."""
        known, self._files = self._files, {}
        for name, file in sorted(disk.log.files.items()):
            if not name.endswith(NEW_SUFFIX):
                before = known.get(name)
                same = before is not None and before.of is file
                self._files[name] = before if before and same else _DurableFile(file)
        stored = disk.durable.get(MARKER_KEY)
        if stored is None or not self._files:
            return {}
        segments = [
            Segment(name, file, decode_header(file.read(0, BLOCK_BYTES)))
            for name, file in self._files.items()
        ]
        found = _Reading(segments, decode_marker(stored)[0], 0).found
        content: WriteSet = {}
        for segment, records in zip(found.segments, found.records, strict=True):
            file = segment.file
            assert isinstance(file, _DurableFile)
            if len(records) == len(file.records) and records[-1] is file.records[-1]:
                content.update(file.writes)
            else:  # it was read from its pointer on
                for record in records:
                    content.update(record.writes)
        return content


class DurableViews:
    """The durable content of disks, read again only when that has changed."""

    def __init__(self, read: Callable[[SortedMap, WriteSet], object]) -> None:
        self._read = read
        self._known: dict[MemoryDisk, _View] = {}

    def of(self, disk: MemoryDisk) -> object:
        """Return what ``read`` makes of the durable state and the durable log."""
        view = self._known.get(disk)
        if view is None:
            view = self._known[disk] = _View()
        if view.has_changed(disk):
            view.outcome = self._read(disk.durable, view.logged(disk))
        return view.outcome
