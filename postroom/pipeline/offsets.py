"""Offsets of a stream: up to where each range was read, in the form of Spark's log.

::

    {"version": 1, "ranges": {"<range id>": {"generation", "start", "end", "position"}}, "small"}

Keys are hexadecimal text; an empty ``end`` is none. Everything that a batch reads is in its two
offsets (:func:`parts`). A batch that is planned again, in another process and after the ranges have
changed, reads the same changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from postroom.client.bulk import Partition
from postroom.errors import Invalid
from postroom.pipeline.filters import Span

VERSION: Final = 1


@dataclass(frozen=True)
class RangePosition:
    """A range, as it was when the offset was made, and up to which timestamp it was read."""

    range_id: int
    generation: int
    start: bytes
    end: bytes | None
    position: int


@dataclass(frozen=True)
class RangeStep:
    """The part of a batch in one range: the changes after one timestamp, up to another."""

    range_id: int
    generation: int
    span: Span
    after: int
    until: int


def write(positions: Iterable[RangePosition]) -> dict[str, Any]:
    """Return the offset for positions."""
    ranges = {
        str(each.range_id): {
            "generation": each.generation,
            "start": each.start.hex(),
            "end": "" if each.end is None else each.end.hex(),
            "position": each.position,
        }
        for each in positions
    }
    return {"version": VERSION, "ranges": ranges}


def read(offset: dict[str, Any]) -> list[RangePosition]:
    """Return the positions in an offset.

    Raises:
        Invalid: another version has written it.
    """
    if offset.get("version") != VERSION:
        raise Invalid(
            f"the checkpoint has an offset of version {offset.get('version')!r}, this version of "
            f"Postroom reads {VERSION}: go on with the version that wrote it, or start anew"
        )
    return [
        RangePosition(
            int(range_id),
            each["generation"],
            bytes.fromhex(each["start"]),
            bytes.fromhex(each["end"]) if each["end"] else None,
            each["position"],
        )
        for range_id, each in offset["ranges"].items()
    ]


def everywhere(ranges: Iterable[Partition], position: int) -> dict[str, Any]:
    """Return the positions of all ranges of a span, read up to one timestamp."""
    return write(
        RangePosition(each.range_id, each.generation, each.start, each.end, position)
        for each in ranges
    )


def position_of(offset: dict[str, Any]) -> int:
    """Return the timestamp up to which everything was read."""
    return min((each.position for each in read(offset)), default=0)


def steps(start: dict[str, Any], end: dict[str, Any]) -> list[RangeStep]:
    """Return the steps between two offsets, by the ranges of the later one.

    A range that was split or merged since the earlier offset goes on, piece by piece, from the
    earlier positions.
    """
    before = read(start)
    found = []
    for each in read(end):
        for earlier in before:
            span = _common((each.start, each.end), (earlier.start, earlier.end))
            if span is not None and earlier.position < each.position:
                found.append(
                    RangeStep(each.range_id, each.generation, span, earlier.position, each.position)
                )
    return found


def parts(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[RangeStep, ...]]:
    """Return the steps between two offsets by tasks: one task has all of a small batch."""
    found = steps(start, end)
    if end.get("small"):
        return [tuple(found)] if found else []
    return [(each,) for each in found]


def _common(one: Span, other: Span) -> Span | None:
    start = max(one[0], other[0])
    ends = [end for end in (one[1], other[1]) if end is not None]
    end = min(ends) if ends else None
    return None if end is not None and start >= end else (start, end)
