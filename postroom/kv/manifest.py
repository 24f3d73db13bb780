"""The check that LevelDB's logs fit together, and fit its manifest. LevelDB does not make it.

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
  Each log is synced before the next one is begun: see ``LogRotation``.

The formats are LevelDB's (``doc/impl.md``, ``db/version_edit.cc``, ``db/write_batch.cc``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from postroom.kv.folder import damaged, logs
from postroom.kv.torn_log import records

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
    number = _log_number(folder)
    if number is None:
        return  # LevelDB refuses it, or makes it
    found = [path for path in logs(folder) if int(path.stem) >= number]
    if not found or int(found[0].stem) != number:
        raise damaged(
            folder,
            f"the log {number:06}.log is missing, or the manifest is cut off after it was named",
        )
    for one, other in pairwise(found):
        after, begins = _sequence_after(one), _first_sequence(other)
        if begins is not None and begins != after:
            raise damaged(folder, f"{one.name} is cut off: {other.name} goes on at {begins}")


def _log_number(folder: Path) -> int | None:
    """From which log on LevelDB will read."""
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
    """Its number, and how many writes it counts for."""
    return int.from_bytes(batch[:8], "little"), int.from_bytes(batch[8:12], "little")
