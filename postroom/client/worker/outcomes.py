"""The exceptions by which the function of a task decides about its message, and their outcomes.

Every end of a call has an outcome, with a reason. This is also true of an error that cannot be
converted to text, and of one that asks for an invalid delay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from postroom.client import arguments


class Reject(Exception):
    """A request to try this message again; the writes of the function are rolled back.

    Args:
        reason: kept with the message as ``last_error``.
        delay: seconds, or a ``timedelta``; ``None``: the queue's back-off, 0: at once.
    """

    reason: Any = ""
    delay: Any = None

    def __init__(self, reason: str = "", *, delay: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


class Discard(Exception):
    """A request not to try this message again; the writes of the function are rolled back.

    The message becomes a dead letter.

    Args:
        reason: kept with it.
    """

    reason: Any = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Outcome(NamedTuple):
    """The outcome of a failed attempt, for its message.

    Attributes:
        reason: kept with it.
        delay: seconds until the next attempt; ``None``: by the back-off.
        dead: whether there is no next attempt.
    """

    reason: str
    delay: float | None = None
    dead: bool = False


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception of a function asks for."""
    if isinstance(error, Discard):
        return Outcome(text_of(error.reason) or "discarded by its function", dead=True)
    if not isinstance(error, Reject):
        return Outcome(told(error))
    reason = text_of(error.reason) or "rejected by its function"
    try:
        return Outcome(reason, arguments.seconds(error.delay, "delay"))
    except Exception as other:
        return Outcome(f"{reason} ({told(other)})")


def told(error: BaseException) -> str:
    """Return the type of an error and its text; converting it cannot fail."""
    name = type(error).__name__
    text = " ".join(map(text_of, (error, *getattr(error, "__notes__", ()))))
    return arguments.shortened(f"{name}: {text}" if text else name)


def text_of(what: Any) -> str:
    """Return ``str(what)``, cut to what may be kept; if that fails, a text about the failure."""
    try:
        return arguments.reason(what)
    except BaseException as error:  # its type is all that can be told
        return f"it cannot be told ({type(error).__name__})"


__all__ = ["Discard", "Outcome", "Reject", "outcome_of", "text_of", "told"]
