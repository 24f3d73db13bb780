"""Marks are as if each key had one of its own."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroom.messaging.handover import marks
from postroom.messaging.handover.marks import MarkedSpan, Marks, mark_of

KEYS = [bytes((number,)) for number in range(1, 9)]
BOUNDS = [b"", *KEYS]
POSITIONS = st.integers(1, 9).map(lambda number: number.to_bytes(28, "big"))


@st.composite
def spans(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    start, end = sorted(draw(st.lists(st.integers(0, 9), min_size=2, max_size=2, unique=True)))
    return BOUNDS[start] if start < 9 else KEYS[-1], BOUNDS[end] if end < 9 else None


def told(known: Marks) -> dict[bytes, bytes]:
    return {key: mark_of(known, key) for key in KEYS}


def is_within(key: bytes, start: bytes, end: bytes | None) -> bool:
    return start <= key and (end is None or key < end)


def check_form(known: Marks) -> None:
    for piece in known:
        assert piece.end is None or piece.start < piece.end
    for left, right in pairwise(known):
        assert left.end is not None
        assert left.end <= right.start
        assert left.end < right.start or left.mark != right.mark, "they would be one piece"


@given(st.lists(st.tuples(spans(), POSITIONS)), spans())
def test_a_batch_raises_the_marks_of_its_span_and_no_others(
    batches: list[tuple[tuple[bytes, bytes | None], bytes]], half: tuple[bytes, bytes | None]
) -> None:
    known: Marks = []
    each = dict.fromkeys(KEYS, b"")
    for span, position in batches:
        known = marks.raised(known, *span, position)
        for key in KEYS:
            if is_within(key, *span):
                each[key] = max(each[key], position)
        check_form(known)
        assert told(known) == each
    clipped = marks.within(known, *half)
    check_form(clipped)
    assert told(clipped) == {
        key: mark if is_within(key, *half) else b"" for key, mark in each.items()
    }
    assert marks.decode(marks.encode(known)) == known


@given(st.lists(st.tuples(spans(), POSITIONS)), st.sampled_from(KEYS))
def test_the_marks_of_two_halves_are_those_of_the_whole(
    batches: list[tuple[tuple[bytes, bytes | None], bytes]], cut: bytes
) -> None:
    known: Marks = []
    for span, position in batches:
        known = marks.raised(known, *span, position)
    left, right = marks.within(known, b"", cut), marks.within(known, cut, None)
    assert marks.joined(left, right) == known


def test_neighbours_with_one_mark_are_one_piece() -> None:
    at = bytes(28)
    known = marks.raised(marks.raised([], b"a", b"m", at), b"m", None, at)
    assert known == [MarkedSpan(b"a", None, at)]
