"""The reading of a log that is opened: its content, its end, and the check for missing records.

::

    headers ─▶ the newest segment that has a record ─▶ its notes say which is the oldest one wanted
            ─▶ all records from there on, in order ─▶ the end: torn, or damaged?

The log ends at a block at which no record of the next number is intact. It is the torn end
of a write that was never acknowledged, *unless*

* the mark, or the state (``durable``), says that the record was durable;
* a later record says so;
* it is not the newest segment that has a record.

Then something that was acknowledged is missing, and ``StoreCorrupted`` names the file.

A clean shutdown leaves a pointer to a record that holds everything that is wanted: reading begins
there, and what came before is not looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from postroom.errors import StoreCorrupted
from postroom.kv.log.device import Device, SegmentFile
from postroom.kv.log.format import (
    BLOCK_BYTES,
    CHANGES,
    CLOSED,
    FIRST_RECORD_AT,
    POINTER_AT,
    Header,
    LogRecord,
    claimed,
    decode_header,
    decode_pointer,
    decode_record,
    seed_of,
)

OLDEST_NOTE: Final = b"\x00oldest"
"""The number of the oldest segment that is wanted: 8 bytes."""

NEW_SUFFIX: Final = ".new"
_WINDOW_BYTES: Final = 1024 * 1024


@dataclass
class Segment:
    """A file of the log that is open.

    Attributes:
        header: who it is; ``None``: a spare one, whatever is in it.
    """

    name: str
    file: SegmentFile
    header: Header | None

    @property
    def number(self) -> int:
        """Its place in the log; 0 for a spare one."""
        return 0 if self.header is None else self.header.number


@dataclass
class LogContents:
    """The content of a log that was read.

    Attributes:
        segments: those that are wanted, oldest first.
        spares: the others.
        records: of each segment that is wanted.
        last: the number of the last record.
        end: where the next one goes, in the newest segment.
        epoch: the highest there is.
        number: the highest number of a segment.
    """

    segments: list[Segment] = field(default_factory=list)
    spares: list[Segment] = field(default_factory=list)
    records: list[list[LogRecord]] = field(default_factory=list)
    last: int = 0
    end: int = 0
    epoch: int = 0
    number: int = 0


def read_log(device: Device, log_id: bytes, durable: int) -> LogContents:
    """Read everything that the log of the id ``log_id`` holds.

    Args:
        device: where it lies.
        log_id: whose it is, as the state says.
        durable: a record of which the state says that it was durable.

    Raises:
        StoreCorrupted: something is missing or unreadable that was durable.
        VersionMismatch: a later version of this format.
    """
    with contextlib.ExitStack() as opened:
        segments = _open_segments(device, opened)
        found = _LogReading(segments, log_id, max(durable, device.marked())).found
        opened.pop_all()
        return found


def _open_segments(device: Device, opened: contextlib.ExitStack) -> list[Segment]:
    segments = []
    for name in device.names():
        if name.endswith(NEW_SUFFIX):
            device.remove(name)  # making it was cut short
            continue
        file = device.open(name)
        opened.callback(file.close)
        segments.append(Segment(name, file, decode_header(file.read(0, BLOCK_BYTES))))
    return segments


class _LogReading:
    """One reading of a log."""

    def __init__(self, segments: list[Segment], log_id: bytes, durable: int) -> None:
        self._segments = segments
        self._seed = seed_of(log_id)
        self._durable = durable
        self.found = LogContents()
        self._check_sizes(log_id)
        written = sorted((each for each in segments if each.header), key=lambda each: each.number)
        self.found.number = written[-1].number if written else 0
        self._read(written)

    def _check_sizes(self, log_id: bytes) -> None:
        for segment in self._segments:
            header, size = segment.header, segment.file.size
            if header is not None and header.log_id != log_id:
                raise damaged(f"{segment.name} is of another log")
            if size % BLOCK_BYTES or size <= FIRST_RECORD_AT or (header and header.size != size):
                expected = f", not {header.size}" if header else ""
                raise damaged(f"{segment.name} is {size} bytes long{expected}")

    def _read(self, written: list[Segment]) -> None:
        """Read from the newest segment with a record back to the oldest that is wanted."""
        found = self.found
        records: list[LogRecord] = []
        begun: list[Segment] = []
        while written and not records:
            begun.append(written.pop())
            records = list(self._records_from_pointer(begun[-1]))
        if not records:
            raise damaged(f"no segment can be read, but record {self._durable} was durable")
        newest = begun.pop()
        oldest = _oldest(records, newest.number)
        wanted = [each for each in written if each.number >= oldest]
        if oldest < newest.number and (not wanted or wanted[0].number != oldest):
            raise damaged(f"segment {oldest} is missing")
        for each in wanted:
            self._add(each, list(self._records(each)))
        self._add(newest, records)
        found.spares = [each for each in self._segments if each not in found.segments]
        self._check_continuity()
        last = records[-1]
        found.last, found.end, found.epoch = last.sequence, last.end, last.epoch
        self._check_end(newest, last)
        for each in begun:
            self._check_nothing_later(each, FIRST_RECORD_AT, last.sequence)

    def _add(self, segment: Segment, records: list[LogRecord]) -> None:
        """Add a segment, unless it was begun and given up: then it has no record.

        The next process may have had room in the segment before. The segments around it then follow
        each other, whatever its header says.
        """
        if not records and self.found.segments:
            return
        self.found.segments.append(segment)
        self.found.records.append(records)

    def _records_from_pointer(self, segment: Segment) -> Iterator[LogRecord]:
        header = segment.header
        assert header is not None
        pointer = decode_pointer(segment.file.read(POINTER_AT, BLOCK_BYTES), header)
        if pointer is not None:
            first = next(read_records(segment.file, pointer, self._seed, None), None)
            if first is not None and first.kind == CLOSED and first.sequence >= header.first:
                return read_records(segment.file, pointer, self._seed, first.sequence)
        return self._records(segment)

    def _records(self, segment: Segment) -> Iterator[LogRecord]:
        assert segment.header is not None
        records = read_records(segment.file, FIRST_RECORD_AT, self._seed, segment.header.first)
        first = next(records, None)
        if first is None or first.kind == CHANGES:
            return
        yield first
        yield from records

    # --- what is missing

    def _check_continuity(self) -> None:
        before: tuple[int, int] | None = None
        for segment, records in zip(self.found.segments, self.found.records, strict=True):
            first = records[0] if records else None
            if first is None:
                raise damaged(f"the first record of {segment.name} cannot be read")
            if before is not None and (first.sequence != before[0] + 1 or first.epoch < before[1]):
                raise damaged(
                    f"record {before[0] + 1} cannot be read, and {segment.name} begins with "
                    f"{first.sequence}"
                )
            before = records[-1].sequence, records[-1].epoch

    def _check_end(self, newest: Segment, last: LogRecord) -> None:
        if last.sequence < self._durable:
            raise damaged(
                f"it ends with record {last.sequence}, in {newest.name}, but record "
                f"{self._durable} was durable"
            )
        at_most = last.end + _WINDOW_BYTES if last.kind == CLOSED else newest.file.size
        self._check_nothing_later(newest, last.end, last.sequence, at_most)

    def _check_nothing_later(
        self, segment: Segment, start: int, last: int, stop: int | None = None
    ) -> None:
        """Check that no later record says that the one after ``last`` was durable."""
        file = segment.file
        for at in range(start, min(stop or file.size, file.size), _WINDOW_BYTES):
            window = file.read(at, _WINDOW_BYTES)
            for offset in range(0, len(window) - BLOCK_BYTES + 1, BLOCK_BYTES):
                sequence, size = claimed(window, offset)
                if not last < sequence <= last + file.size or at + offset + size > file.size:
                    continue
                record = decode_record(file.read(at + offset, size), 0, self._seed)
                if record is not None and record.durable > last:
                    raise damaged(
                        f"record {last + 1} cannot be read, but record {record.sequence}, at "
                        f"{at + offset} of {segment.name}, says that it was durable"
                    )


def read_records(file: SegmentFile, at: int, seed: int, first: int | None) -> Iterator[LogRecord]:
    """Iterate over the records from ``at`` on, while their numbers rise by one from ``first``."""
    window, begin = b"", at
    epoch = 0
    while at + BLOCK_BYTES <= file.size:
        if at + BLOCK_BYTES > begin + len(window):
            window, begin = file.read(at, _WINDOW_BYTES), at
        sequence, size = claimed(window, at - begin)
        if (first is not None and sequence != first) or at + size > file.size:
            return
        if at + size > begin + len(window):
            window, begin = file.read(at, max(size, _WINDOW_BYTES)), at
        record = decode_record(window, at - begin, seed)
        if record is None or record.epoch < epoch:
            return
        yield record._replace(end=at + size)
        first, epoch, at = record.sequence + 1, record.epoch, at + size


def _oldest(records: list[LogRecord], newest: int) -> int:
    """Return the number of the oldest segment that is wanted, as the newest one says."""
    for record in reversed(records):
        stored = record.writes.get(OLDEST_NOTE)
        if stored is not None:
            return int.from_bytes(stored, "big")
    return newest


def damaged(what: str) -> StoreCorrupted:
    """Return the error for a log that is not what it must be."""
    return StoreCorrupted(
        f"The log of the store is damaged: {what}. Nothing was changed. Restore the whole folder "
        "from a backup; a node of a cluster is replaced as if its disk were lost."
    )
