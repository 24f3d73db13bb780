"""Errors as gRPC tells them: a status code, a message, and a detail that says what to do.

The detail is an ``ErrorDetail`` in a ``google.rpc.Status``, as gRPC libraries expect it in the
trailing metadata ``grpc-status-details-bin``. :data:`CODES` has the code of each error.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf import any_pb2

import postroom
from postroom import errors
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.limits import MESSAGE_CHARACTERS_MAX, Exhausted

DETAILS_KEY: Final = "grpc-status-details-bin"

_Code: Final = grpc.StatusCode


class Unauthenticated(errors.AccessDenied):
    """The caller has not shown who it is, or is not known."""


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

_DOCUMENTED: Final = {each for each in vars(errors).values() if isinstance(each, type)}
_NOTHING_HAPPENED: Final = (
    errors.Retryable, errors.Invalid, errors.ConditionFailed, errors.LeaseLost,
    errors.AccessDenied, errors.StoreLocked, errors.VersionMismatch, TypeError, ValueError,
)  # fmt: skip


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


async def abort(context: Any, error: Exception) -> None:
    """End a call with an error.

    Raises:
        grpc.aio.AbortError: always; gRPC ends the call with it.
    """
    code, message = code_of(error), str(error)[:MESSAGE_CHARACTERS_MAX]
    packed = any_pb2.Any()
    packed.Pack(detail_of(error))
    status = pb.RpcStatus(code=code.value[0], message=message, details=[packed])
    await context.abort(code, message, ((DETAILS_KEY, status.SerializeToString()),))


__all__ = ["CODES", "DETAILS_KEY", "Unauthenticated", "abort", "code_of", "detail_of"]
