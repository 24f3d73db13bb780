"""Errors between processes: how they travel, and what they become on the other side.

A failure is a name, a message, and whatever else the error carries. Besides the public errors
(:mod:`postroom.errors`) there are some that only the two programs see.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from postroom import errors

Failure: TypeAlias = tuple[str, str, Any]
"""An error: its name, its message, and what else it carries."""

NOT_LEASEHOLDER: Final = "NotLeaseholder"
"""Another node leads; nothing happened. Carries its number and address, or nil."""
WITHDRAWN: Final = "Withdrawn"
"""The client did not want the answer any more; nothing happened."""
CLOCK_AHEAD: Final = "ClockAhead"
"""The client's clock is too far ahead of the node's; nothing happened."""


class WireError(Exception):
    """What came in is no frame of this protocol. Nothing of it was done."""


class DeadlineExceeded(Exception):
    """No answer came in time; the request was withdrawn, and nothing happened."""


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
"""The errors that travel. What a node says that is not among them is an ``Error``."""


def failure_from(error: BaseException) -> Failure:
    """An error as it travels."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), "Error")
    extra = None
    if isinstance(error, errors.ConditionFailed):
        extra = error.actual
    elif isinstance(error, errors.Unavailable):
        extra = error.retry_after
    return name, str(error), extra


def error_from(failure: Failure) -> Exception:
    """An error that has travelled."""
    name, message, extra = failure
    if name == WITHDRAWN:
        return DeadlineExceeded()
    if name == "Unavailable":
        return errors.Unavailable(message, extra if isinstance(extra, int | float) else 0.1)
    if name == "ConditionFailed":
        return errors.ConditionFailed(message, extra)
    return ERRORS.get(name, errors.Error)(message)


def leader_address(failure: Failure) -> str | None:
    """The address that ``NOT_LEASEHOLDER`` names; ``None``: none."""
    match failure[2]:
        case [int(), str(address)]:
            return address
    return None
