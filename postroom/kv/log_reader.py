"""The bytes of the log, and the reading of a log that is opened. ``docs/storage.md`` is the page.

::

    segment   │ header │ pointer │ record ....... │ record .. │ record .... │ what was here before
              0        4 KiB     8 KiB            each begins at a block of 4 KiB

Records stand on blocks of their own, so a block that was acknowledged is never written again: a
write that the power cuts short can only spoil itself.

Invariants:

* Sequence numbers of records rise by one, through all segments. The checksum covers the number and
  is seeded with the id of the log. Remains of an earlier use of the segment are thus never taken
  for a record that follows.
* Epochs, one for each opening, never fall along the log. If two records have one number (the power
  cut off the first one), the later one counts. Nothing that once followed the first one counts.
* A record says which one was known to be durable when it was written. A record that cannot be read
  is therefore damage if a later one says that it was durable, and else the torn end.
* A header lies within one sector, which devices write whole or not at all.

*Reading* finds the content of the log, its end, and missing records::

    headers ─▶ the newest segment that has a record ─▶ its notes say which is the oldest one wanted
            ─▶ all records from there on, in order ─▶ the end: torn, or damaged?

The log ends at a block at which no record of the next number is intact. It is the torn end
of a write that was never acknowledged, *unless*

* the mark, or the state (``durable``), says that the record was durable;
* a later record says so;
* it is not the newest segment that has a record.

Then something that was acknowledged is missing, and ``StoreCorrupted`` names the file.

A clean shutdown leaves a pointer to a record that has everything that is wanted: reading begins
there, and what came before is not looked at.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv.engine import WriteSet
from postroom.kv.log_device import Device, SegmentFile

# --- the bytes ------------------------------------------------------------------------------------


BLOCK_BYTES: Final = 4096
POINTER_AT: Final = BLOCK_BYTES
FIRST_RECORD_AT: Final = 2 * BLOCK_BYTES
LOG_ID_BYTES: Final = 16

FORMAT_VERSION: Final = 1
MAGIC: Final = b"postroom"

CHANGES: Final = 0
"""A record that contains the changes."""
WHOLE: Final = 1
"""A record that begins with all notes: reading can begin with it."""
CLOSED: Final = 2
"""A whole record with every wanted entry: the last one of a log that was closed."""

_HEADER: Final = struct.Struct("<8sI16sQQQ")
_POINTER: Final = struct.Struct("<QQ")
_RECORD: Final = struct.Struct("<IQQII")
_CHECKSUM: Final = struct.Struct("<I")
RECORD_HEADER_BYTES: Final = _CHECKSUM.size + _RECORD.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[bytes, bytes | None]).decode


class Header(NamedTuple):
    """The identity of a segment.

    Attributes:
        log_id: of which log.
        number: how many segments were begun before it, and one.
        size: its length in bytes, which never changes.
        first: the sequence number of its first record.
    """

    log_id: bytes
    number: int
    size: int
    first: int


class LogRecord(NamedTuple):
    """One record, as it is read.

    Attributes:
        sequence: its number.
        durable: the last record that was known to be durable when this one was written.
        epoch: in which opening that was.
        kind: ``CHANGES``, ``WHOLE`` or ``CLOSED``.
        writes: what it contains.
        end: where the next record begins.
    """

    sequence: int
    durable: int
    epoch: int
    kind: int
    writes: WriteSet
    end: int


def seed_of(log_id: bytes) -> int:
    """Return the seed of all checksums of a log."""
    return zlib.crc32(log_id)


def blocks(size: int) -> int:
    """Return ``size`` rounded up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


# --- headers and pointers -------------------------------------------------------------------------


def encode_header(header: Header) -> bytes:
    """Return the first block of a segment, with an empty one behind it for the pointer."""
    log_id, number, size, first = header
    content = _HEADER.pack(MAGIC, FORMAT_VERSION, log_id, number, size, first)
    return (content + _CHECKSUM.pack(zlib.crc32(content))).ljust(FIRST_RECORD_AT, b"\0")


def decode_header(block: bytes) -> Header | None:
    """Return the header of a segment that begins with ``block``; ``None``: it has none.

    Raises:
        VersionMismatch: it is of a later version.
    """
    end = _HEADER.size
    if len(block) < end + _CHECKSUM.size:
        return None
    if _CHECKSUM.unpack_from(block, end)[0] != zlib.crc32(block[:end]):
        return None
    magic, version, log_id, number, size, first = _HEADER.unpack_from(block)
    if magic != MAGIC:
        return None
    if version != FORMAT_VERSION:
        raise VersionMismatch(
            f"the log is written in format {version}, this version of Postroom knows "
            f"{FORMAT_VERSION}; nothing was changed: open it with a version that knows its format"
        )
    return Header(log_id, number, size, first)


def encode_pointer(header: Header, offset: int) -> bytes:
    """Return the second block of a segment: reading may begin at ``offset``."""
    content = _POINTER.pack(header.number, offset)
    checksum = zlib.crc32(content, seed_of(header.log_id))
    return (content + _CHECKSUM.pack(checksum)).ljust(BLOCK_BYTES, b"\0")


def decode_pointer(block: bytes, header: Header) -> int | None:
    """Return where reading may begin; ``None``: nothing that can be read says so."""
    content = block[: _POINTER.size]
    if len(block) < _POINTER.size + _CHECKSUM.size:
        return None
    checksum = zlib.crc32(content, seed_of(header.log_id))
    if _CHECKSUM.unpack_from(block, _POINTER.size)[0] != checksum:
        return None
    number, offset = _POINTER.unpack(content)
    return offset if number == header.number else None


# --- records --------------------------------------------------------------------------------------


encode_payload: Callable[[WriteSet], bytes] = _encode
"""The function that encodes the content of a record."""


def encode_record(
    seed: int, sequence: int, durable: int, epoch: int, kind: int, payload: bytes
) -> bytes:
    """Return a record as it is written, in whole blocks."""
    head = _RECORD.pack(len(payload), sequence, durable, epoch, kind)
    checksum = zlib.crc32(payload, zlib.crc32(head, seed))
    padding = bytes(-(RECORD_HEADER_BYTES + len(payload)) % BLOCK_BYTES)
    return b"".join((_CHECKSUM.pack(checksum), head, payload, padding))


def claimed(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Sequence number and length in blocks of what would be a record at ``at``, unchecked."""
    length, sequence, _, _, _ = _RECORD.unpack_from(data, at + _CHECKSUM.size)
    return sequence, blocks(RECORD_HEADER_BYTES + length)


def decode_record(data: bytes | memoryview, at: int, seed: int) -> LogRecord | None:
    """Return the record at ``at`` of ``data``; ``None``: there is none that is intact."""
    begin = at + RECORD_HEADER_BYTES
    if begin > len(data):
        return None
    length, sequence, durable, epoch, kind = _RECORD.unpack_from(data, at + _CHECKSUM.size)
    if begin + length > len(data):
        return None
    content = memoryview(data)[at + _CHECKSUM.size : begin + length]
    if _CHECKSUM.unpack_from(data, at)[0] != zlib.crc32(content, seed):
        return None
    try:
        writes = _decode(content[_RECORD.size :])
    except msgspec.DecodeError:
        return None
    return LogRecord(
        sequence, durable, epoch, kind, writes, at + blocks(RECORD_HEADER_BYTES + length)
    )


# --- reading --------------------------------------------------------------------------------------


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
        """Return its place in the log; 0 for a spare one."""
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
    """Read everything that the log of the id ``log_id`` contains.

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

    # --- missing records

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
