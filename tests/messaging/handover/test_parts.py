"""The parts of updates: together they are the whole, and none is new where marks say otherwise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom.messaging.handover.marks import Marks, raised
from postroom.messaging.handover.parts import (
    first_key,
    has_keys,
    is_within,
    new_parts,
    part_within,
    spans_of,
)
from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put

KEYS = [b"", b"a", b"a/b", b"a/b/c", b"a/c", b"b", b"k", b"k\x00"]
keys_drawn = st.sampled_from(KEYS)
ends = st.one_of(st.none(), keys_drawn)
updates = st.one_of(
    st.builds(Increment, keys_drawn),
    st.builds(Put, keys_drawn, st.just(b"1")),
    st.builds(Delete, keys_drawn),
    st.builds(DeleteRange, keys_drawn, ends),
    st.builds(Accounting, keys_drawn, st.just({"n": 1})),
)


def told(*parts: Any) -> list[bytes]:
    """Return those of the keys that updates concern, in order; one may be there twice."""
    return sorted(
        key
        for part in parts
        for start, end in spans_of(part)
        for key in KEYS
        if start <= key and (end is None or key < end)
    )


@given(updates, st.lists(keys_drawn, unique=True))
def test_parts_of_neighbours_are_together_the_whole(update: Any, cuts: list[bytes]) -> None:
    borders = [b"", *sorted(set(cuts) - {b""}), None]
    spans = [(start or b"", end) for start, end in pairwise(borders)]
    parts = [part_within(update, *span) for span in spans]
    assert told(*(part for part in parts if part is not None)) == told(update)
    for part, span in zip(parts, spans, strict=True):
        assert part is None or (is_within(part, *span) and has_keys(part))
        if part is not None and is_within(update, *span):
            assert spans_of(part) == spans_of(update)
    if has_keys(update):
        assert first_key(update) == min(first_key(part) for part in parts if part is not None)


@given(updates, st.lists(st.tuples(keys_drawn, ends, st.integers(1, 9))), st.integers(1, 9))
def test_parts_are_new_where_marks_lie_below(
    update: Any, batches: list[tuple[bytes, bytes | None, int]], position: int
) -> None:
    known: Marks = []
    marked = dict.fromkeys(KEYS, b"")
    for start, end, mark in batches:
        if end is not None and end <= start:
            continue
        known = raised(known, start, end, bytes([mark]))
        for key in KEYS:
            if start <= key and (end is None or key < end):
                marked[key] = max(marked[key], bytes([mark]))
    parts = list(new_parts(update, known, bytes([position])))
    assert told(*parts) == [key for key in told(update) if marked[key] < bytes([position])]
