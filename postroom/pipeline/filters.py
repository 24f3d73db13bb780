"""Filters of Spark that narrow what has to be read.

Spark evaluates every filter again: a selection may be too wide, never too narrow. It hands on
conditions that are joined by AND, with literals. For columns of bytes these are ``=``, ``<``,
``IN`` and the like. Prefixes are not among them: they are ranges
(:func:`postroom.pipeline.starts_with`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import KEY_BYTES_MAX
from postroom.pipeline.tables import KEYS

Span = tuple[bytes, bytes | None]
_EQUAL: Final = (EqualTo, EqualNullSafe)
_TIMES: Final = {
    "data": ("timestamp", "time"),
    "changes": ("timestamp", "time"),
    "reaped": ("reaped_at", "reaped_time"),
    "queue": ("done_at", "done_time"),
    "archive": ("done_at", "done_time"),
}
"""The columns of integers and of times by which a table can be read from a moment on."""
_FOREVER: Final = (1 << 63) - 1


@dataclass(frozen=True)
class ReadSelection:
    """The part of a table that is to be read.

    Attributes:
        start, end: a span of keys; ``end=None`` is unbounded.
        keys: only these keys, in order; ``None``: all of the span.
        queues, states: only these; ``None``: all.
        after: timestamps above this one.
        until: and up to this one.
    """

    start: bytes = b""
    end: bytes | None = None
    keys: tuple[bytes, ...] | None = None
    queues: frozenset[str] | None = None
    states: frozenset[str] | None = None
    after: int = 0
    until: int = _FOREVER

    @property
    def spans(self) -> list[Span]:
        """Return the spans of keys, in order."""
        if self.keys is None:
            return [(self.start, self.end)] if self.end is None or self.start < self.end else []
        return [
            (key, _end(key + b"\x00"))
            for key in self.keys
            if self.start <= key and (self.end is None or key < self.end)
        ]


def holds(span: Span, key: bytes) -> bool:
    """Return whether a key is in a span."""
    return span[0] <= key and (span[1] is None or key < span[1])


def with_prefix(prefix: bytes) -> ReadSelection:
    """Return the selection of all keys that begin with ``prefix``."""
    return ReadSelection(start=prefix, end=after_prefix(prefix))


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that begin with ``prefix``; ``None``: there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def _end(bound: bytes) -> bytes | None:
    """Return the bound of a span that ends before ``bound``, which may be longer than any key."""
    return bound if len(bound) <= KEY_BYTES_MAX else after_prefix(bound[:KEY_BYTES_MAX])


def narrowed(selection: ReadSelection, filters: Iterable[Filter], table: str) -> ReadSelection:
    """Return ``selection``, narrowed by ``filters``."""
    times, whole = _TIMES.get(table, ("", ""))
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1:
            continue
        (name,) = attribute
        if name == KEYS.get(table):
            selection = _by_key(selection, each)
        elif name in {"queue", "state"} and table in {"queue", "archive"}:
            selection = _by_name(selection, each, f"{name}s")
        elif name in {times, whole}:
            selection = _by_time(selection, each)
    return selection


def _by_key(selection: ReadSelection, each: Filter) -> ReadSelection:
    if isinstance(each, In):
        found = [_bytes(value) for value in each.value]
        if any(value is None for value in found):
            return selection
        keys = sorted({value for value in found if value is not None})
        if selection.keys is not None:
            keys = [key for key in keys if key in set(selection.keys)]
        return replace(selection, keys=tuple(key for key in keys if len(key) <= KEY_BYTES_MAX))
    value = _bytes(getattr(each, "value", None))
    if value is None:
        return selection
    start, end = _span(each, value)
    start = max(selection.start, start)[:KEY_BYTES_MAX]
    if end is not None and (selection.end is None or end < selection.end):
        return replace(selection, start=start, end=_end(end))
    return replace(selection, start=start)


def _span(each: Filter, value: bytes) -> Span:  # noqa: PLR0911 - a row for each kind of filter
    match each:
        case EqualTo() | EqualNullSafe():
            return value, value + b"\x00"
        case GreaterThan():
            return value + b"\x00", None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return b"", value
        case LessThanOrEqual():
            return b"", value + b"\x00"
        case StringStartsWith():
            return value, after_prefix(value)
        case _:
            return b"", None


def _by_name(selection: ReadSelection, each: Filter, which: str) -> ReadSelection:
    if isinstance(each, _EQUAL):
        wanted = frozenset({each.value})
    elif isinstance(each, In):
        wanted = frozenset(each.value)
    else:
        return selection
    known: frozenset[str] | None = getattr(selection, which)
    names = wanted if known is None else known & wanted
    return (
        replace(selection, queues=names) if which == "queues" else replace(selection, states=names)
    )


def _by_time(selection: ReadSelection, each: Filter) -> ReadSelection:
    bounds = _timestamps(getattr(each, "value", None))
    if bounds is None:
        return selection
    first, last = bounds
    match each:
        case EqualTo() | EqualNullSafe():
            after, until = first - 1, last
        case GreaterThan() | GreaterThanOrEqual():
            after, until = first - 1, _FOREVER
        case LessThan() | LessThanOrEqual():
            after, until = 0, last
        case _:
            return selection
    return replace(
        selection,
        after=min(max(selection.after, after, 0), _FOREVER - 1),
        until=max(min(selection.until, until), 0),
    )


def _timestamps(value: Any) -> tuple[int, int] | None:
    """Return the first and the last timestamp that a literal may mean."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, datetime):
        since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        milliseconds = (since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000
        return milliseconds << LOGICAL_BITS, ((milliseconds + 1) << LOGICAL_BITS) - 1
    return None


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None
