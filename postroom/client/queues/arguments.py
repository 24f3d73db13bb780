"""Checks of the arguments of queue calls, before anything is sent.

The store decides which settings are valid when it makes a queue, and names a wrong one. These
checks are only about Python types, because values of other types cannot be sent.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from postroom.client import arguments
from postroom.client.queues.messages import AnyMessage
from postroom.errors import Invalid
from postroom.kv.clock import from_datetime
from postroom.limits import (
    GROUP_BYTES_MAX,
    KIND_BYTES_MAX,
    NUMBER_SECONDS_MAX,
    PRIORITY_MAX,
    QUEUE_EPOCH_MAX,
    QUEUE_ID_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_CHARACTERS_MAX,
)
from postroom.messaging.queues.requests import (
    PRIORITY_MIN,
    Attempt,
    ClaimSelection,
    QueueSettings,
)

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
    checked = arguments.text(given)
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
        given = arguments.text(given).encode()
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
    number = arguments.integer(given, "priority")
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise ValueError(f"priority is from {PRIORITY_MIN} to {PRIORITY_MAX}, not {number}")
    return number


def epoch(given: Any) -> int | None:
    """Return a number of attempts, checked; ``None`` stays ``None``."""
    if given is None:
        return None
    number = arguments.count(given, "epoch", 0)
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
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} is a number of seconds, not {type(given).__name__}")
    if not 0 <= given < float("inf"):
        raise ValueError(f"{name} is a number of seconds from 0 on, not {given}")
    if given > NUMBER_SECONDS_MAX and not is_timedelta:
        raise Invalid(
            f"{name}={str(given)[:30]} is more than ten years; nothing was changed: a number is "
            f"seconds, as {name}=2; to a moment it is a long time as a timedelta, as {name}=moment "
            "- datetime.datetime.now(datetime.UTC)"
        )
    return float(given)


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
            return arguments.timestamp(given)
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
    first, last = arguments.span(start, end)
    wanted, _ = arguments.headers(where, b"")
    return ClaimSelection(first, last, kinds(of_kinds), wanted)


def attempts(given: Any, of_kind: str | None = None) -> Iterator[list[Attempt]]:
    """Return messages as requests name them, in lists that one request may carry.

    Args:
        given: messages or ids, one or several.
        of_kind: the kind of the ids; ``None``: any.
    """
    one = isinstance(given, AnyMessage | str | bytes)
    named = [_attempt(each, of_kind) for each in ([given] if one else given)]
    for first in range(0, len(named), ATTEMPTS_PER_REQUEST):
        yield named[first : first + ATTEMPTS_PER_REQUEST]


def _attempt(given: Any, of_kind: str | None) -> Attempt:
    if isinstance(given, AnyMessage):
        return given.attempt()
    if not isinstance(given, str | bytes):
        raise TypeError(f"expected messages or their ids, not {type(given).__name__}")
    id_ = message_id(given)
    if of_kind is None:
        return Attempt(b"", "", id_, by_id=True)
    return Attempt(b"", kind(of_kind), id_, by_id=True, of_kind=True)
