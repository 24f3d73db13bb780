"""Checks of what applications pass in: they refuse wrong types and sizes before sending."""

from __future__ import annotations

import datetime
import math
from typing import Any, Final, TypeAlias

from postroom.client.codec import Packing
from postroom.errors import Invalid, KeyTooLarge, Overflow, ValueTooLarge, shorten
from postroom.kv.clock import from_datetime
from postroom.limits import (
    DEPTH_MAX,
    KEY_BYTES_MAX,
    LATER_SECONDS_MAX,
    MESSAGE_BYTES_MAX,
    NUMBER_SECONDS_MAX,
    VALUE_BYTES_MAX,
    WAIT_SECONDS_MAX,
)
from postroom.messaging import due as times
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
"""The time at which something is due: an aware ``datetime``, or a time or seconds from now."""

YEAR_SECONDS: Final = 366 * 86400.0
_HEADER_TYPES = (str, bytes, int, float, bool, type(None))


def key(value: Any) -> bytes:
    """Return a key, checked."""
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
    """Return a subclass of bytes as plain bytes, the only type that can be sent."""
    if not isinstance(value, bytes):
        raise TypeError(
            f"keys are bytes, not {type(value).__name__}: encode text, or pack a tuple with "
            "postroom.key(...)"
        )
    return bytes(value)


def span(start: Any, end: Any) -> tuple[bytes, bytes | None]:
    """Return the bounds of a span, checked; ``end=None`` is unbounded."""
    return key(start), None if end is None else key(end)


def value(given: Any, codec: Packing, of: bytes) -> bytes:
    """Return a value, checked and packed."""
    packed = given if type(given) is bytes and not codec.packs else _packed(given, codec, of)
    if len(packed) > VALUE_BYTES_MAX:
        raise ValueTooLarge(
            f"the value of {shorten(of)} has {len(packed)} bytes, the limit is {VALUE_BYTES_MAX}; "
            "nothing was changed: store it in parts under several keys"
        )
    return packed


def expected(given: Any, codec: Packing) -> tuple[bytes | None, int | None]:
    """Return what a key is expected to hold, packed, and the stored integer that equals it."""
    if given is None:
        return None, None
    is_integer = codec.packs and type(given) is int and -(2**63) <= given < 2**63
    return codec.encode(given), given if is_integer else None


def _packed(given: Any, codec: Packing, key: bytes) -> bytes:
    """Return what the codec makes of a value; refuse values that it could not unpack again."""
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
    """Return the payload of a message, checked and packed."""
    packed = given if type(given) is bytes and not codec.packs else _packed(given, codec, to)
    size = len(packed) + headers_bytes
    if size > MESSAGE_BYTES_MAX:
        raise ValueTooLarge(
            f"the message to {shorten(to)} has {size} bytes, the limit is "
            f"{MESSAGE_BYTES_MAX}; nothing was changed: put the payload under a key and send that"
        )
    return packed


def headers(given: Any, to: bytes) -> tuple[dict[str, Any] | None, int]:
    """Return the headers of a message and about how many bytes they take.

    Names are text; contents are text, bytes, numbers, bools or ``None``.
    """
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
    """Return the content of a header in its stored type, and about how many bytes it takes."""
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
    """Return text that can be stored: UTF-8 has no form for half of a surrogate pair."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{given!r} is no text that can be stored: {error}") from None
    return str(given)


def count(given: Any, name: str, least: int = 1) -> int:
    """Return a whole number of at least ``least``."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is a whole number, not {type(given).__name__}")
    if given < least:
        raise ValueError(f"{name} is at least {least}, not {given}")
    return given


def timeout(given: Any) -> float | None:
    """Return how many seconds an iteration goes on without items; ``None`` stays ``None``."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"timeout is a number of seconds, not {type(given).__name__}")
    if not 0 < given < float("inf"):
        raise ValueError(f"timeout is a number of seconds above 0, or None, not {given}")
    return float(given)


def wait(given: Any) -> float:
    """Return how many seconds to wait, at most ``WAIT_SECONDS_MAX``; ``None`` is 0."""
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
    """Return a 64-bit signed integer, checked."""
    if type(given) is not int and (not isinstance(given, int) or isinstance(given, bool)):
        raise TypeError(f"{name} is a whole number, not {type(given).__name__}")
    if not -(2**63) <= given < 2**63:
        raise Overflow(f"{name} = {given} is outside the range of a 64-bit signed integer")
    return int(given)


def timestamp(given: Any, name: str = "at") -> int:
    """Return a timestamp, checked; ``None``, which means now, is 0."""
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is a Timestamp, not {type(given).__name__}: use db.now()")
    if not 0 < given < 1 << 64:
        raise ValueError(f"{given} is no timestamp: use what db.now() returned")
    return int(given)


def due(given: Any, name: str) -> int:
    """Return a due time in the form of requests (:mod:`postroom.messaging.due`); 0: at once.

    Raises:
        Invalid: it is a number above ten years: most likely seconds since 1970.
    """
    match given:
        case None:
            return 0
        case datetime.datetime():
            if given.tzinfo is None:
                raise TypeError(f"{name} is an aware datetime; this one has no time zone")
            return times.at(max(from_datetime(given), 0))
        case datetime.timedelta():
            return _later(given.total_seconds(), name)
        case bool():
            pass
        case int() | float():
            if NUMBER_SECONDS_MAX < given < math.inf:
                raise _is_no_length(given, name)
            return _later(given, name)
    raise TypeError(f"{name} is an aware datetime, a timedelta or seconds, not {given!r}")


def _is_no_length(given: float, name: str) -> Invalid:
    told = str(given)[:30]
    return Invalid(
        f"{name}={told} would be more than ten years from now; nothing was changed: a number is "
        f"seconds from now, as {name}=2; a moment is an aware datetime, as "
        f"{name}=datetime.datetime.fromtimestamp({told}, datetime.UTC)"
    )


def _later(seconds: float, name: str) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"{name} is a number of seconds from now, not {seconds}")
    if not seconds < LATER_SECONDS_MAX:
        years = int(LATER_SECONDS_MAX / YEAR_SECONDS)
        raise ValueError(f"{name} is at most {years:,} years from now; nothing was changed")
    milliseconds = int(max(seconds, 0.0) * 1000)
    return times.after(milliseconds) if milliseconds else 0


def update(request: Any, codec: Packing) -> UpdateRequest:
    """Return a request to be deferred, all of its fields checked."""
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
