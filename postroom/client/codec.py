"""What applications see of values: bytes as they are, or objects packed by a codec."""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgpack

from postroom.errors import WrongType, shorten


class Codec(Protocol):
    """Packs values into bytes and back. ``encode`` raises ``TypeError`` for what it cannot pack."""

    def encode(self, value: Any, /) -> bytes:
        """``value`` as bytes."""

    def decode(self, data: bytes, /) -> Any:
        """The value of ``data``."""


class _Bytes:
    """No packing: values are bytes."""

    def encode(self, value: Any, /) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes):
            return bytes(value)
        raise TypeError(
            f"values are bytes, not {type(value).__name__}: encode it, or open the store with "
            'codec="msgpack" or codec="json"'
        )

    def decode(self, data: bytes, /) -> Any:
        return data


class _MessagePack:
    """``codec="msgpack"``."""

    def encode(self, value: Any, /) -> bytes:
        try:
            packed: bytes = msgpack.packb(value)
        except (ValueError, OverflowError) as error:
            raise TypeError(f"MessagePack cannot pack this value: {error}") from error
        return packed

    def decode(self, data: bytes, /) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)


class _Json:
    """``codec="json"``."""

    def encode(self, value: Any, /) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except ValueError as error:
            raise TypeError(f"JSON cannot pack this value: {error}") from error

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


class _Checked:
    """A codec whose failures to decode are reported as ``WrongType``."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.encode = self._encode

    def _encode(self, value: Any, /) -> bytes:
        packed = self._codec.encode(value)
        if not isinstance(packed, bytes):
            raise TypeError(f"the codec returned {type(packed).__name__}, not bytes")
        return packed

    def decode(self, data: bytes, /) -> Any:
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise WrongType(
                f"the codec cannot unpack the stored value {shorten(data)} ({error}): it was "
                "written with another codec, or as an integer (read that with postroom.integer)"
            ) from error


def resolve(codec: str | Codec | None) -> Codec:
    """The codec that ``open`` and ``connect`` were given by name or as an object.

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
