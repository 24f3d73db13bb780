"""Checks of requests beyond what their types say, and the headers of messages.

They are made where the request is sent, and again where it is evaluated, because the sender need
not be this client. The size to which a small request expands is known before any memory is spent
on it. The metrics of an ``Accounting`` are added to each prefix of its key; headers are decoded
wherever the message goes.

Headers are packed wherever they only pass through, since nobody looks at them there.

An empty map is one byte packed and 64 in memory: the headers of the messages of one transaction,
decoded, were 2 GB. Requests and records that come as bytes therefore have them as ``msgspec.Raw``,
which points to where they stand. Those that are made in this process may have them as a dictionary.
Their size is checked before they are decoded for once, to be checked
(:func:`.checks.check_headers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from postroom.errors import Invalid, ValueTooLarge, shorten
from postroom.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_DEPTH_MAX,
    METRIC_BYTES_MAX,
    METRICS_MAX,
    METRICS_PER_PREFIX_MAX,
    PREFIXES_MAX,
)

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


SEPARATOR = b"/"
_CONTAINERS = (dict, list, tuple, set, frozenset)


def check_headers(headers: Headers, to: bytes) -> int:
    """Check the headers of a message to the inbox of ``to``.

    Returns:
        How many bytes they take.

    Raises:
        ValueTooLarge: they take more than ``HEADERS_BYTES_MAX`` bytes.
        Invalid: they are nested deeper than ``HEADERS_DEPTH_MAX``, or malformed.
    """
    if not has_headers(headers):
        return 0
    is_deep = isinstance(headers, dict) and is_nested(headers, HEADERS_DEPTH_MAX)
    size = 0 if is_deep else packed_bytes(headers)
    if size > HEADERS_BYTES_MAX:
        raise ValueTooLarge(
            f"the headers of the message to {shorten(to)} take {size} bytes, the limit is "
            f"{HEADERS_BYTES_MAX}; nothing was changed: put what they hold into the message"
        )
    if is_deep or is_nested(unpacked(headers), HEADERS_DEPTH_MAX):
        raise Invalid(
            f"the headers of the message to {shorten(to)} are nested more than {HEADERS_DEPTH_MAX} "
            "deep; nothing was changed: put what they hold into the message"
        )
    return size


def is_nested(value: Any, depth_max: int) -> bool:
    """Return whether the containers of ``value`` are nested deeper than ``depth_max``."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    depth = 0
    while level:
        depth += 1
        if depth > depth_max:
            return True
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
    return False


def check_accounting(key: bytes, deltas: Mapping[str, int]) -> None:
    """Check whether an ``Accounting`` of ``key`` may add these.

    Raises:
        ValueTooLarge: too many prefixes or metrics, or the name of a metric is too long.
    """
    separators = key.count(SEPARATOR)
    if separators >= PREFIXES_MAX:
        raise ValueTooLarge(
            f"the key {shorten(key)} of an Accounting has {separators + 1} prefixes, the limit is "
            f"{PREFIXES_MAX}; nothing was changed: use fewer separators '/'"
        )
    if len(deltas) > METRICS_MAX:
        raise ValueTooLarge(
            f"an Accounting of {shorten(key)} has {len(deltas)} metrics, the limit is "
            f"{METRICS_MAX}; nothing was changed: use several requests"
        )
    for metric in deltas:
        if len(metric) * 4 > METRIC_BYTES_MAX and len(metric.encode()) > METRIC_BYTES_MAX:
            raise ValueTooLarge(
                f"the name of a metric of {shorten(key)}, {metric[:48]!r}…, has "
                f"{len(metric.encode())} bytes, the limit is {METRIC_BYTES_MAX}; nothing was "
                "changed: use a shorter name"
            )


def check_metrics(prefix: bytes, metrics: int) -> None:
    """Check whether a prefix may have so many metrics.

    Raises:
        ValueTooLarge: they are more than ``METRICS_PER_PREFIX_MAX``.
    """
    if metrics > METRICS_PER_PREFIX_MAX:
        raise ValueTooLarge(
            f"the prefix {shorten(prefix)} would have {metrics} metrics, the limit is "
            f"{METRICS_PER_PREFIX_MAX}; nothing was changed: make what varies part of the key"
        )


def prefixes(key: bytes) -> list[bytes]:
    """Return ``key`` and its prefixes that end before a separator: ``a``, ``a/b``, ``a/b/c``."""
    found = []
    end = key.find(SEPARATOR)
    while end != -1:
        if end > 0 and key[end - 1 : end] != SEPARATOR:
            found.append(key[:end])
        end = key.find(SEPARATOR, end + 1)
    if key and not key.endswith(SEPARATOR):
        found.append(key)
    return found
