"""Values of Python as messages of the service, and back."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import postroom
from postroom.errors import Invalid
from postroom.gateway import postroom_pb2 as pb

When: TypeAlias = datetime.datetime | float | None

_FIELDS: Final[dict[type, str]] = {
    str: "text", bytes: "bytes", int: "integer", float: "number", bool: "boolean",
}  # fmt: skip
_OUTCOMES: Final = {
    (False, False): pb.ENQUEUE_OUTCOME_IGNORED,
    (False, True): pb.ENQUEUE_OUTCOME_REPLACED,
    (True, False): pb.ENQUEUE_OUTCOME_INSERTED,
}


def optional(message: Any, name: str) -> Any:
    """Return a field; ``None`` if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def due(message: Any, name: str) -> When:
    """Return a moment in the future as the client takes it; ``None``: at once.

    Raises:
        Invalid: there is no such moment.
    """
    if not message.HasField(name):
        return None
    given: pb.Due = getattr(message, name)
    match given.WhichOneof("moment"):
        case "seconds":
            return given.seconds
        case "unix_milliseconds":
            try:
                return datetime.datetime.fromtimestamp(given.unix_milliseconds / 1000, datetime.UTC)
            except (OverflowError, ValueError, OSError) as error:
                raise Invalid(f"{name}: there is no such moment ({error})") from error
    return None


def headers(given: Mapping[str, pb.HeaderValue]) -> dict[str, Any] | None:
    """Return headers as the client takes them; ``None``: there are none."""
    if not given:
        return None
    found: dict[str, Any] = {}
    for name, value in given.items():
        which = value.WhichOneof("content")
        found[name] = None if which is None else getattr(value, which)
    return found


def told_headers(given: Mapping[str, Any]) -> dict[str, pb.HeaderValue]:
    """Return headers as a response has them."""
    return {name: _told_header(value) for name, value in given.items()}


def _told_header(value: Any) -> pb.HeaderValue:
    field = _FIELDS.get(type(value))
    if field is not None:
        return pb.HeaderValue(**{field: value})
    if value is None:
        return pb.HeaderValue()
    return pb.HeaderValue(text=json.dumps(value, default=repr))  # of a client that nests them


def inbox_message(message: postroom.Message) -> pb.InboxMessage:
    """Return a message of an inbox as a response has it."""
    return pb.InboxMessage(
        id=message.id,
        value=message.value,
        headers=told_headers(message.headers),
        sent_at=message.sent_at,
        delivered_at=message.delivered_at,
        attempts=message.attempts,
        last_error=message.last_error,
    )


def queue_message(message: Any, lease_seconds: float = 0.0) -> pb.QueueMessage:
    """Return a message of a queue as a response has it.

    Args:
        message: a message that was claimed.
        lease_seconds: for how long it is leased; 0: it is a part of a transaction.
    """
    return pb.QueueMessage(
        attempt=message.receipt,
        id=packed_id(message.id),
        kind=message.kind,
        key=message.key,
        payload=message.payload,
        headers=told_headers(message.headers),
        priority=message.priority,
        group=message.group,
        created_at=message.created_at,
        epoch=message.epoch,
        leased_until=message.leased_until or 0,
        lease_seconds=lease_seconds,
        last_error=message.last_error,
    )


def packed_id(given: str | bytes) -> bytes:
    """Return the id of a message of a queue as bytes."""
    return given.encode() if isinstance(given, str) else given


def selection(given: pb.Selection) -> dict[str, Any]:
    """Return the arguments that select messages of a queue."""
    return {
        "start": given.start,
        "end": optional(given, "end"),
        "kinds": list(given.kinds) or None,
        "where": headers(given.where),
    }


def enqueue_arguments(request: pb.EnqueueRequest) -> dict[str, Any]:
    """Return the arguments of ``tx.enqueue``."""
    return {
        "queue": request.queue,
        "payload": request.payload,
        "id": request.id or None,
        "kind": request.kind,
        "key": optional(request, "key"),
        "priority": request.priority,
        "deliver_at": due(request, "deliver_at"),
        "group": request.group or None,
        "headers": headers(request.headers),
    }


def outcome(handle: postroom.EnqueueHandle) -> Any:
    """Return the outcome of an enqueueing that was committed."""
    return _OUTCOMES[bool(handle.inserted), bool(handle.replaced)]


def seconds_to_wait(given: float) -> float | None:
    """Return how long to wait; ``None``: not at all.

    Raises:
        Invalid: it is no length of time.
    """
    if not given >= 0:
        raise Invalid(f"wait_seconds is 0 or more, not {given}")
    return given or None
