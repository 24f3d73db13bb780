"""The check that tells the torn end of a write-ahead log from damage, after a loss of power.

A write that the power cut short may leave the log at its full length, but with pages that were
never written and read as zeros. LevelDB, where it is strict, takes that for damage and does not
open; where it is not, it drops real damage without a word. If LevelDB has refused a log, it is
therefore looked at here, in LevelDB's own format (``doc/log_format.md`` of its repository). Blocks
of 32 KiB hold fragments (checksum, length, type, payload). A record is one FULL fragment, or a
FIRST, any MIDDLE and a LAST one::

    │ FULL │ FULL │ FIRST ─┼─ MIDDLE ─┼─ 000000 ─┼─ LAST │         torn: cut before FIRST
    │ FULL │ FU#L │ FULL │ FULL │                                 damaged: refused

The end counts as torn only if all of this holds:

* It is the newest log. Older ones were synced before the newer was begun.
* No record begins after the bad fragment. Records that were synced before a later one are complete.
* A sector after that place is zeros throughout. A flipped bit does not look like that.

Then no sync of that record has returned, so nothing acknowledged is lost by cutting it off. The cut
part is kept beside the log, in a file ``*.torn``. If there is another log to replay
(:mod:`postroom.kv.storage`), LevelDB's is not synced: its pages may be missing anywhere, and it is
cut off at the first one. Left out: a torn end of several unsynced records of which a later one
survived; it cannot be told from damage, and is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 32 * 1024
_HEADER_BYTES: Final = 7
_SECTOR_BYTES: Final = 512
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def cut_torn_end(log: Path, *, at_any_damage: bool = False) -> bool:
    """Cut off the torn record at the end of ``log``, if there is one; return whether there was.

    Args:
        log: the newest one.
        at_any_damage: cut it off at the first record that cannot be read, whatever the reason:
            nothing in it was synced that is not found elsewhere.
    """
    data = log.read_bytes()
    whole, bad = whole_records(data)
    if bad is None:
        return False
    if not at_any_damage and (_a_record_begins(data, bad) or not _has_unwritten_sector(data, bad)):
        return False
    log.with_suffix(".torn").write_bytes(data[whole:])
    with log.open("r+b") as file:
        file.truncate(whole)
        os.fsync(file.fileno())
    return True


def whole_records(data: bytes) -> tuple[int, int | None]:
    """Return the end of the last of the whole records at the start of ``data``, and what follows.

    The second place is that of the bad fragment, or ``None``.
    """
    at = whole = 0
    while (at := _next_header(at)) + _HEADER_BYTES <= len(data):
        fragment = _fragment(data, at)
        if fragment is None:
            return whole, at
        kind, at = fragment
        if kind in (_FULL, _LAST):
            whole = at
    return whole, None


def records(data: bytes) -> Iterator[bytes]:
    """Iterate over the records that ``data`` begins with; checksums are not looked at."""
    at, pieces = 0, b""
    while (at := _next_header(at)) + _HEADER_BYTES <= len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        begin, at = at + _HEADER_BYTES, at + _HEADER_BYTES + length
        if not _FULL <= kind <= _LAST or at > len(data):
            return
        pieces = data[begin:at] if kind in (_FULL, _FIRST) else pieces + data[begin:at]
        if kind in (_FULL, _LAST):
            yield pieces


def _a_record_begins(data: bytes, bad: int) -> bool:
    """Return whether a record begins after ``bad``, in whose block nothing can be relied on."""
    for block in range(bad - bad % _BLOCK_BYTES + _BLOCK_BYTES, len(data), _BLOCK_BYTES):
        fragment = _fragment(data, block)
        while fragment is not None:
            kind, end = fragment
            if kind in (_FULL, _FIRST):
                return True
            fragment = _fragment(data, end) if _next_header(end) == end else None
    return False


def _has_unwritten_sector(data: bytes, start: int) -> bool:
    for sector in range(start - start % _SECTOR_BYTES, len(data), _SECTOR_BYTES):
        rest = data[max(sector, start) : sector + _SECTOR_BYTES]
        if len(rest) >= _HEADER_BYTES and not any(rest):
            return True
    return False


def _next_header(at: int) -> int:
    """Return where the fragment after ``at`` begins.

    No header stands across the end of a block.
    """
    room = _BLOCK_BYTES - at % _BLOCK_BYTES
    return at + room if room < _HEADER_BYTES else at


def _fragment(data: bytes, at: int) -> tuple[int, int] | None:
    """Type and end of the fragment at ``at``, or ``None`` if it is cut off or not intact."""
    start = at + _HEADER_BYTES
    end = start + int.from_bytes(data[at + 4 : at + 6], "little")
    if start > len(data) or end > min(len(data), at - at % _BLOCK_BYTES + _BLOCK_BYTES):
        return None
    kind = data[at + 6]
    intact = _masked_crc32c(data[at + 6 : end]) == int.from_bytes(data[at : at + 4], "little")
    return (kind, end) if intact and _FULL <= kind <= _LAST else None


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C: Final = [_table_entry(byte) for byte in range(256)]


def _masked_crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720), rotated and offset as LevelDB stores it. Slow: 10 MB a second."""
    table, crc = _CRC32C, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
