"""The errors between processes: their form on the way, and on the other side.

A failure is a name, a message, and any other content of the error. Besides the public errors
(:mod:`postroom.errors`) there are some that only the two programs see.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from postroom import errors
from postroom.limits import RANGES_TOLD_MAX
from postroom.ranges.descriptor import RangeDescriptor

Failure: TypeAlias = tuple[str, str, Any]
"""An error: its name, its message, and its other content."""

NOT_LEASEHOLDER: Final = "NotLeaseholder"
"""The name of the failure that another node leads; nothing happened.

It carries that node's number and address, or nil; and the descriptor of the range, if there are
several.
"""
WRONG_RANGE: Final = "WrongRange"
"""The name of the failure that the keys are of other ranges; nothing happened.

It carries the descriptors of these, as far as the node knows them.
"""
WITHDRAWN: Final = "Withdrawn"
"""The name of the failure of a withdrawn request; nothing happened."""
NO_SUCH_QUEUE: Final = errors.NoSuchQueue.__name__
"""The name of the failure that a range knows of no queue of a name, which it carries."""
CLOCK_AHEAD: Final = "ClockAhead"
"""The name of the failure of a client's clock too far ahead of the node's; nothing happened."""


class WireError(Exception):
    """The error for bytes that are no frame of this protocol. Nothing was done."""


class DeadlineExceeded(Exception):
    """The error for a request without an answer in time. It was withdrawn, and nothing happened.

    It may tell the ranges that were asked.
    """


def _tree(kind: type[errors.Error]) -> dict[str, type[errors.Error]]:
    known = {kind.__name__: kind} if kind.__module__ == errors.__name__ else {}
    for narrower in kind.__subclasses__():
        known |= _tree(narrower)
    return known


ERRORS: Final[dict[str, type[Exception]]] = {
    **_tree(errors.Error),
    "ValueError": ValueError,
    "TypeError": TypeError,
}
"""The errors that travel. Any other name that a node sends becomes an ``Error``."""


def failure_from(error: BaseException) -> Failure:
    """Return an error in its form on the way."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), "Error")
    extra = None
    if isinstance(error, errors.ConditionFailed):
        extra = error.actual
    elif isinstance(error, errors.NoSuchQueue):
        extra = error.queue
    elif isinstance(error, errors.Unavailable):
        extra = error.retry_after
    elif isinstance(error, errors.TransactionConflict) and (error.keys or error.spans):
        extra = error.keys, error.spans
    return name, str(error), extra


def error_from(failure: Failure) -> Exception:
    """Return the error that a failure stands for."""
    name, message, extra = failure
    if name == WITHDRAWN:
        return DeadlineExceeded()
    if name == "Unavailable":
        return errors.Unavailable(message, extra if isinstance(extra, int | float) else 0.1)
    if name == NO_SUCH_QUEUE:
        return errors.NoSuchQueue(message, extra if isinstance(extra, str) else "")
    if name == "ConditionFailed":
        return errors.ConditionFailed(message, extra)
    if name == "TransactionConflict":
        return errors.TransactionConflict(message, *_lost(extra))
    return ERRORS.get(name, errors.Error)(message)


def _lost(
    extra: Any,
) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes | None], ...]]:
    """Return the keys and spans of a conflict, without malformed ones."""
    match extra:
        case [[*keys], [*spans]]:
            return (
                tuple(key for key in keys if isinstance(key, bytes)),
                tuple((start, end) for span in spans for start, end in _bounds(span)),
            )
    return (), ()


def _bounds(span: Any) -> list[tuple[bytes, bytes | None]]:
    match span:
        case [bytes() as start, (bytes() | None) as end]:
            return [(start, end)]
    return []


def leader_address(failure: Failure) -> str | None:
    """Return the address that ``NOT_LEASEHOLDER`` carries, or ``None``."""
    match failure[2]:
        case [int(), str(address), *_] if address:
            return address
    return None


def leaders_range(failure: Failure) -> RangeDescriptor | None:
    """Return the descriptor that ``NOT_LEASEHOLDER`` carries, or ``None``."""
    match failure[2]:
        case [_, _, descriptor]:
            return next(iter(_descriptors([descriptor])), None)
    return None


def ranges_of(failure: Failure) -> list[RangeDescriptor]:
    """Return the descriptors that ``WRONG_RANGE`` carries, without malformed ones."""
    match failure[2]:
        case [*descriptors]:
            return _descriptors(descriptors[:RANGES_TOLD_MAX])
    return []


def _descriptors(told: Iterable[Any]) -> list[RangeDescriptor]:
    found = []
    for each in told:
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(each, RangeDescriptor))
    return found
