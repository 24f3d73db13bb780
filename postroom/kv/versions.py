"""Versions (MVCC): reading a user key, or a span of them, newest or as of a timestamp.

The *head* of a key holds its newest version, so reading that is one ``get``. Overwriting moves the
old version to the key's *history*. Both store the same bytes::

    kind (1)  timestamp (8)  payload

A deletion is a version too (a *tombstone*), until garbage collection removes it. An ``INTEGER`` is
what ``Increment`` writes: 8 bytes, big-endian, signed. It is a kind of its own so that a reader
whose values are packed by a codec need not guess. The kind ``INTENT`` is reserved for transactions
over several ranges.

Everything here is a pure function of a reader; what may be read (leases, collected history) is
decided above.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, TypeAlias

from postroom.kv import keys
from postroom.kv.cache import NO_CURSOR, GapCursor, Gaps
from postroom.kv.engine import Reader

VALUE: Final = 1
TOMBSTONE: Final = 2
INTENT: Final = 3
INTEGER: Final = 4

VALUE_KIND: Final = b"\x01"
TOMBSTONE_KIND: Final = b"\x02"
INTEGER_KIND: Final = b"\x04"
PAYLOAD: Final = 9
"""The offset at which the payload of a version begins."""

UNBOUNDED: Final = 1 << 62

_HAS_VALUE: Final = VALUE_KIND + INTEGER_KIND

SEEK_STEPS: Final = 4
"""The entries without a version that are walked through before a seek past others of their key."""
_A_SEEK: Final = (None,) * SEEK_STEPS

_Heads: TypeAlias = Generator[tuple[bytes, bytes], bytes | None, bytes | None]
"""A generator of heads, which returns where to seek to, or ``None`` at the end.

A caller that sends a bound lets it go on there; the result of ``send`` is to be ignored.
"""


class VersionPage(NamedTuple):
    """A part of a scan: its pairs, and where the next part goes on (``None``: nothing is left).

    It tells which of the pairs (counted from 0) contain integers, and how many keys were visited.
    """

    pairs: list[tuple[bytes, bytes]]
    resume: bytes | None
    integers: tuple[int, ...] = ()
    steps: int = 0


class StoredChange(NamedTuple):
    """A version in the order of its timestamp (8 bytes); ``value=None`` is a deletion."""

    timestamp: bytes
    key: bytes
    value: bytes | None
    integer: bool


def payload(version: bytes | None) -> bytes | None:
    """Return the value of a stored version; ``None`` if it is a tombstone or there is none."""
    if version is None or version[0] not in _HAS_VALUE:
        return None
    return version[PAYLOAD:]


def is_integer(version: bytes | None) -> bool:
    """Return whether a stored version is what ``Increment`` wrote."""
    return version is not None and version[0] == INTEGER


def newest(reader: Reader, key: bytes) -> bytes | None:
    """Return the newest version of a user key."""
    return reader.get(keys.head_key(key))


def as_of(reader: Reader, key: bytes, at: bytes) -> bytes | None:
    """Return the version of a user key as of the timestamp ``at`` (8 bytes)."""
    head = keys.head_key(key)
    return visible(reader, head, reader.get(head), at)


def visible(reader: Reader, head: bytes, latest: bytes | None, at: bytes) -> bytes | None:
    """Return the version that ``at`` sees of a key.

    ``latest`` is its head, stored at ``head``.
    """
    if latest is None or latest[1:PAYLOAD] <= at:
        return latest
    lower = keys.history_key(head, at)
    upper = head[:-1] + keys.INBOX
    for _, version in reader.iterate(lower, upper):
        return version
    return None


def scan(  # noqa: PLR0913 - a page of a scan has these bounds
    reader: Reader,
    start: bytes,
    end: bytes | None,
    at: bytes,
    *,
    pairs_max: int,
    bytes_max: int,
    reverse: bool = False,
    steps_max: int = UNBOUNDED,
    gaps: Gaps | None = None,
) -> VersionPage:
    """Return the values of the user keys in ``[start, end)`` as of ``at``, up to a limit.

    Keys that have no value then are visited too, and so are messages between them. After
    ``steps_max`` of all these the page ends where it is, however little it contains. Known ``gaps``
    are jumped over, new ones are noted there.
    """
    pairs: list[tuple[bytes, bytes]] = []
    integers: list[int] = []
    size = steps = 0
    key_from, end_of_key = 1, keys.END_OF_KEY
    lower, upper = keys.data_span(start, end)
    walk = GapCursor(gaps, at, lower, upper, reverse=reverse)
    source = heads(reader, start, end, reverse=reverse, walk=walk)
    is_in_run, previous = True, None
    for head, latest in source:
        steps += 1 if latest else 1 + SEEK_STEPS
        if steps > steps_max and _may_end(previous, latest, reverse=reverse):
            walk.ends(head)
            # A seek forward has passed by all of its key.
            is_behind = reverse or not latest
            resume = keys.user_key(head) + b"\x00" * is_behind
            return VersionPage(pairs, resume, tuple(integers), steps)
        previous = latest
        if not latest:
            continue
        version = latest if latest[1:PAYLOAD] <= at else visible(reader, head, latest, at)
        if version is None or version[0] not in _HAS_VALUE:
            walk.deleted(head, latest)
            if walk.jump is not None:
                source.send(walk.taken())
            is_in_run = True
            continue
        if is_in_run:
            walk.ends(head)
            is_in_run = False
        key = head[key_from : head.index(end_of_key, 1)]
        if b"\x00" in key:
            key = keys.unescape(key)
        if len(pairs) >= pairs_max or size >= bytes_max:
            return VersionPage(pairs, pairs[-1][0] if reverse else key, tuple(integers), steps)
        value = version[PAYLOAD:]
        size += len(key) + len(value)
        if version[0] == INTEGER:
            integers.append(len(pairs))
        pairs.append((key, value))
    walk.ends(lower if reverse else upper)
    return VersionPage(pairs, None, tuple(integers), steps)


def _may_end(previous: bytes | None, latest: bytes, *, reverse: bool) -> bool:
    """Return whether a page may end before a head or a seek, since it has passed something.

    Backwards, a key comes after the seek past its other entries.

    Args:
        previous: the head before, empty for a seek; ``None``: there was nothing in this page.
        latest: the head, empty for a seek.
        reverse: whether the scan goes backwards.
    """
    return previous is not None and bool(previous or not (reverse and latest))


def heads(
    reader: Reader,
    start: bytes,
    end: bytes | None,
    *,
    reverse: bool,
    walk: GapCursor = NO_CURSOR,
) -> Generator[tuple[bytes, bytes], bytes | None, None]:
    """Iterate over the heads in a span, seeking past the other entries and known gaps.

    Each seek past other entries is told as well, as a bound with an empty version, so that somebody
    counts it: ``SEEK_STEPS`` steps.
    """
    lower, upper = keys.data_span(start, end)
    jump = walk.taken()
    if jump is not None:
        reader.iterate(lower, upper)  # it may be blocked, also by what is jumped over
        lower, upper = (lower, jump) if reverse else (jump, upper)
    bound: bytes | None = lower
    while bound is not None and lower < upper:
        bound = yield from _heads(reader, lower, upper, reverse=reverse)
        if bound is not None:
            lower, upper = (lower, bound) if reverse else (bound, upper)


def _heads(reader: Reader, lower: bytes, upper: bytes, *, reverse: bool) -> _Heads:
    """Iterate over heads, up to entries that are worth a seek; return where to go on."""
    steps, end_of_key = 0, keys.END_OF_KEY
    beyond = keys.HISTORY if reverse else keys.SUFFIX_END
    for raw, stored in reader.iterate(lower, upper, reverse=reverse):
        end = raw.index(end_of_key, 1) + 2
        if len(raw) == end + 1 and raw[end] == 1:
            steps = 0
            jump = yield raw, stored
            if jump is not None:
                yield raw, stored
                return jump
            continue
        steps += 1
        if steps > SEEK_STEPS:
            yield raw[:end] + beyond, b""
            return raw[:end] + beyond
    return None


def changed_since(
    reader: Reader, start: bytes, end: bytes | None, since: bytes
) -> Iterator[bytes | None]:
    """Iterate over the user keys in ``[start, end)``: the changed ones, and ``None`` for others.

    A key is changed if it has a version after ``since`` (8 bytes).
    """
    for head, latest in heads(reader, start, end, reverse=False):
        if not latest:
            yield from _A_SEEK
        else:
            yield keys.user_key(head) if latest[1:PAYLOAD] > since else None


def changes(
    reader: Reader, start: bytes, end: bytes | None, after: bytes
) -> Iterator[StoredChange | None]:
    """Iterate over the versions after ``after`` in a span, the newest of each key first.

    Yields ``None`` for each key or version that is none of them.

    May be gone through slowly: what is written meanwhile is seen or not, and nothing twice.
    """
    for head, latest in heads(reader, start, end, reverse=False):
        if not latest:
            yield from _A_SEEK
            continue
        if latest[1:PAYLOAD] <= after:
            yield None
            continue
        key = keys.user_key(head)
        yield _change(key, latest)
        for _, version in reader.iterate(head[:-1] + keys.HISTORY, head[:-1] + keys.INBOX):
            if version[1:PAYLOAD] <= after:
                break
            if version[1:PAYLOAD] < latest[1:PAYLOAD]:  # else it was the head a moment ago
                yield _change(key, version)


def _change(key: bytes, version: bytes) -> StoredChange:
    return StoredChange(version[1:PAYLOAD], key, payload(version), is_integer(version))
