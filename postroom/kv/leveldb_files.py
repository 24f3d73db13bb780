"""The files of LevelDB, read without it: torn logs, missing logs, and folders on full devices.

RocksDB has the format of these logs, too.

*The torn end of a log.* A write that the power cut short may leave the log at its full length. It
then has pages that were never written and read as zeros. LevelDB, where it is strict, takes that
for damage and does not open; where it is not, it drops real damage without a word. If LevelDB has
refused a log, it is therefore looked at here, in LevelDB's own format (``doc/log_format.md`` of its
repository). Blocks of 32 KiB hold fragments (checksum, length, type, payload). A record is one FULL
fragment, or a FIRST, any MIDDLE and a LAST one::

    │ FULL │ FULL │ FIRST ─┼─ MIDDLE ─┼─ 000000 ─┼─ LAST │         torn: cut before FIRST
    │ FULL │ FU#L │ FULL │ FULL │                                 damaged: refused

The end counts as torn only if all of this holds:

* It is the newest log. Older ones were synced before the newer was begun.
* No record begins after the bad fragment. Records that were synced before a later one are complete.
* A sector after that place is zeros throughout. A flipped bit does not look like that.

Then no sync of that record has returned, so nothing acknowledged is lost by cutting it off. The cut
part is kept beside the log, in a file ``*.torn``. Left out: a torn end of several unsynced records
of which a later one survived; it cannot be told from damage, and is refused.

*With another log to replay* (:mod:`postroom.kv.storage`) LevelDB's logs are hardly ever synced:
their pages may be missing anywhere, also at the end of one that others follow. The logs are cut off
at the first record that is missing or cannot be read, and those after it are set aside. The state
is then a prefix of the write sets. The other log tells whether all that was synced is in it.

*The logs of a folder.* LevelDB does not check that its logs fit together, and fit its manifest.
The manifest is a log of edits. Whenever a memtable has become a table file, an edit tells from
which log on there is data that is not in tables. LevelDB removes the logs before that one. It opens
a manifest that was cut, takes the edits that are left, and reads the logs that are left. A table
file whose edit is missing, and whose log is gone, is then missing without a word, while later
writes are there.

::

    edits   │ log 3 │ +table 4, log 5 │ +table 6, log 7      logs 7, 9
    cut     │ log 3 │ +table 4, log 5 │                      logs 7, 9    5 is missing: damage

Two things hold of a folder that nothing is missing from, and are checked here:

* The log that the manifest names is there: LevelDB syncs the folder along with the manifest, and
  makes the log before it names it.
* Write sets are numbered, and each log begins with the number after the last one of the log before.

The formats are LevelDB's (``doc/impl.md``, ``db/version_edit.cc``, ``db/write_batch.cc``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from postroom.kv.folder import damaged, logs, sync_path

# --- the end of a log -----------------------------------------------------------------------------


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
    """Return a CRC-32C (RFC 3720) as LevelDB stores it, rotated. It is slow: 10 MB a second."""
    table, crc = _CRC32C, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- the logs of a folder, and its manifest -------------------------------------------------------


_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE = 1, 2, 3, 4
_COMPACT_POINTER, _DELETED_FILE, _NEW_FILE, _PREVIOUS_LOG = 5, 6, 7, 9

_FIELDS: Final = {
    _COMPARATOR: "s", _LOG_NUMBER: "n", _NEXT_FILE: "n", _LAST_SEQUENCE: "n",
    _COMPACT_POINTER: "ns", _DELETED_FILE: "nn", _NEW_FILE: "nnnss", _PREVIOUS_LOG: "n",
}  # fmt: skip
"""The fields that follow each tag of an edit: numbers and strings."""

_BATCH_HEADER_BYTES: Final = 12


def check_logs(folder: Path) -> None:
    """Look at a folder that LevelDB is about to open.

    Raises:
        StoreCorrupted: a log is missing, or the end of one that others follow.
    """
    found = _live_logs(folder)
    whole = _without_hole(found)
    if whole < len(found):
        raise damaged(
            folder, f"{found[whole - 1].name} is cut off: {found[whole].name} does not go on there"
        )


def cut_hole(folder: Path) -> None:
    """Set aside the logs after one whose end is missing, before LevelDB opens a folder.

    Raises:
        StoreCorrupted: the first log is missing.
    """
    found = _live_logs(folder)
    _set_aside(found[_without_hole(found) :])


def cut_damage(folder: Path) -> bool:
    """Cut the logs off at the first record that cannot be read; return whether there is one."""
    found = _live_logs(folder)
    for number, log in enumerate(found, 1):
        if cut_torn_end(log, at_any_damage=True):
            _set_aside(found[number:])
            return True
    return False


def _set_aside(some: list[Path]) -> None:
    """Rename logs, the last one first: those that are left are without a hole all the time."""
    for log in reversed(some):
        log.rename(log.with_suffix(".torn"))
        sync_path(log.parent)


def _live_logs(folder: Path) -> list[Path]:
    """Return the logs that LevelDB will read, oldest first; none if it refuses or makes a folder.

    Raises:
        StoreCorrupted: the first one is missing.
    """
    number = _log_number(folder)
    if number is None:
        return []
    found = [path for path in logs(folder) if int(path.stem) >= number]
    if not found or int(found[0].stem) != number:
        raise damaged(
            folder,
            f"the log {number:06}.log is missing, or the manifest is cut off after it was named",
        )
    return found


def _without_hole(found: list[Path]) -> int:
    """Return how many logs, from the first one on, each go on where the one before ends."""
    for number, (one, other) in enumerate(pairwise(found), 1):
        begins = _first_sequence(other)
        if begins is not None and begins != _sequence_after(one):
            return number
    return len(found)


def _log_number(folder: Path) -> int | None:
    """Return the number of the log from which on LevelDB will read."""
    try:
        name = (folder / "CURRENT").read_text().strip()
        data = (folder / name).read_bytes()
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    number = None
    for record in records(data):
        try:
            number = dict(_numbers(record)).get(_LOG_NUMBER, number)
        except (IndexError, KeyError):
            return None
    return number


def _numbers(edit: bytes) -> Iterator[tuple[int, int]]:
    """Iterate over the tags of an edit, with the first number after each."""
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        first = 0
        for index, kind in enumerate(_FIELDS[tag]):
            value, at = _varint(edit, at)
            if index == 0:
                first = value
            if kind == "s":
                at += value
        yield tag, first


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _first_sequence(log: Path) -> int | None:
    """Return the number of the first write of ``log``; ``None``: there is none."""
    batch = next(records(log.read_bytes()), None)
    return None if batch is None or len(batch) < _BATCH_HEADER_BYTES else _sequence(batch)[0]


def _sequence_after(log: Path) -> int | None:
    """Return the number after the last write of ``log``; ``None``: there is none."""
    last = None
    for batch in records(log.read_bytes()):
        if len(batch) >= _BATCH_HEADER_BYTES:
            last = batch
    return None if last is None else sum(_sequence(last))


def _sequence(batch: bytes) -> tuple[int, int]:
    """Return a batch's number, and how many writes it counts for."""
    return int.from_bytes(batch[:8], "little"), int.from_bytes(batch[8:12], "little")


# --- a folder on a full device --------------------------------------------------------------------


IN_MEMORY: Final = Path("/dev/shm")
_COPIED: Final = ("CURRENT", "MANIFEST-*", "*.log")
_LINKED: Final = "*.ldb"


class Shadow:
    """A shadow of a folder of LevelDB, to read it while its own device is full.

    LevelDB writes when it opens a folder: a manifest, and a table of what is in its log. A shadow
    is a folder on another device, in memory as a rule. It has links to the tables, and copies of
    the rest, which is little. LevelDB's writes and deletions there do not touch the original.

    A process that is killed leaves its shadow. The next one for the same folder removes it.

    Args:
        folder: the original, absolute.

    Attributes:
        path: the shadow.

    Raises:
        OSError: there is no room for it anywhere.
    """

    def __init__(self, folder: Path) -> None:
        name = f"postroom-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}"
        error: OSError | None = None
        for parent in (IN_MEMORY, Path(tempfile.gettempdir())):
            self.path = parent / name
            try:
                self._make(folder)
            except OSError as failure:
                error = failure
                self.remove()
            else:
                return
        assert error is not None
        raise error

    def _make(self, folder: Path) -> None:
        self.remove()
        self.path.mkdir(mode=0o700)  # fails if it is somebody else's
        for pattern in _COPIED:
            for file in folder.glob(pattern):
                shutil.copyfile(file, self.path / file.name)
        for file in folder.glob(_LINKED):
            (self.path / file.name).symlink_to(file)

    def remove(self) -> None:
        """Remove it, if it is this user's. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
