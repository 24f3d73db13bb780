"""The range cache: its answers are those of a plain list of descriptors."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroom.client.routing.range_cache import Piece, RangeCache
from postroom.limits import NODE_MISTAKES_MAX
from postroom.ranges.contract import KeySet
from postroom.ranges.descriptor import RangeDescriptor

KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"m", b"z", b"\xff" * 8192])
ENDS = st.one_of(st.none(), KEYS)
DESCRIPTORS = st.builds(
    RangeDescriptor,
    st.integers(min_value=0, max_value=5),
    st.one_of(KEYS, st.just(b"\xff" * 8193)),
    ENDS,
    st.integers(min_value=-1, max_value=6),
)


def known(*descriptors: RangeDescriptor) -> RangeCache:
    cache = RangeCache()
    cache.learn(descriptors, teller=1)
    return cache


def has(descriptor: RangeDescriptor, key: bytes) -> bool:
    return descriptor.start <= key and (descriptor.end is None or key < descriptor.end)


def meet(one: RangeDescriptor, other: RangeDescriptor) -> bool:
    return max(one.start, other.start) < min(one.end or b"\xff" * 9000, other.end or b"\xff" * 9000)


Kept = list[tuple[RangeDescriptor, bool]]


def learned(kept: Kept, told: RangeDescriptor, *, leads: bool) -> Kept:
    """Return what is known after one more descriptor was told, and whether a leader has told it."""
    sound = told.range_id > 0 and told.generation > 0 and len(told.start) <= 8192
    if not sound or (told.end is not None and told.end <= told.start):
        return kept
    if told in [each for each, _ in kept]:
        return [(each, led or (leads and each == told)) for each, led in kept]
    name = told.range_id, told.generation
    if leads and name in [(each.range_id, each.generation) for each, _ in kept]:
        return [(told, True)]
    others = [
        (each, led) for each, led in kept if each.range_id == told.range_id or meet(each, told)
    ]
    if any(each.generation >= told.generation and (led or not leads) for each, led in others):
        return kept
    return [each for each in kept if each not in others] + [(told, leads)]


@given(st.lists(st.tuples(DESCRIPTORS, st.booleans()), max_size=12), KEYS, ENDS)
def test_the_cache_answers_like_a_plain_list(told: Kept, start: bytes, end: bytes | None) -> None:
    cache, known_now = RangeCache(), Kept()
    for each, leads in told:
        before, known_now = known_now, learned(known_now, each, leads=leads)
        has_changed = {each for each, _ in known_now} != {each for each, _ in before}
        assert cache.learn([each], teller=1, leads=leads) == has_changed
    kept = sorted((each for each, _ in known_now), key=lambda each: each.start)
    assert list(cache) == kept
    owner = next((each for each in kept if has(each, start)), None)
    assert cache.owner(start) == owner
    for each in kept:
        assert cache.by_id(each.range_id) == each
    pieces = list(cache.pieces(start, end))
    assert cache.last_piece(start, end) == (pieces[-1] if pieces else None)
    assert cache.are_several(KeySet(spans=((start, end),))) == (
        len({piece.descriptor for piece in pieces}) > 1
    )
    assert all(piece.descriptor in (*kept, None) for piece in pieces)
    if end is None or start < end:
        assert pieces[0].start == start
        assert pieces[-1].end == end
        for piece in pieces:
            assert cache.owner(piece.start) == piece.descriptor
            inside = piece.descriptor
            if inside is not None and inside.end is not None:
                assert piece.end is not None
                assert piece.end <= inside.end
        for one, other in pairwise(pieces):
            assert one.end == other.start
            assert one.descriptor != other.descriptor
        found = {None if owner is None else owner, *(piece.descriptor for piece in pieces)}
        assert cache.owners(KeySet((start,), ((start, end),))) == found
    else:
        assert not pieces
        assert cache.owners(KeySet(spans=((start, end),))) == {owner}


def test_pieces_of_all_keys_begin_with_other_ranges() -> None:
    one, other = RangeDescriptor(1, b"", b"f", 1), RangeDescriptor(2, b"m", None, 1)
    cache = known(one, other)
    assert [cache.piece_from(number).descriptor for number in range(4)] == [one, other, one, other]
    assert RangeCache().piece_from(7) == Piece(b"", None, None)


def test_keys_of_two_gaps_are_not_of_several_ranges() -> None:
    cache = known(RangeDescriptor(1, b"f", b"m", 1))
    assert not cache.are_several(KeySet((b"a", b"z")))
    assert cache.are_several(KeySet((b"a", b"g")))
    assert cache.are_several(KeySet((b"a",), ((b"g", b"h"),)))


def test_a_split_takes_the_place_of_the_range_before_it() -> None:
    cache = known(RangeDescriptor(1))
    left, right = RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2)
    assert cache.learn([left, right], teller=2)
    assert list(cache) == [left, right]
    assert not cache.learn([RangeDescriptor(1)], teller=3), "an older one changes nothing"
    assert not cache.has_gap()


def test_a_range_that_overlaps_several_leaves_gaps_beside_it() -> None:
    cache = known(RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2))
    assert cache.learn([RangeDescriptor(3, b"c", b"p", 3)], teller=1)
    assert list(cache.pieces(b"", None)) == [
        Piece(b"", b"c", None),
        Piece(b"c", b"p", RangeDescriptor(3, b"c", b"p", 3)),
        Piece(b"p", None, None),
    ]
    assert cache.has_gap()


def test_a_range_that_is_led_takes_the_place_of_those_that_no_leader_has_confirmed() -> None:
    cache, right = known(RangeDescriptor(7, b"", None, 2**60)), RangeDescriptor(1)
    assert not cache.learn([right], teller=1)
    assert cache.learn([right], teller=1, leads=True)
    halves = RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2)
    assert cache.learn(halves, teller=2), "a split"
    cache.learn(halves[:1], teller=2, leads=True)
    assert not cache.learn([right], teller=1, leads=True), "it has led before"
    assert list(cache) == list(halves)


def test_a_leader_that_tells_other_bounds_of_the_same_generation_ends_what_was_told() -> None:
    cache = known(RangeDescriptor(1, b"", b"m", 2), RangeDescriptor(2, b"m", None, 2))
    other = RangeDescriptor(2, b"k", None, 2)
    assert not cache.learn([other], teller=1)
    assert cache.learn([other], teller=1, leads=True)
    assert list(cache) == [other]


def test_a_refuted_descriptor_is_learned_again_only_from_a_leader() -> None:
    forged = RangeDescriptor(7, b"", None, 2**60)
    cache = known(forged)
    assert cache.refute(7, 2**60)
    assert not cache.refute(7, 2**60)
    assert not cache.learn([forged], teller=2)
    assert cache.learn([RangeDescriptor(1)], teller=2)
    assert cache.learn([forged], teller=2, leads=True)


def test_a_node_with_several_mistakes_is_not_listened_to_for_once() -> None:
    cache, right = RangeCache(), RangeDescriptor(1)
    for number in range(NODE_MISTAKES_MAX):
        assert cache.learn([RangeDescriptor(7, b"", None, 100 + number)], teller=4)
        cache.refute(7, 100 + number)
    forged = RangeDescriptor(7, b"", None, 500)
    assert not cache.learn([forged], teller=4)
    assert cache.learn([right], teller=1), "others are heard"
    assert cache.learn([forged], teller=4), "it may have been mistaken only"


def test_a_node_whose_range_has_answered_may_be_mistaken_again() -> None:
    cache = known(RangeDescriptor(7, b"", None, 100))
    cache.refute(7, 100)
    cache.learn([RangeDescriptor(1)], teller=1)
    assert cache.mistakes[1] == 1
    cache.confirm(1)
    assert not cache.mistakes
