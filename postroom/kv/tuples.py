"""Keys made of elements: tuples packed into bytes that sort as the tuples do.

The encoding is that of the FoundationDB tuple layer (``design/tuple.md`` of its repository, which
allots the type codes), so keys are understood by its bindings, and its keys here::

    00  None            0B        integer of more than 8 bytes, or -(2^64 - 1)
    01  bytes           0C .. 1C  integer: 14 is zero, 14+n has n bytes, 14-n is negative
    02  str (UTF-8)     1D        integer of more than 8 bytes, or 2^64 - 1
    05  nested tuple    21        float, 8 bytes
    26  False           27  True  30  UUID

Each element begins with its type code and delimits itself. Bytes and text end in ``00``, and a zero
byte inside becomes ``00 FF``. A nested tuple ends in ``00``, and ``None`` inside becomes ``00 FF``.
Packed tuples compare element by element, and a tuple sorts before its own extensions: the keys
that begin with some elements are ``prefix(key(*elements))``.

Order: first by type, in the order of the codes above (so every integer sorts before every float,
and ``True`` after both), then by value. Integers sort by value at any size, text by code point,
UUIDs by their bytes. Floats sort in IEEE 754 total order (``-nan < -inf < ... < -0.0 < 0.0 < ... <
inf < nan``).

The two integers of 8 bytes whose magnitude is 2^64 - 1 are packed with their length, since the
bindings do so.

Left out: integers beyond 255 bytes (``ValueError``); dates (``TypeError``: zones and folds do not
survive packing; pass ``int`` microseconds or ISO text); 32-bit floats and versionstamps.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias

from postroom.errors import shorten

Element: TypeAlias = bytes | str | int | float | bool | uuid.UUID | tuple["Element", ...] | None
"""The types of the elements of a key."""

_NONE: Final = 0x00
_BYTES: Final = 0x01
_TEXT: Final = 0x02
_NESTED: Final = 0x05
_LONG_NEGATIVE: Final = 0x0B
_ZERO: Final = 0x14
_LONG_POSITIVE: Final = 0x1D
_FLOAT: Final = 0x21
_FALSE: Final = 0x26
_TRUE: Final = 0x27
_UUID: Final = 0x30

_ESCAPED_ZERO: Final = b"\x00\xff"
_LARGEST_SHORT_INTEGER: Final = 2**64 - 2
_LONGEST_INTEGER_BYTES: Final = 255


def key(*elements: Element) -> bytes:
    """Pack ``elements`` into a key that sorts as the tuple of them does.

    Args:
        *elements: ``bytes``, ``str``, ``int``, ``float``, ``bool``, ``None``, ``uuid.UUID`` or
            tuples of these.

    Returns:
        The key.

    Raises:
        TypeError: an element is of another type than those in :data:`Element`.
        ValueError: an integer takes more than 255 bytes, a text has a lone surrogate, or tuples
            are nested hundreds deep.

    Examples:
        >>> key = postroom.key("user", 42, None)
        >>> postroom.unpack(key)
        ('user', 42, None)
        >>> postroom.key("user", 9) < postroom.key("user", 10)
        True
    """
    try:
        return b"".join([_pack(element) for element in elements])
    except RecursionError:
        raise ValueError("the tuples in a key are nested too deeply") from None


def unpack(key: bytes) -> tuple[Element, ...]:
    """Return the elements that :func:`key` packed.

    Args:
        key: a key that :func:`key` made.

    Raises:
        TypeError: ``key`` is not bytes.
        ValueError: it is not what :func:`key` would make of any elements.

    Examples:
        >>> postroom.unpack(postroom.key("user", 42))
        ('user', 42)
    """
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    elements, at = [], 0
    try:
        while at < len(key):
            element, at = _unpack(key, at)
            elements.append(element)
    except RecursionError:
        raise _garbage(key, at, "tuples nested too deeply") from None
    return tuple(elements)


def prefix(prefix: bytes) -> tuple[bytes, bytes | None]:
    """Return the span ``(start, end)`` of all keys that begin with ``prefix``.

    ``end`` is exclusive. It is ``None``, which stands for no bound, where no key can come after
    those with the prefix: for the empty one, and for one of nothing but ``FF`` bytes.

    Args:
        prefix: the first bytes of the keys.

    Raises:
        TypeError: ``prefix`` is not bytes.

    Examples:
        >>> postroom.prefix(b"user/")
        (b'user/', b'user0')
        >>> postroom.prefix(b"")
        (b'', None)
    """
    if not isinstance(prefix, bytes):
        raise TypeError(f"a prefix is bytes, not {type(prefix).__name__}")
    kept = prefix.rstrip(b"\xff")
    return prefix, kept[:-1] + bytes([kept[-1] + 1]) if kept else None


# Packing


def _pack(element: Element) -> bytes:
    pack = _PACKERS.get(type(element)) or _packer_of_subclass(element)
    return pack(element)


def _packer_of_subclass(element: object) -> Callable[..., bytes]:
    for kind in type(element).__mro__:
        if kind in _PACKERS:
            return _PACKERS[kind]
    raise TypeError(
        f"an element of a key cannot be {type(element).__name__}: it must be bytes, str, int, "
        "float, bool, None, uuid.UUID or a tuple of these"
    )


def _pack_bytes(element: bytes) -> bytes:
    return b"\x01" + element.replace(b"\x00", _ESCAPED_ZERO) + b"\x00"


def _pack_text(element: str) -> bytes:
    return b"\x02" + element.encode().replace(b"\x00", _ESCAPED_ZERO) + b"\x00"


def _pack_integer(element: int) -> bytes:
    size = (element.bit_length() + 7) // 8
    if size > _LONGEST_INTEGER_BYTES:
        raise ValueError(
            f"an integer in a key takes {_LONGEST_INTEGER_BYTES} bytes at most: {size}"
        )
    # Negative ones are in one's complement, so that their bytes sort as their values.
    digits = (element if element >= 0 else element + (1 << 8 * size) - 1).to_bytes(size, "big")
    if abs(element) <= _LARGEST_SHORT_INTEGER:
        return bytes([_ZERO + size if element >= 0 else _ZERO - size]) + digits
    if element > 0:
        return bytes([_LONG_POSITIVE, size]) + digits
    return bytes([_LONG_NEGATIVE, size ^ 0xFF]) + digits


def _pack_float(element: float) -> bytes:
    bits: int = struct.unpack(">Q", struct.pack(">d", element))[0]
    return b"\x21" + (bits ^ _sign_mask(negative=bits >> 63 == 1)).to_bytes(8, "big")


def _pack_bool(element: bool) -> bytes:
    return bytes([_TRUE if element else _FALSE])


def _pack_nested(element: tuple[Element, ...]) -> bytes:
    inner = [_ESCAPED_ZERO if item is None else _pack(item) for item in element]
    return b"\x05" + b"".join(inner) + b"\x00"


_PACKERS: Final[dict[type, Callable[..., bytes]]] = {
    bytes: _pack_bytes,
    str: _pack_text,
    int: _pack_integer,
    float: _pack_float,
    bool: _pack_bool,
    type(None): lambda _: b"\x00",
    uuid.UUID: lambda element: b"\x30" + element.bytes,
    tuple: _pack_nested,
}


# Unpacking: each function is given the key, where the element's content begins and its
# type code; it returns the element and where the next one begins.


def _unpack(key: bytes, at: int) -> tuple[Element, int]:
    code = key[at]
    unpacker = _UNPACKERS.get(code)
    if unpacker is None:
        raise _garbage(key, at, f"{code:#04x} is no type of an element")
    return unpacker(key, at + 1, code)


def _unpack_bytes(key: bytes, at: int, code: int) -> tuple[bytes, int]:
    end = key.find(b"\x00", at)
    while end >= 0 and key[end + 1 : end + 2] == b"\xff":
        end = key.find(b"\x00", end + 2)
    if end < 0:
        raise _garbage(key, at, "bytes or text without an end")
    return key[at:end].replace(_ESCAPED_ZERO, b"\x00"), end + 1


def _unpack_text(key: bytes, at: int, code: int) -> tuple[str, int]:
    encoded, end = _unpack_bytes(key, at, code)
    try:
        return encoded.decode(), end
    except UnicodeDecodeError as error:
        raise _garbage(key, at, "text that is not UTF-8") from error


def _unpack_short_integer(key: bytes, at: int, code: int) -> tuple[int, int]:
    number, end = _integer(key, at, abs(code - _ZERO), negative=code < _ZERO)
    if abs(number) > _LARGEST_SHORT_INTEGER:
        raise _garbage(key, at, "an integer without its length")
    return number, end


def _unpack_long_integer(key: bytes, at: int, code: int) -> tuple[int, int]:
    negative = code == _LONG_NEGATIVE
    size = _taken(key, at, 1)[0] ^ (0xFF if negative else 0)
    number, end = _integer(key, at + 1, size, negative=negative)
    if abs(number) <= _LARGEST_SHORT_INTEGER:
        raise _garbage(key, at, "an integer longer than it needs to be")
    return number, end


def _unpack_float(key: bytes, at: int, code: int) -> tuple[float, int]:
    bits = int.from_bytes(_taken(key, at, 8), "big")
    bits ^= _sign_mask(negative=bits >> 63 == 0)
    number: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return number, at + 8


def _unpack_uuid(key: bytes, at: int, code: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=_taken(key, at, 16)), at + 16


def _unpack_nested(key: bytes, at: int, code: int) -> tuple[tuple[Element, ...], int]:
    elements: list[Element] = []
    while at < len(key):
        if key[at] != 0:
            element, at = _unpack(key, at)
            elements.append(element)
        elif key[at + 1 : at + 2] == b"\xff":
            elements.append(None)
            at += 2
        else:
            return tuple(elements), at + 1
    raise _garbage(key, at, "a nested tuple without an end")


_UNPACKERS: Final[dict[int, Callable[[bytes, int, int], tuple[Element, int]]]] = {
    _NONE: lambda key, at, code: (None, at),
    _BYTES: _unpack_bytes,
    _TEXT: _unpack_text,
    _NESTED: _unpack_nested,
    _LONG_NEGATIVE: _unpack_long_integer,
    **dict.fromkeys(range(_ZERO - 8, _ZERO + 9), _unpack_short_integer),
    _LONG_POSITIVE: _unpack_long_integer,
    _FLOAT: _unpack_float,
    _FALSE: lambda key, at, code: (False, at),
    _TRUE: lambda key, at, code: (True, at),
    _UUID: _unpack_uuid,
}


def _integer(key: bytes, at: int, size: int, *, negative: bool) -> tuple[int, int]:
    number = int.from_bytes(_taken(key, at, size), "big")
    if negative:
        number -= (1 << 8 * size) - 1
    if (number.bit_length() + 7) // 8 != size:
        raise _garbage(key, at, "an integer longer than it needs to be")
    return number, at + size


def _sign_mask(*, negative: bool) -> int:
    """Return the mask of the bits of a double to flip: all of a negative one's, else the sign."""
    return (1 << 64) - 1 if negative else 1 << 63


def _taken(key: bytes, at: int, size: int) -> bytes:
    if at + size > len(key):
        raise _garbage(key, at, "cut off")
    return key[at : at + size]


def _garbage(key: bytes, at: int, what: str) -> ValueError:
    return ValueError(f"{shorten(key)} is not a packed key: {what}, at byte {at}")
