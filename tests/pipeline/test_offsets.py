"""Offsets: what lies between two of them, whatever became of the ranges."""

from __future__ import annotations

import json

import pytest

from postroom.errors import Invalid
from postroom.pipeline import offsets
from postroom.pipeline.offsets import RangePosition, RangeStep


def offset(*positions: tuple[int, int, bytes, bytes | None, int]) -> dict[str, object]:
    written = offsets.write(RangePosition(*each) for each in positions)
    through_the_log: dict[str, object] = json.loads(json.dumps(written))
    return through_the_log


def test_an_offset_survives_sparks_log() -> None:
    position = (1 << 62) + 12345
    made = offset((7, 3, b"\x00a", None, position))
    assert offsets.read(made) == [RangePosition(7, 3, b"\x00a", None, position)]


def test_a_batch_is_what_its_two_offsets_say() -> None:
    start = offset((1, 1, b"", None, 10))
    assert offsets.steps(start, start) == []
    end = offset((1, 1, b"", None, 20))
    assert offsets.steps(start, end) == [RangeStep(1, 1, (b"", None), 10, 20)]


def test_a_split_is_taken_up_with_the_later_offset() -> None:
    start = offset((1, 1, b"", None, 10))
    end = offset((1, 2, b"", b"m", 20), (2, 2, b"m", None, 20))
    assert offsets.steps(start, end) == [
        RangeStep(1, 2, (b"", b"m"), 10, 20),
        RangeStep(2, 2, (b"m", None), 10, 20),
    ]


def test_a_merge_goes_on_for_each_piece_where_that_was_read() -> None:
    start = offset((1, 2, b"", b"m", 10), (2, 2, b"m", None, 15))
    end = offset((1, 3, b"", None, 20))
    assert offsets.steps(start, end) == [
        RangeStep(1, 3, (b"", b"m"), 10, 20),
        RangeStep(1, 3, (b"m", None), 15, 20),
    ]


def test_a_small_batch_is_read_by_one_task_and_any_other_one_by_a_task_for_each_range() -> None:
    start = offset((1, 1, b"", None, 10))
    end = offset((1, 2, b"", b"m", 20), (2, 2, b"m", None, 20))
    each = offsets.steps(start, end)
    assert offsets.parts(start, end) == [(each[0],), (each[1],)]
    assert offsets.parts(start, {**end, "small": True}) == [tuple(each)]
    assert offsets.parts(start, {**start, "small": True}) == []


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(Invalid, match="version 2"):
        offsets.read({"version": 2, "ranges": {}})
