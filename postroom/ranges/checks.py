"""Checks of the consequences of a request, beyond what its type says.

They are made where the request is sent, and again where it is evaluated, because the sender need
not be this client. The size to which a small request expands is known before any memory is spent
on it. The metrics of an ``Accounting`` are added to each prefix of its key; headers are decoded
wherever the message goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroom.errors import Invalid, ValueTooLarge, shorten
from postroom.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_DEPTH_MAX,
    METRIC_BYTES_MAX,
    METRICS_MAX,
    METRICS_PER_PREFIX_MAX,
    PREFIXES_MAX,
)
from postroom.ranges.headers import Headers, has_headers, packed_bytes, unpacked

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
