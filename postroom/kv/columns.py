"""Many versions at a time, for whoever reads everything: columns rather than pairs.

A page of a scan as columns is a few lists, one a column, filled in one pass without an object for
each row. The sender joins each list into one byte string (:func:`packed`), and the receiver
hands that to a library of columns as it is.

Two ways to walk, over the same stored bytes (:mod:`.versions`):

* The walk *as of* a timestamp: the version of each key that was the newest then, no deletions.
* *changes*: all versions after one timestamp and up to another, deletions too: key by key, the
  oldest of each key first. A key may have any number of them, so a page may end within a key.

Also here: :func:`entries_beside`, a walk over the entries beside keys (inboxes, sums, messages).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple, TypeAlias

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.kv.versions import INTEGER_KIND, INTENT, PAYLOAD, TOMBSTONE, VALUE_KIND, visible

_STEPS_BEFORE_SEEK: Final = 4
_BLOCK_FIRST: Final = 16
_BLOCK: Final = 1024
_VALUES: Final = VALUE_KIND + INTEGER_KIND
_HEADS: Final = {keys.END_OF_KEY + keys.HEAD}
_NEVER: Final = b"\x00" * 8

Pair: TypeAlias = tuple[bytes, bytes]
"""An engine key, and what is stored there."""
SuffixEntry: TypeAlias = tuple[bytes, int, bytes | None]
"""An engine key, the end of its user key in it, and the value, if it was looked for.

The suffix is two bytes further than the end.
"""


class ReadingBounds(NamedTuple):
    """The bounds of a reading.

    Attributes:
        start, end: user keys; ``end=None`` is unbounded.
        at: as of when; of changes, the last that count (8 bytes).
        after: versions of this time (8 bytes) and before do not count.
        first_after: of changes of the key ``start``: those of this time and before are known.
    """

    start: bytes
    end: bytes | None
    at: bytes
    after: bytes = _NEVER
    first_after: bytes = _NEVER


class PageLimits(NamedTuple):
    """The limits of a page: its bytes, and the engine keys that are visited for it."""

    bytes_max: int
    steps_max: int


class Rows:
    """The columns in the making.

    Attributes:
        keys, payloads: of each row the user key and the value.
        stamps: of each row the timestamp (8 bytes).
        kinds: of all rows, a byte each.
        size: about how many bytes they have.
        steps: how many engine keys were visited for them.
        resume: where the next page begins; ``None``: there is none. ``resume_after``: of the
            changes of that key, which are known already (8 bytes).
    """

    __slots__ = (
        "keys", "kinds", "payloads", "resume", "resume_after", "size", "stamps", "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.stamps: list[bytes] = []
        self.kinds = bytearray()
        self.size = 0
        self.steps = 0
        self.resume: bytes | None = None
        self.resume_after = _NEVER

    def add(self, key: bytes, version: bytes) -> None:
        """Add a row."""
        self.keys.append(key)
        self.payloads.append(version[PAYLOAD:])
        self.stamps.append(version[1:PAYLOAD])
        self.kinds.append(version[0])


def as_of(reader: Reader, bounds: ReadingBounds, room: PageLimits) -> Rows:
    """Return the versions that were the newest at ``bounds.at``, as far as there is room."""
    rows = Rows()
    lower, upper = keys.data_span(bounds.start, bounds.end)
    bound: bytes | None = lower
    while bound is not None:
        bound = _as_of_from(reader, bound, upper, bounds, room, rows)
    return rows


def _as_of_from(
    reader: Reader, lower: bytes, upper: bytes, bounds: ReadingBounds, room: PageLimits, rows: Rows
) -> bytes | None:
    """Go on from an engine key; return where to seek to, or ``None`` at the end of the page."""
    pairs = reader.iterate(lower, upper)
    most, last = _BLOCK_FIRST, b""
    while True:
        left = room.steps_max - rows.steps
        if left <= 0 or rows.size >= room.bytes_max:
            rows.resume = _resume(last, next(pairs, None))
            return None
        before = rows.size
        raws, stored = _block(pairs, rows, min(left, most), room.bytes_max)
        if not raws:
            return None
        last, most = raws[-1], min(4 * most, _BLOCK)
        if not _add_block(rows, raws, stored, bounds):
            rows.size = before
            seek = _add_one_by_one(reader, raws, stored, bounds, rows)
            if seek is not None:
                return seek


def _resume(last: bytes, following: Pair | None) -> bytes | None:
    """Return where the next page begins.

    It begins with the next engine key, or behind its user key if that has been looked at.
    """
    if following is None:
        return None
    raw = following[0]
    key = keys.user_key(raw)
    return key + b"\x00" if last.startswith(raw[: raw.index(keys.END_OF_KEY, 1) + 2]) else key


def _block(
    pairs: Iterator[Pair], rows: Rows, most: int, bytes_max: int
) -> tuple[list[bytes], list[bytes]]:
    """Return the next engine keys and their values, up to the first beyond ``bytes_max``."""
    raws: list[bytes] = []
    stored: list[bytes] = []
    size = rows.size
    for raw, value in islice(pairs, most):
        raws.append(raw)
        stored.append(value)
        size += len(raw) + len(value)
        if size >= bytes_max:
            break
    rows.size = size
    rows.steps += len(raws)
    return raws, stored


def _add_block(rows: Rows, raws: list[bytes], stored: list[bytes], bounds: ReadingBounds) -> bool:
    """Add a block column by column; return false if one of its rows wants to be looked at.

    Nothing is added then.

    None does if all are heads, of values, as old as is wanted, of keys without zeros. (A record
    beside a key has zeros before its last three bytes.)
    """
    stamps = [version[1:PAYLOAD] for version in stored]
    if max(stamps) > bounds.at or min(stamps) <= bounds.after:
        return False
    kinds = bytes([version[0] for version in stored])
    names = [raw[1:-3] for raw in raws]
    if kinds.translate(None, _VALUES) or b"\x00" in b"".join(names):
        return False
    if {raw[-3:] for raw in raws} != _HEADS:
        return False
    rows.keys += names
    rows.payloads += [version[PAYLOAD:] for version in stored]
    rows.stamps += stamps
    rows.kinds += kinds
    return True


def _add_one_by_one(
    reader: Reader, raws: list[bytes], stored: list[bytes], bounds: ReadingBounds, rows: Rows
) -> bytes | None:
    """Add the wanted rows of a block; return where to seek to, if much is skipped."""
    at, after, end_of_key = bounds.at, bounds.after, keys.END_OF_KEY
    skipped = 0
    for raw, latest in zip(raws, stored, strict=True):
        end = raw.index(end_of_key, 1)
        if raw[end + 2 :] != keys.HEAD:
            skipped += 1
            if skipped > _STEPS_BEFORE_SEEK:
                return raw[: end + 2] + keys.SUFFIX_END
            continue
        skipped = 0
        version = latest
        if latest[1:PAYLOAD] > at:
            past = visible(reader, raw, latest, at)
            if past is None:
                continue
            version = past
        if version[0] in (TOMBSTONE, INTENT) or version[1:PAYLOAD] <= after:
            continue
        rows.add(keys.unescape(raw[1:end]), version)
        rows.size += len(raw) + len(version)
    return None


def changes(reader: Reader, bounds: ReadingBounds, room: PageLimits) -> Rows:
    """Return all versions after ``bounds.after``, up to ``bounds.at``, as far as there is room."""
    rows = Rows()
    span = keys.data_span(bounds.start, bounds.end)
    for raw, end, latest in entries_beside(reader, span, keys.HEAD, keys.HISTORY):
        rows.steps += 1
        key = keys.unescape(raw[1:end])
        if latest is None:
            if rows.steps > room.steps_max:
                rows.resume, rows.resume_after = key + b"\x00", _NEVER
                return rows
            continue
        known = bounds.first_after if key == bounds.start else bounds.after
        rows.resume, rows.resume_after = key, known
        if _is_full(rows, room) or (rows.steps > room.steps_max and key != bounds.start):
            return rows
        if latest[1:PAYLOAD] > known and not _changes_of(reader, raw, latest, bounds, room, rows):
            return rows
    rows.resume = None
    return rows


def _changes_of(
    reader: Reader, head: bytes, latest: bytes, bounds: ReadingBounds, room: PageLimits, rows: Rows
) -> bool:
    """Add the changes of one key, the oldest first; return whether there was room for all."""
    key, known, newest = rows.resume, rows.resume_after, latest[1:PAYLOAD]
    assert key is not None
    older = reader.iterate(
        keys.history_key(head, bounds.at), keys.history_key(head, known), reverse=True
    )
    for _, version in older:
        rows.steps += 1
        if version[1:PAYLOAD] >= newest:  # it was the head a moment ago
            break
        if _is_full(rows, room):
            return False
        _add(rows, key, version)
    if newest <= bounds.at:
        if _is_full(rows, room):
            return False
        _add(rows, key, latest)
    return True


def _add(rows: Rows, key: bytes, version: bytes) -> None:
    rows.add(key, version)
    rows.size += len(key) + len(version)
    rows.resume_after = version[1:PAYLOAD]


def _is_full(rows: Rows, room: PageLimits) -> bool:
    """Return whether the page is full. A page has one row at least."""
    if not rows.keys:
        return False
    return rows.steps > room.steps_max or rows.size >= room.bytes_max


# --- records beside keys -------------------------------------------------------------------------


def entries_beside(
    reader: Reader, span: keys.KeySpan, suffix: bytes, beyond: bytes
) -> Iterator[SuffixEntry]:
    """Iterate over a span of engine keys (``06``), with the values under some suffixes.

    These are the suffixes from ``suffix`` up to ``beyond``, which is left out. The iteration seeks
    past keys under other suffixes if there are many.

    Seeks past whatever else a key has much of.
    """
    bound: bytes | None = span.lower
    while bound is not None:
        bound = yield from _beside_from(reader, keys.KeySpan(bound, span.upper), suffix, beyond)


def _beside_from(
    reader: Reader, span: keys.KeySpan, suffix: bytes, beyond: bytes
) -> Generator[SuffixEntry, None, bytes | None]:
    steps, end_of_key = 0, keys.END_OF_KEY
    for raw, stored in reader.iterate(*span):
        end = raw.index(end_of_key, 1)
        kind = raw[end + 2 : end + 3]
        if suffix <= kind < beyond:
            steps = 0
            yield raw, end, stored
            continue
        yield raw, end, None
        steps += 1
        if steps > _STEPS_BEFORE_SEEK:
            return raw[: end + 2] + (suffix if kind < suffix else keys.SUFFIX_END)
    return None


# --- one byte string ------------------------------------------------------------------------------


def packed(column: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return a column in one piece, and the end of each of its values in it.

    An end has 4 bytes, the least significant first.
    """
    values = list(column)
    ends = array("I", accumulate(map(len, values)))
    assert ends.itemsize == 4
    if sys.byteorder == "big":  # pragma: no cover - no such machine runs the tests
        ends.byteswap()
    return b"".join(values), ends.tobytes()
