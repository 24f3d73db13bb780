"""Checks of what applications pass in: they refuse wrong types and sizes before sending.

The store decides which settings of a queue are valid when it makes the queue, and names a wrong
one. The checks of settings are only about Python types, because values of other types cannot be
sent.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from postroom.client.codec import Packing
from postroom.client.queues.messages import AnyMessage
from postroom.errors import Invalid, KeyTooLarge, Overflow, ValueTooLarge, shorten
from postroom.kv.clock import from_datetime
from postroom.limits import (
    DEPTH_MAX,
    GROUP_BYTES_MAX,
    INTEGER_MAX,
    INTEGER_MIN,
    KEY_BYTES_MAX,
    KIND_BYTES_MAX,
    LATER_SECONDS_MAX,
    MESSAGE_BYTES_MAX,
    NUMBER_SECONDS_MAX,
    PRIORITY_MAX,
    QUEUE_EPOCH_MAX,
    QUEUE_ID_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    RESULT_SECONDS_MAX,
    VALUE_BYTES_MAX,
    WAIT_SECONDS_MAX,
)
from postroom.messaging import due as times
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.definition_requests import QueueSettings
from postroom.messaging.queues.requests import PRIORITY_MIN, Attempt
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


def name(value: Any, what: str, characters_max: int) -> str:
    """Return a name, which is text that can be stored.

    Args:
        value: the name.
        what: what it is, for messages.
        characters_max: its length at most.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is text, not {type(value).__name__}")
    if not 1 <= len(value) <= characters_max or not _is_encodable(value):
        raise Invalid(
            f"{what} has 1 to {characters_max} characters, and no half of one; {value[:40]!r} has "
            f"{len(value)}; nothing was changed: take another name"
        )
    return str(value)


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    stored = given if type(given) is bytes and not codec.packs else packed(given, codec, of)
    if len(stored) > VALUE_BYTES_MAX:
        raise ValueTooLarge(
            f"the value of {shorten(of)} has {len(stored)} bytes, the limit is {VALUE_BYTES_MAX}; "
            "nothing was changed: store it in parts under several keys"
        )
    return stored


def expected(given: Any, codec: Packing) -> tuple[bytes | None, int | None]:
    """Return what a key is expected to hold, packed, and the stored integer that equals it."""
    if given is None:
        return None, None
    is_integer = codec.packs and type(given) is int and -(2**63) <= given < 2**63
    return codec.encode(given), given if is_integer else None


def packed(given: Any, codec: Packing, key: bytes) -> bytes:
    """Return what the codec makes of a value; refuse values that it could not unpack again."""
    try:
        stored = codec.encode(given)
    except RecursionError as error:
        raise _too_deep(key) from error
    if is_nested(given, DEPTH_MAX):
        raise _too_deep(key)
    return stored


def _too_deep(key: bytes) -> ValueTooLarge:
    return ValueTooLarge(
        f"the value or message for {shorten(key)} is nested more than {DEPTH_MAX} "
        "deep; nothing was changed: keep parts of it under keys of their own"
    )


def message(given: Any, codec: Packing, to: bytes, headers_bytes: int = 0) -> bytes:
    """Return the payload of a message, checked and packed."""
    payload = given if type(given) is bytes and not codec.packs else packed(given, codec, to)
    size = len(payload) + headers_bytes
    if size > MESSAGE_BYTES_MAX:
        raise ValueTooLarge(
            f"the message to {shorten(to)} has {size} bytes, the limit is "
            f"{MESSAGE_BYTES_MAX}; nothing was changed: put the payload under a key and send that"
        )
    return payload


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


def number(given: Any, name: str) -> float:
    """Return a number of seconds, its type checked."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} is a number of seconds, not {type(given).__name__}")
    return given


def timeout(given: Any) -> float | None:
    """Return how many seconds an iteration goes on without items; ``None`` stays ``None``."""
    if given is None:
        return None
    if not 0 < number(given, "timeout") < float("inf"):
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


def update(request: Any, codec: Packing) -> tuple[UpdateRequest, int]:
    """Return a request to be deferred, its fields checked, and about how many bytes it has."""
    if (
        type(request) is Increment and request.packed is codec.packs
        and type(request.key) is bytes and len(request.key) <= KEY_BYTES_MAX
        and type(request.by) is int and INTEGER_MIN <= request.by <= INTEGER_MAX
    ):  # fmt: skip
        return request, 2 * len(request.key)  # the usual one: quicker than a pattern
    match request:
        case Increment():
            increment = Increment(key(request.key), integer(request.by), codec.packs)
            return increment, 2 * len(increment.key)
        case Put():
            put = Put(key(request.key), value(request.value, codec, request.key))
            return put, len(put.key) + len(put.value)
        case Delete():
            deletion = Delete(key(request.key))
            return deletion, 2 * len(deletion.key)
        case DeleteRange():
            start, end = span(request.start, request.end)
            return DeleteRange(start, end), len(start) + len(end or b"")
        case Accounting():
            at, deltas = key(request.key), _deltas(request.deltas)
            check_accounting(at, deltas)
            return Accounting(at, deltas), 2 * len(at) + sum(map(len, deltas))
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


Id: TypeAlias = str | bytes
"""The id of a message, which names it together with its kind; text is stored as UTF-8."""
MessageOrId: TypeAlias = AnyMessage | Id
Messages: TypeAlias = MessageOrId | Iterable[MessageOrId]
"""One message, or several: a message names its attempt, an id any attempt."""

ATTEMPTS_PER_REQUEST: Final = 1000
"""The most messages that one request names; longer lists are cut."""

KNOWN_AT_ONCE: Final = 1000
_known: Final[dict[tuple[str, str], None]] = {}
"""The texts that were checked lately, and what they were checked for: there are usually few."""

_SETTINGS: Final = {field.name: field.type for field in msgspec.structs.fields(QueueSettings)}


def _text(given: Any, what: str, bytes_max: int, *, least: int = 0) -> str:
    if type(given) is str and (what, given) in _known:
        return given
    if not isinstance(given, str):
        raise TypeError(f"{what} is text, not {type(given).__name__}")
    checked = text(given)
    size = len(checked.encode())
    if not least <= size <= bytes_max:
        raise Invalid(
            f"{what} has {size} bytes, and may have from {least} to {bytes_max}; nothing was "
            "changed"
        )
    if len(_known) >= KNOWN_AT_ONCE:
        _known.clear()
    _known[what, checked] = None
    return checked


def queue_name(given: Any) -> str:
    """Return the name of a queue, checked."""
    return _text(given, "a queue's name", QUEUE_NAME_BYTES_MAX, least=1)


def schedule_name(given: Any) -> str:
    """Return the name of a periodic schedule, checked."""
    return _text(given, "a schedule's name", QUEUE_NAME_BYTES_MAX, least=1)


def texts(**given: Any) -> None:
    """Check that arguments are text."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is text, not {type(value).__name__}")


def kind(given: Any) -> str:
    """Return the type tag of a payload, checked."""
    return _text(given, "kind", KIND_BYTES_MAX)


def group(given: Any) -> str:
    """Return the group of a message, checked; ``None`` is no group."""
    return "" if given is None else _text(given, "group", GROUP_BYTES_MAX)


def message_id(given: Any) -> bytes:
    """Return the id of a message as bytes, checked."""
    if isinstance(given, str):
        given = text(given).encode()
    if not isinstance(given, bytes):
        raise TypeError(f"the id of a message is text or bytes, not {type(given).__name__}")
    if not 1 <= len(given) <= QUEUE_ID_BYTES_MAX:
        raise Invalid(
            f"the id of a message has {len(given)} bytes, and may have from 1 to "
            f"{QUEUE_ID_BYTES_MAX}; nothing was changed: use a hash of it"
        )
    return bytes(given)


def priority(given: Any) -> int:
    """Return a priority, checked; lower ones go first."""
    number = integer(given, "priority")
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise ValueError(f"priority is from {PRIORITY_MIN} to {PRIORITY_MAX}, not {number}")
    return number


def epoch(given: Any) -> int | None:
    """Return a number of attempts, checked; ``None`` stays ``None``."""
    if given is None:
        return None
    number = count(given, "epoch", 0)
    if number > QUEUE_EPOCH_MAX:
        raise ValueError(f"epoch is {QUEUE_EPOCH_MAX} at most, not {number}")
    return number


def seconds(given: Any, name: str) -> float | None:
    """Return a length of time in seconds, checked; ``None`` stays ``None``.

    Raises:
        Invalid: it is a number above ten years: most likely seconds since 1970.
    """
    if given is None:
        return None
    is_timedelta = isinstance(given, datetime.timedelta)
    if is_timedelta:
        given = given.total_seconds()
    if not 0 <= number(given, name) < float("inf"):
        raise ValueError(f"{name} is a number of seconds from 0 on, not {given}")
    if given > NUMBER_SECONDS_MAX and not is_timedelta:
        raise Invalid(
            f"{name}={str(given)[:30]} is more than ten years; nothing was changed: a number is "
            f"seconds, as {name}=2; to a moment it is a long time as a timedelta, as {name}=moment "
            "- datetime.datetime.now(datetime.UTC)"
        )
    return float(given)


def kept_seconds(given: Any) -> float:
    """Return for how many seconds results are kept, checked; ``None`` is 0.

    Raises:
        TypeError, ValueError, Invalid: it is no such length of time, or too long.
    """
    length = seconds(given, "keep_result") or 0.0
    if length > RESULT_SECONDS_MAX:
        raise Invalid(
            f"keep_result={length:g} is more than {RESULT_SECONDS_MAX:g} seconds; nothing was "
            "changed: let the task put what is kept for longer under a key"
        )
    return length


def moment(given: Any, name: str) -> int:
    """Return a bound in time as a timestamp, from a ``Timestamp`` or an aware ``datetime``.

    ``None`` is 0.
    """
    match given:
        case None:
            return 0
        case datetime.datetime():
            if given.tzinfo is None:
                raise TypeError(f"{name} is an aware datetime; this one has no time zone")
            return max(from_datetime(given), 1)
        case int() if not isinstance(given, bool):
            return timestamp(given)
    raise TypeError(f"{name} is a Timestamp or an aware datetime, not {given!r}")


def reason(given: Any) -> str:
    """Return the reason of a rejection, cut to what is kept of it; ``None`` is empty."""
    if given is None:
        return ""
    return shortened(given if isinstance(given, str) else str(given))


def shortened(text: str) -> str:
    """Return text cut and escaped so that it fits into a reason."""
    return (
        text[:REASON_CHARACTERS_MAX]
        .encode("utf-8", "backslashreplace")
        .decode()[:REASON_CHARACTERS_MAX]
    )


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, with the types of their values checked.

    Raises:
        TypeError: there is no such setting, or its value is of another type.
    """
    for name, value in given.items():
        if name not in _SETTINGS:
            raise TypeError(f"a queue has no setting {name!r}: it has {', '.join(_SETTINGS)}")
        try:
            msgspec.convert(value, _SETTINGS[name], strict=True)
        except msgspec.ValidationError as error:
            raise TypeError(f"{name}: {error}; nothing was changed") from None
    return dict(given)


def kinds(given: Any) -> tuple[str, ...] | None:
    """Return the kinds that a consumer takes, from one kind or several; ``None``: every one."""
    if given is None:
        return None
    each = (given,) if isinstance(given, str) else tuple(given)
    return tuple(kind(one) for one in each)


def selection(start: Any, end: Any, of_kinds: Any, where: Any) -> ClaimSelection:
    """Return the selection of messages that a consumer takes."""
    first, last = span(start, end)
    wanted, _ = headers(where, b"")
    return ClaimSelection(first, last, kinds(of_kinds), wanted)


def attempts(given: Any, of_kind: str | None = None) -> Iterator[list[Attempt]]:
    """Return messages as requests name them, in lists that one request may carry.

    Args:
        given: messages or ids, one or several.
        of_kind: the kind of the ids; ``None``: any.
    """
    named = [
        each.attempt() if isinstance(each, AnyMessage) else _attempt(each, of_kind)
        for each in messages_or_ids(given)
    ]
    for first in range(0, len(named), ATTEMPTS_PER_REQUEST):
        yield named[first : first + ATTEMPTS_PER_REQUEST]


def messages_or_ids(given: Any) -> list[Any]:
    """Return the messages or ids of an argument that is one or several of them."""
    if isinstance(given, list):
        return given
    is_one = isinstance(given, AnyMessage | str | bytes) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def _attempt(given: Any, of_kind: str | None) -> Attempt:
    if not isinstance(given, str | bytes):
        raise TypeError(f"expected messages or their ids, not {type(given).__name__}")
    id_ = message_id(given)
    if of_kind is None:
        return Attempt(b"", "", id_, by_id=True)
    return Attempt(b"", kind(of_kind), id_, by_id=True, of_kind=True)
