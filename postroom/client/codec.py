"""Values as applications see them: plain bytes, or objects packed by a codec.

A value that is stored as an integer (``increment``) goes through no codec: without one it reads as
its 8 bytes, with one as an ``int``. Thus a counter needs no place of its own, and spoils no scan.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgpack

from postroom.errors import WrongType, shorten
from postroom.ranges.evaluators import INTEGER


class Codec(Protocol):
    """A pair of functions that pack values into bytes and back.

    ``encode`` raises ``TypeError`` for a value that it cannot pack.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return ``value`` as bytes.

        Args:
            value: the value of an application.
        """

    def decode(self, data: bytes, /) -> Any:
        """Return the value of ``data``.

        Args:
            data: what ``encode`` returned.
        """


class Packing(Protocol):
    """A codec as the client uses it.

    Attributes:
        packs: whether values are objects; false: they are bytes, as stored.
    """

    packs: bool

    def encode(self, value: Any, /) -> bytes:
        """Return ``value`` as bytes."""

    def decode(self, data: bytes, key: bytes, /, *, integer: bool = False) -> Any:
        """Return the value stored at ``key`` as the bytes ``data``, which may be an ``integer``.

        Raises:
            WrongType: the codec cannot unpack it.
        """


class _Bytes:
    """A codec that does not pack: values are bytes."""

    packs = False

    def encode(self, value: Any, /) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes):
            return bytes(value)
        raise TypeError(
            f"values are bytes, not {type(value).__name__}: encode them, or open the store with "
            'codec="msgpack" or codec="json"'
        )

    def decode(self, data: bytes, _: bytes, /, *, integer: bool = False) -> Any:
        del integer
        return data


class _MessagePack:
    """The codec ``"msgpack"``."""

    def encode(self, value: Any, /) -> bytes:
        try:
            packed: bytes = msgpack.packb(value)
        except (ValueError, OverflowError) as error:
            raise TypeError(f"MessagePack cannot pack this value: {error}") from error
        return packed

    def decode(self, data: bytes, /) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)


class _Json:
    """The codec ``"json"``."""

    def encode(self, value: Any, /) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except ValueError as error:
            raise TypeError(f"JSON cannot pack this value: {error}") from error

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


class _Checked:
    """A codec whose failures to decode are reported as ``WrongType``."""

    packs = True

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, value: Any, /) -> bytes:
        packed = self._codec.encode(value)
        if not isinstance(packed, bytes):
            raise TypeError(f"the codec returned {type(packed).__name__}, not bytes")
        return packed

    def decode(self, data: bytes, key: bytes, /, *, integer: bool = False) -> Any:
        if integer:
            return INTEGER.unpack(data)[0]
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise WrongType(
                f"the codec cannot unpack what is stored at {shorten(key)}, {shorten(data)} "
                f"({error}): it was written with another codec, or without one; read it as it was "
                "written"
            ) from error


def resolve(codec: str | Codec | None) -> Packing:
    """Return the codec for the argument of ``open`` and ``connect``, a name or an object.

    Raises:
        ValueError: no codec has that name.
        TypeError: the object has no ``encode`` and ``decode``.
    """
    match codec:
        case None:
            return _Bytes()
        case "msgpack":
            return _Checked(_MessagePack())
        case "json":
            return _Checked(_Json())
        case str():
            raise ValueError(f'no codec is called {codec!r}: use "msgpack", "json" or an object')
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise TypeError("a codec is a name, or an object with encode(value) and decode(data)")
    return _Checked(codec)
