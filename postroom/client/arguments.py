"""Checks of what applications pass in: wrong types and sizes are refused before anything is
sent.
"""

from __future__ import annotations

import datetime
from typing import Any, TypeAlias

from postroom.client.codec import Packing
from postroom.errors import KeyTooLarge, Overflow, ValueTooLarge, shorten
from postroom.kv.clock import LOGICAL_BITS, from_datetime, from_seconds
from postroom.limits import (
    DEPTH_MAX,
    KEY_BYTES_MAX,
    LATER_SECONDS_MAX,
    MESSAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
    WAIT_SECONDS_MAX,
)
from postroom.ranges.checks import check_accounting, check_headers, is_nested
from postroom.ranges.requests import (
    Accounting,
    Delete,
    DeleteRange,
    Increment,
    Put,
    UpdateRequest,
)

Due: TypeAlias = datetime.datetime | datetime.timedelta | float
"""When something is due: an aware ``datetime``, or a time or a number of seconds from now."""

_HEADER_TYPES = (str, bytes, int, float, bool, type(None))


def key(value: Any) -> bytes:
    """A key."""
    if type(value) is not bytes:
        value = _exactly_bytes(value)
    if len(value) > KEY_BYTES_MAX:
        raise KeyTooLarge(
            f"the key {shorten(value)} is over the limit of {KEY_BYTES_MAX} bytes; nothing was "
            "changed: use a shorter key, or a hash of it"
        )
    checked: bytes = value
    return checked


def _exactly_bytes(value: Any) -> bytes:
    """A subclass of bytes as bytes: only those travel."""
    if not isinstance(value, bytes):
        raise TypeError(
            f"keys are bytes, not {type(value).__name__}: encode text, or pack a tuple with "
            "postroom.key(...)"
        )
    return bytes(value)


def span(start: Any, end: Any) -> tuple[bytes, bytes | None]:
    """The bounds of a span; ``end=None`` is unbounded."""
    return key(start), None if end is None else key(end)


def value(given: Any, codec: Packing, of: bytes) -> bytes:
    """A value, packed."""
    packed = given if type(given) is bytes and not codec.packs else _packed(given, codec, of)
    if len(packed) > VALUE_BYTES_MAX:
        raise ValueTooLarge(
            f"the value of {shorten(of)} has {len(packed)} bytes, the limit is {VALUE_BYTES_MAX}; "
            "nothing was changed: store it in parts under several keys"
        )
    return packed


def expected(given: Any, codec: Packing) -> tuple[bytes | None, int | None]:
    """What a key is expected to hold, packed; and the stored integer that is as good."""
    if given is None:
        return None, None
    is_integer = codec.packs and type(given) is int and -(2**63) <= given < 2**63
    return codec.encode(given), given if is_integer else None


def _packed(given: Any, codec: Packing, key: bytes) -> bytes:
    """As the codec packs it. What it could not unpack again must not come into the store."""
    try:
        packed = codec.encode(given)
    except RecursionError as error:
        raise _too_deep(key) from error
    if is_nested(given, DEPTH_MAX):
        raise _too_deep(key)
    return packed


def _too_deep(key: bytes) -> ValueTooLarge:
    return ValueTooLarge(
        f"what is to be stored at, or sent to, {shorten(key)} is nested more than {DEPTH_MAX} "
        "deep; nothing was changed: keep parts of it under keys of their own"
    )


def message(given: Any, codec: Packing, to: bytes, headers_bytes: int = 0) -> bytes:
    """A message's payload, packed."""
    packed = given if type(given) is bytes and not codec.packs else _packed(given, codec, to)
    size = len(packed) + headers_bytes
    if size > MESSAGE_BYTES_MAX:
        raise ValueTooLarge(
            f"the message to {shorten(to)} has {size} bytes, the limit is "
            f"{MESSAGE_BYTES_MAX}; nothing was changed: put the payload under a key and send that"
        )
    return packed


def headers(given: Any, to: bytes) -> tuple[dict[str, Any] | None, int]:
    """A message's headers, text to text, bytes or a number; and about how many bytes they take."""
    if given is None:
        return None, 0
    if not isinstance(given, dict):
        raise TypeError(f"headers are a dict or None, not {type(given).__name__}")
    plain: dict[str, Any] = {}
    size = 0
    for name, content in given.items():
        if not isinstance(name, str) or not isinstance(content, _HEADER_TYPES):
            raise TypeError(
                f"a header is text to text, bytes, a number, a bool or None, not {name!r}: "
                f"{type(content).__name__}"
            )
        plain[text(name)], content_bytes = _header(name, content)
        size += len(name) + content_bytes
    check_headers(plain, to)
    return plain, size


def _header(name: str, content: Any) -> tuple[Any, int]:
    """A header's content as what it is stored as, and about how many bytes it takes."""
    match content:
        case None | bool():
            return content, 9
        case int():
            return integer(content, f"the header {name!r}"), 9
        case float():
            return float(content), 9
        case str():
            return text(content), len(content.encode())
    return bytes(content), len(content)


def text(given: str) -> str:
    """Text that can be stored: UTF-8 has no place for half of a surrogate pair."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{given!r} is no text that can be stored: {error}") from None
    return str(given)


def count(given: Any, name: str, least: int = 1) -> int:
    """A number of things."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is a whole number, not {type(given).__name__}")
    if given < least:
        raise ValueError(f"{name} is at least {least}, not {given}")
    return given


def wait(given: Any) -> float:
    """Seconds to wait for something, as many as one likes; ``None``: 0."""
    if given is None:
        return 0.0
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"wait is a number of seconds or None, not {type(given).__name__}")
    if not given >= 0:
        raise ValueError(
            f"wait is a number of seconds from 0 on, not {given}; to wait for as long as it takes, "
            'give float("inf")'
        )
    return float(min(given, WAIT_SECONDS_MAX))


def integer(given: Any, name: str = "by") -> int:
    """A 64-bit signed integer."""
    if type(given) is not int and (not isinstance(given, int) or isinstance(given, bool)):
        raise TypeError(f"{name} is a whole number, not {type(given).__name__}")
    if not -(2**63) <= given < 2**63:
        raise Overflow(f"{name} = {given} is outside the range of a 64-bit signed integer")
    return int(given)


def timestamp(given: Any) -> int:
    """A moment to read at; ``None`` is now."""
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"at is a Timestamp, not {type(given).__name__}: use db.now()")
    if not 0 < given < 1 << 64:
        raise ValueError(f"{given} is no timestamp: use what db.now() returned")
    return int(given)


def due(given: Any, now: int, name: str) -> int:
    """When something is due, as a timestamp; 0: at once."""
    match given:
        case None:
            return 0
        case datetime.datetime():
            if given.tzinfo is None:
                raise TypeError(f"{name} is an aware datetime; this one has no time zone")
            return max(from_datetime(given), 0)
        case datetime.timedelta():
            return _later(now, given.total_seconds(), name)
        case bool():
            pass
        case int() | float():
            return _later(now, given, name)
    raise TypeError(f"{name} is an aware datetime, a timedelta or seconds, not {given!r}")


def _later(now: int, seconds: float, name: str) -> int:
    if not seconds < LATER_SECONDS_MAX:
        raise ValueError(f"{name} is {seconds} s from now, but at most {LATER_SECONDS_MAX:,.10g}")
    # A clock that has gone on by exactly so much has reached it, whatever its logical part.
    return (now >> LOGICAL_BITS << LOGICAL_BITS) + from_seconds(max(seconds, 0.0))


def update(request: Any, codec: Packing) -> UpdateRequest:
    """A request to be deferred, checked through and through."""
    match request:
        case Increment():
            return Increment(key(request.key), integer(request.by), codec.packs)
        case Put():
            return Put(key(request.key), value(request.value, codec, request.key))
        case Delete():
            return Delete(key(request.key))
        case DeleteRange():
            return DeleteRange(*span(request.start, request.end))
        case Accounting():
            checked, deltas = key(request.key), _deltas(request.deltas)
            check_accounting(checked, deltas)
            return Accounting(checked, deltas)
    raise TypeError(
        "an update is one of Put, Increment, Delete, DeleteRange and Accounting, not "
        f"{type(request).__name__}"
    )


def _deltas(given: Any) -> dict[str, int]:
    if not isinstance(given, dict) or not given:
        raise TypeError('Accounting takes a dict of metrics, {"metric": delta}')
    if not all(isinstance(metric, str) for metric in given):
        raise TypeError("the names of metrics are text")
    return {text(metric): integer(delta, metric) for metric, delta in given.items()}
