"""What the function of a task raises to say what is to become of its message."""

from __future__ import annotations

from typing import Any


class Reject(Exception):
    """Try this message again; what the function wrote is rolled back.

    Args:
        reason: kept with the message as ``last_error``.
        delay: seconds, or a ``timedelta``; ``None``: the queue's back-off, 0: at once.
    """

    def __init__(self, reason: str = "", *, delay: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


class Discard(Exception):
    """Do not try this message again; what the function wrote is rolled back. It becomes a dead
    letter.

    Args:
        reason: kept with it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


__all__ = ["Discard", "Reject"]
