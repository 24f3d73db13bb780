"""Values and errors of Python as messages of the service, and back.

gRPC tells an error by a status code, a message, and a detail that says what to do. The detail is an
``ErrorDetail`` in a ``google.rpc.Status``, as gRPC libraries expect it in the trailing metadata
``grpc-status-details-bin``. :data:`CODES` has the code of each error.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError

import postroom
from postroom import aio, errors
from postroom.errors import Invalid
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.callers import Unauthenticated
from postroom.gateway.limits import MESSAGE_CHARACTERS_MAX, Exhausted

When: TypeAlias = datetime.datetime | float | None

_FIELDS: Final[dict[type, str]] = {
    str: "text", bytes: "bytes", int: "integer", float: "number", bool: "boolean",
}  # fmt: skip
DETAILS_KEY: Final = "grpc-status-details-bin"

_Code: Final = grpc.StatusCode
_OUTCOMES: Final = {
    (False, False): pb.ENQUEUE_OUTCOME_IGNORED,
    (False, True): pb.ENQUEUE_OUTCOME_REPLACED,
    (True, False): pb.ENQUEUE_OUTCOME_INSERTED,
}

CODES: Final[dict[type[Exception], Any]] = {
    errors.TransactionConflict: _Code.ABORTED,
    Exhausted: _Code.RESOURCE_EXHAUSTED,
    errors.Retryable: _Code.UNAVAILABLE,
    errors.DatabaseClosed: _Code.UNAVAILABLE,
    errors.CommitUnknown: _Code.UNKNOWN,
    errors.Overflow: _Code.OUT_OF_RANGE,
    errors.SnapshotTooOld: _Code.OUT_OF_RANGE,
    errors.TransactionExpired: _Code.FAILED_PRECONDITION,
    errors.TransactionClosed: _Code.FAILED_PRECONDITION,
    errors.WrongType: _Code.FAILED_PRECONDITION,
    errors.ConditionFailed: _Code.FAILED_PRECONDITION,
    errors.LeaseLost: _Code.FAILED_PRECONDITION,
    errors.TaskFailed: _Code.FAILED_PRECONDITION,
    errors.VersionMismatch: _Code.FAILED_PRECONDITION,
    errors.StoreLocked: _Code.FAILED_PRECONDITION,
    errors.Invalid: _Code.INVALID_ARGUMENT,
    TypeError: _Code.INVALID_ARGUMENT,
    ValueError: _Code.INVALID_ARGUMENT,
    Unauthenticated: _Code.UNAUTHENTICATED,
    errors.AccessDenied: _Code.PERMISSION_DENIED,
    errors.StoreCorrupted: _Code.DATA_LOSS,
}
"""The code of each error; that of the nearest class counts. All others are ``INTERNAL``."""

EXPECTED: Final = (errors.Error, TypeError, ValueError)
"""The errors that a caller is told."""

_DOCUMENTED: Final = {
    each
    for name, each in vars(errors).items()
    if isinstance(each, type) and name in postroom.__all__
}
_NOTHING_HAPPENED: Final = (
    errors.Retryable, errors.Invalid, errors.ConditionFailed, errors.LeaseLost,
    errors.AccessDenied, errors.StoreLocked, errors.VersionMismatch, TypeError, ValueError,
)  # fmt: skip


def parsed(kind: Any, packed: bytes) -> Any:
    """Return a request.

    Args:
        kind: its class.
        packed: its bytes.

    Raises:
        Invalid: they are no such request.
    """
    try:
        return kind.FromString(packed)
    except DecodeError as error:
        raise Invalid(f"the bytes are no {kind.__name__}; nothing was done") from error


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
    return pb.HeaderValue(text=json.dumps(value, default=repr))  # a client may nest them


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


def send_arguments(request: pb.SendRequest) -> dict[str, Any]:
    """Return the arguments of ``tx.enqueue_message`` besides the key and the value."""
    return {
        "headers": headers(request.headers),
        "deliver_at": due(request, "deliver_at"),
    }


def by(request: pb.IncrementRequest) -> int:
    """Return what a request adds."""
    return request.by if request.HasField("by") else 1


def update(request: pb.DeferRequest) -> Any:
    """Return the update to defer.

    Raises:
        Invalid: there is none, or one that is not known here.
    """
    match request.WhichOneof("update"):
        case "put":
            return postroom.Put(request.put.key, request.put.value)
        case "delete":
            return postroom.Delete(request.delete.key)
        case "increment":
            return postroom.Increment(request.increment.key, by(request.increment))
        case "delete_range":
            span = request.delete_range
            return postroom.DeleteRange(span.start, optional(span, "end"))
        case "accounting":
            return postroom.Accounting(request.accounting.key, dict(request.accounting.metrics))
    raise Invalid("the update to defer is empty, or not known here; nothing was changed")


def outcome(handle: aio.EnqueueHandle) -> Any:
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


# --- errors


def code_of(error: Exception) -> Any:
    """Return the status code of an error."""
    for each in type(error).__mro__:
        if each in CODES:
            return CODES[each]
    return _Code.INTERNAL


def detail_of(error: Exception) -> pb.ErrorDetail:
    """Return the detail of an error."""
    is_retryable = isinstance(error, errors.Retryable | errors.DatabaseClosed)
    detail = pb.ErrorDetail(
        type=_name_of(error),
        retryable=is_retryable,
        nothing_happened=isinstance(error, _NOTHING_HAPPENED),
    )
    if isinstance(error, postroom.Unavailable):
        detail.retry_after_seconds = error.retry_after
    return detail


def _name_of(error: Exception) -> str:
    if isinstance(error, TypeError | ValueError):
        return errors.Invalid.__name__
    documented = (each for each in type(error).__mro__ if each in _DOCUMENTED)
    return next(documented, errors.Error).__name__


def status_of(error: Exception) -> pb.RpcStatus:
    """Return the code, the message and the detail of an error."""
    packed = any_pb2.Any()
    packed.Pack(detail_of(error))
    message = str(error)[:MESSAGE_CHARACTERS_MAX]
    return pb.RpcStatus(code=code_of(error).value[0], message=message, details=[packed])


async def abort(context: Any, error: Exception) -> None:
    """End a call with an error.

    Raises:
        grpc.aio.AbortError: always; gRPC ends the call with it.
    """
    status = status_of(error)
    trailer = (DETAILS_KEY, status.SerializeToString())
    await context.abort(code_of(error), status.message, (trailer,))
