"""Checks of what applications say of queues, before anything is sent.

What a setting may be is decided where the queue is made, by the store, which names the setting.
Here only Python types are checked, because something of another type cannot travel.
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
    PRIORITY_MAX,
    QUEUE_ID_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REASON_CHARACTERS_MAX,
)
from postroom.messaging.queues.requests import (
    PRIORITY_MIN,
    Attempt,
    QueueSettings,
    Selection,
)

Id: TypeAlias = str | bytes
"""What names a message, beside its kind; text is stored as UTF-8."""
MessageOrId: TypeAlias = AnyMessage | Id
Messages: TypeAlias = MessageOrId | Iterable[MessageOrId]
"""One message, or several: messages name their attempt, ids whichever attempt there is."""

ATTEMPTS_PER_REQUEST: Final = 1000
"""So many messages are named by one request; longer lists are cut."""

KNOWN_AT_ONCE: Final = 1000
_known: Final[dict[tuple[str, str], None]] = {}
"""Texts that were checked lately, and what they were checked for: there are few as a rule."""

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
    """The name of a queue, or of a schedule."""
    return _text(given, "a queue's name", QUEUE_NAME_BYTES_MAX, least=1)


def schedule_name(given: Any) -> str:
    """The name of a periodic schedule."""
    return _text(given, "a schedule's name", QUEUE_NAME_BYTES_MAX, least=1)


def texts(**given: Any) -> None:
    """Arguments that are text."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is text, not {type(value).__name__}")


def kind(given: Any) -> str:
    """The type tag of a payload."""
    return _text(given, "kind", KIND_BYTES_MAX)


def group(given: Any) -> str:
    """The group of a message; ``None``: none."""
    return "" if given is None else _text(given, "group", GROUP_BYTES_MAX)


def message_id(given: Any) -> bytes:
    """What a message is to be known by."""
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
    """A priority; lower ones go first."""
    number = arguments.integer(given, "priority")
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise ValueError(f"priority is from {PRIORITY_MIN} to {PRIORITY_MAX}, not {number}")
    return number


def seconds(given: Any, name: str) -> float | None:
    """A length of time; ``None`` stays ``None``."""
    if given is None:
        return None
    if isinstance(given, datetime.timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} is a number of seconds, not {type(given).__name__}")
    if not 0 <= given < float("inf"):
        raise ValueError(f"{name} is a number of seconds from 0 on, not {given}")
    return float(given)


def moment(given: Any, name: str) -> int:
    """A bound in time, as a timestamp: a ``Timestamp``, an aware ``datetime``; ``None``: 0."""
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
    """Why a message was rejected, cut to what is kept of it; ``None``: empty."""
    if given is None:
        return ""
    return shortened(given if isinstance(given, str) else str(given))


def shortened(text: str) -> str:
    """Text that fits into a reason, whatever it holds."""
    return (
        text[:REASON_CHARACTERS_MAX]
        .encode("utf-8", "backslashreplace")
        .decode()[:REASON_CHARACTERS_MAX]
    )


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name; their values have the types that they must have.

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
    """Which kinds a consumer takes; ``None``: every one. One may be named alone."""
    if given is None:
        return None
    each = (given,) if isinstance(given, str) else tuple(given)
    return tuple(kind(one) for one in each)


def selection(start: Any, end: Any, of_kinds: Any, where: Any) -> Selection:
    """Which messages a consumer takes."""
    first, last = arguments.span(start, end)
    wanted, _ = arguments.headers(where, b"")
    return Selection(first, last, kinds(of_kinds), wanted)


def attempts(given: Any, of_kind: str | None = None) -> Iterator[list[Attempt]]:
    """Messages as requests name them, cut into lists that one request may carry.

    Args:
        given: messages or ids, one or several.
        of_kind: which kind the ids are of; ``None``: of whichever.
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
