"""Spans of keys: which of them hold a key, at a cost that follows those that do."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from postroom.ranges.waiting import Spans, UserSpan

KEYS = st.binary(max_size=2)
SPANS = st.one_of(
    st.builds(UserSpan, KEYS, st.none() | KEYS),
    KEYS.map(lambda key: UserSpan(key, key + b"\x00")),
)


def _holds(span: UserSpan, key: bytes) -> bool:
    return span.start <= key and (span.end is None or key < span.end)


@given(st.lists(st.tuples(st.booleans(), SPANS)), st.lists(KEYS, min_size=5))
def test_spans_hold_what_a_plain_list_of_them_holds(
    moves: list[tuple[bool, UserSpan]], asked: list[bytes]
) -> None:
    spans, model = Spans(), set[UserSpan]()
    for adds, span in moves:
        if adds and span not in model:
            spans.add(span)
            model.add(span)
        elif span in model:
            spans.remove(span)
            model.remove(span)
        assert len(spans) == len(model)
        assert sorted(spans.all(), key=repr) == sorted(model, key=repr)
        for key in (*asked, span.start):
            held = [each for each in model if _holds(each, key)]
            assert sorted(spans.holding(key), key=repr) == sorted(held, key=repr)


def _mixed(span: UserSpan) -> int:
    return int.from_bytes(blake2b(span.start, digest_size=8).digest())


class _Counted(bytes):
    """A key that counts with how many others it is compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__lt__(self, other)

    def __gt__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__gt__(self, other)

    def __le__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__le__(self, other)

    def __ge__(self, other: bytes) -> bool:
        _Counted.compared += 1
        return bytes.__ge__(self, other)

    __hash__ = bytes.__hash__


def _compared(spans: Spans, key: bytes) -> int:
    _Counted.compared = 0
    spans.holding(_Counted(key))
    return _Counted.compared


def test_a_search_costs_little_however_many_other_spans_there_are() -> None:
    spans = Spans(_mixed)
    for number in range(10_000):  # in order: the worst case of a tree that is not balanced
        spans.add(UserSpan(b"k%06d" % number, b"k%06d~" % number))
    assert max(_compared(spans, b"k%06d+" % number) for number in range(0, 10_000, 97)) < 300
    spans.add(UserSpan(b"", None))
    assert len(spans.holding(b"k005000+")) == 2
    for number in range(10_000):
        spans.remove(UserSpan(b"k%06d" % number, b"k%06d~" % number))
    assert spans.all() == [UserSpan(b"", None)]


def test_nested_spans_that_end_before_a_key_are_not_looked_at() -> None:
    spans = Spans(_mixed)
    for number in range(5_000):
        spans.add(UserSpan(b"%06d" % number, b"%06d" % (20_000 - number)))
    assert spans.holding(b"030000") == []
    assert _compared(spans, b"030000") < 5
    assert len(spans.holding(b"015001")) == 4_999
