"""The span map, against a plain list."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.ranges.contract import KeySet
from postroom.server.span_map import Span, SpanMap

KEYS = st.one_of(
    st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"m", b"\xff" * 8192]),
    st.binary(max_size=2),
)
ENDS = st.one_of(st.none(), KEYS)


@st.composite
def maps(draw: st.DrawFn) -> tuple[SpanMap[int], dict[int, Span]]:
    """Return a map with some spans missing, and the same as a list."""
    cuts: list[bytes | None] = [*sorted(draw(st.sets(KEYS, min_size=2, max_size=8)))]
    if draw(st.booleans()):
        cuts.append(None)
    spans = {
        number: (start, end)
        for number, (start, end) in enumerate(pairwise(cuts))
        if start is not None and draw(st.booleans())
    }
    made: SpanMap[int] = SpanMap()
    for number in draw(st.permutations(sorted(spans))):
        made.replace({number: spans[number]})
    return made, spans


def contains(span: Span, key: bytes) -> bool:
    start, end = span
    return start <= key and (end is None or key < end)


def overlap(one: Span, other: Span) -> bool:
    start = max(one[0], other[0])
    return all(end is None or start < end for end in (one[1], other[1]))


def covers(span: Span, part: Span) -> bool:
    return contains(span, part[0]) and (
        span[1] is None or (part[1] is not None and part[1] <= span[1])
    )


@given(maps(), KEYS)
def test_the_gap_around_a_key_reaches_to_the_spans_beside_it(
    made: tuple[SpanMap[int], dict[int, Span]], key: bytes
) -> None:
    if made[0].owner(key) is None:
        gap = made[0].gap(key)
        assert contains(gap, key)
        assert not any(overlap(gap, span) for span in made[1].values())
        assert gap[0] in {b"", *(end for _, end in made[1].values())}
        assert gap[1] in {None, *(start for start, _ in made[1].values())}


@given(maps(), KEYS)
def test_a_key_has_the_owner_whose_span_contains_it(
    made: tuple[SpanMap[int], dict[int, Span]], key: bytes
) -> None:
    spans = made[1]
    owners = [owner for owner, span in spans.items() if contains(span, key)]
    assert made[0].owner(key) == (owners[0] if owners else None)
    assert len(made[0]) == len(spans)


@given(maps(), KEYS, ENDS)
def test_a_span_has_the_owners_of_its_parts_in_order(
    made: tuple[SpanMap[int], dict[int, Span]], start: bytes, end: bytes | None
) -> None:
    owners = [owner for owner, span in made[1].items() if overlap(span, (start, end))]
    assert list(made[0].owners(start, end)) == owners


@given(maps(), st.lists(KEYS, max_size=3), st.lists(st.tuples(KEYS, ENDS), max_size=2))
def test_keys_and_spans_have_one_owner_or_none(
    made: tuple[SpanMap[int], dict[int, Span]], keys: list[bytes], spans: list[Span]
) -> None:
    owners = [
        owner
        for owner, span in made[1].items()
        if all(contains(span, key) for key in keys) and all(covers(span, part) for part in spans)
    ]
    expected = owners[0] if owners and (keys or spans) else None
    assert made[0].owner_of_all(KeySet(tuple(keys), tuple(spans))) == expected


@given(maps(), KEYS)
def test_a_span_is_split_at_once(made: tuple[SpanMap[int], dict[int, Span]], key: bytes) -> None:
    found, spans = made
    owner = found.owner(key)
    if owner is None or spans[owner][0] == key:
        return
    start, end = spans[owner]
    found.replace({owner: (start, key), 99: (key, end)})
    assert found.owner(key) == 99
    assert found.owner(start) == owner
    found.replace({owner: (start, end), 99: None})
    assert found.owner(key) == owner
    assert len(found) == len(spans)


def test_two_owners_of_a_key_are_refused_and_the_map_stays() -> None:
    found: SpanMap[int] = SpanMap()
    found.replace({1: (b"", b"m"), 2: (b"m", None)})
    for spans in ({3: (b"l", b"m")}, {3: (b"x", b"y")}, {1: (b"", b"n")}, {1: (b"", None)}):
        with pytest.raises(ValueError, match="two ranges would own"):
            found.replace(spans)
    for end in (b"m", b"a"):
        with pytest.raises(ValueError, match="there are no keys"):
            found.replace({1: (b"m", end)})
    assert (found.owner(b"l"), found.owner(b"m"), found.owner(b"x")) == (1, 2, 2)


def test_ranges_are_several_unless_one_has_all_keys() -> None:
    spans: SpanMap[str] = SpanMap()
    assert spans.are_several
    spans.replace({"one": (b"", None)})
    assert not spans.are_several
    spans.replace({"one": (b"", b"m")})
    assert spans.are_several
    spans.replace({"two": (b"m", None)})
    assert spans.are_several
    spans.replace({"two": None, "one": (b"", None)})
    assert not spans.are_several
