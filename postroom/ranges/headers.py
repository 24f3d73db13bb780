"""The headers of a message: packed wherever they only pass through, since nobody looks at them.

An empty map is one byte packed and 64 in memory: the headers of the messages of one transaction,
decoded, were 2 GB. Requests and records that come as bytes therefore have them as ``msgspec.Raw``,
which points to where they stand. Those that are made in this process may have them as a dictionary.
Their size is checked before they are decoded for once, to be checked
(:func:`.checks.check_headers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from postroom.errors import Invalid

if TYPE_CHECKING:
    Headers: TypeAlias = msgspec.Raw | dict[str, Any] | None
else:
    Headers = msgspec.Raw

_LARGE_BYTES: Final = 4096
NO_HEADERS: Final = msgspec.Raw(b"\xc0")
"""The packed form of no headers."""
_decode: Final = msgspec.msgpack.Decoder(dict[str, Any] | None).decode
_decode_names: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw] | None).decode


def has_headers(headers: Headers) -> bool:
    """Return whether a message has headers."""
    return headers is not None and headers != NO_HEADERS


def unpacked(headers: Headers) -> dict[str, Any]:
    """Return headers to be read, empty if there are none.

    Raises:
        Invalid: they are malformed.
    """
    if not isinstance(headers, msgspec.Raw):
        return headers or {}
    try:
        return _decode(headers) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise Invalid(f"these are no headers: {error}; nothing was changed") from error


def names(headers: Headers) -> dict[str, Any]:
    """Return headers of which a few are to be read, each with :func:`content_of`."""
    if not isinstance(headers, msgspec.Raw):
        return headers or {}
    return _decode_names(headers) or {}


def content_of(header: Any) -> Any:
    """Return one of :func:`names`, to be read."""
    return msgspec.msgpack.decode(header) if isinstance(header, msgspec.Raw) else header


def has_large_headers(write: Any) -> bool:
    """Return whether checking the headers of a message takes a while."""
    headers = write.headers
    if headers is None or not isinstance(headers, msgspec.Raw):
        return False
    return len(memoryview(headers)) > _LARGE_BYTES


def packed_bytes(headers: Headers) -> int:
    """Return how many bytes headers take, packed."""
    return len(memoryview(headers if isinstance(headers, msgspec.Raw) else _encode(headers)))


_encode: Final = msgspec.msgpack.encode
