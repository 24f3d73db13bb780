"""The bytes of the log: segments, their headers, and records. ``docs/storage.md`` is the page.

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
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from postroom.errors import VersionMismatch
from postroom.kv.engine import WriteSet

BLOCK_BYTES: Final = 4096
POINTER_AT: Final = BLOCK_BYTES
FIRST_RECORD_AT: Final = 2 * BLOCK_BYTES
LOG_ID_BYTES: Final = 16

FORMAT_VERSION: Final = 1
MAGIC: Final = b"postroom"

CHANGES: Final = 0
"""A record that holds what has changed,"""
WHOLE: Final = 1
"""one that begins with all notes, so that reading can begin with it,"""
CLOSED: Final = 2
"""and one that besides holds every entry that is wanted: the last one of a log that was closed."""

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
        writes: what it holds.
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
    """``size`` rounded up to whole blocks."""
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
"""Encode the content of a record."""


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
