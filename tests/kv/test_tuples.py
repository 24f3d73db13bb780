"""Packed tuples sort as the tuples do, and come back as they were."""

from __future__ import annotations

import datetime
import enum
import math
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.kv.tuples import key, prefix, unpack

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\x00"))
SCALARS = st.one_of(
    st.none(),
    st.binary() | st.lists(st.sampled_from([b"\x00", b"\xff", b"a"])).map(b"".join),
    TEXT,
    st.integers() | st.integers(-(2**2040) + 1, 2**2040 - 1) | st.integers(-300, 300),
    st.floats(),
    st.booleans(),
    st.uuids(),
)
PARTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
TUPLES = st.lists(PARTS, max_size=4).map(tuple)


def float_rank(number: float) -> int:
    """Return where IEEE 754 total order puts it."""
    bits: int = struct.unpack(">q", struct.pack(">d", number))[0]
    return bits if bits >= 0 else -(bits & (2**63 - 1)) - 1


RANKS: list[tuple[type, Callable[[Any], Any]]] = [
    (type(None), lambda _: 0),
    (bytes, lambda part: part),
    (str, lambda part: [ord(character) for character in part]),
    (tuple, lambda part: [rank(item) for item in part]),
    (int, lambda part: part),
    (float, float_rank),
    (bool, lambda part: part),
    (uuid.UUID, lambda part: part.bytes),
]


def rank(part: object) -> tuple[int, Any]:
    """Return the rank of a part, written down independently of how parts are packed."""
    return next((at, of(part)) for at, (kind, of) in enumerate(RANKS) if type(part) is kind)


def ranks(parts: tuple[object, ...]) -> list[tuple[int, Any]]:
    return [rank(part) for part in parts]


@given(TUPLES, TUPLES)
@example((b"a",), (b"a\x00",))
@example((b"a", None), (b"a\x00",))
@example(((),), ((None,),))
@example(((None, 1),), ((None,), 1))
@example((-256,), (-255,))
@example((2**64 - 1,), (2**64,))
@example((-(2**64) + 1,), (-(2**64),))
@example((-0.0,), (0.0,))
@example(("\uffff",), ("\U00010000",))
def test_keys_sort_as_tuples(one: Any, other: Any) -> None:
    assert (key(*one) < key(*other)) == (ranks(one) < ranks(other))
    assert (key(*one) == key(*other)) == (ranks(one) == ranks(other))


@given(TUPLES)
def test_unpack_reverses_key(parts: Any) -> None:
    assert ranks(unpack(key(*parts))) == ranks(parts)


@given(TUPLES, TUPLES)
def test_extensions_are_within_the_prefix(parts: Any, more: Any) -> None:
    start, end = prefix(key(*parts))
    extended = key(*parts, *more)
    assert extended >= start
    assert end is None or extended < end


@given(st.binary() | TUPLES.map(lambda parts: key(*parts)[:-1]))
def test_unpack_takes_only_what_key_makes(data: bytes) -> None:
    try:
        parts = unpack(data)
    except ValueError:
        return
    assert key(*parts) == data


@pytest.mark.parametrize(
    ("parts", "packed"),
    [  # from the specification of the FoundationDB tuple layer
        ((), b""),
        ((b"foo\x00bar",), b"\x01foo\x00\xffbar\x00"),
        (("F\u00d4O\u0000bar",), b"\x02F\xc3\x94O\x00\xffbar\x00"),
        (((b"foo\x00bar", None, ()),), b"\x05\x01foo\x00\xffbar\x00\x00\xff\x05\x00\x00"),
        ((-5551212,), b"\x11\xabK\x93"),
        ((0, -1, 1, 255, 256), b"\x14\x13\xfe\x15\x01\x15\xff\x16\x01\x00"),
        ((None, False, True), b"\x00\x26\x27"),
        ((2**64,), b"\x1d\x09\x01" + bytes(8)),
        ((-(2**64),), b"\x0b\xf6\xfe" + b"\xff" * 8),
        ((uuid.UUID(int=5),), b"\x30" + bytes(15) + b"\x05"),
    ],
)
def test_packed_form(parts: Any, packed: bytes) -> None:
    assert key(*parts) == packed
    assert unpack(packed) == parts


def test_subclasses_are_packed_as_what_they_derive_from() -> None:
    class Color(enum.IntEnum):
        RED = 7

    assert unpack(key(Color.RED)) == (7,)


@pytest.mark.parametrize(
    "part", [1j, [1], {}, bytearray(b"x"), object(), datetime.date(2024, 1, 1), (b"x", [1])]
)
def test_other_types_are_refused(part: Any) -> None:
    with pytest.raises(TypeError, match=r"an element of a key cannot be .*: it must be bytes, str"):
        key(b"x", part)


def nested(depth: int) -> Any:
    part: Any = ()
    for _ in range(depth):
        part = (part,)
    return part


@pytest.mark.parametrize("part", [2**2040, -(2**2040), "\ud800", nested(5000)])
def test_a_part_that_cannot_be_packed_is_refused(part: Any) -> None:
    with pytest.raises(ValueError, match=r"255 bytes|surrogates|nested"):
        key(part)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x01abc",
        b"\x01abc\x00\xff",
        b"\x02\xff\x00",
        b"\x05\x14",
        b"\x05" * 100_000,
        b"\x15",
        b"\x15\x00",
        b"\x13\xff",
        b"\x1d",
        b"\x1d\x08" + b"\x01" * 8,
        b"\x1d\x09\x00" + b"\x01" * 8,
        b"\x21abc",
        b"\x30abc",
        b"\x99",
        b"\xff",
        b"user/1",
    ],
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="is not a packed key"):
        unpack(garbage)


def test_only_bytes_are_unpacked() -> None:
    for function in (unpack, prefix):
        with pytest.raises(TypeError, match="is bytes, not str"):
            function("text")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (b"user/", b"user0"),
        (b"", None),
        (b"\xff\xff", None),
        (b"a\xff\xff", b"b"),
        (b"\x00", b"\x01"),
        (b"a\xfe", b"a\xff"),
    ],
)
def test_prefix(given: bytes, end: bytes | None) -> None:
    assert prefix(given) == (given, end)


def test_nan_survives_packing() -> None:
    (number,) = unpack(key(math.nan))
    assert isinstance(number, float)
    assert math.isnan(number)
