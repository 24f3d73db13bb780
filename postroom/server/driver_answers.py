"""A request at a driver, with its answer, for which the sender waits."""

from __future__ import annotations

from typing import Final

from postroom.kv import forks
from postroom.ranges.calls import Call

CLOSED: Final = "the database was closed; nothing was changed: open it again"
FORKED: Final = forks.refusal("opened", "open one")
"""The refusal of requests that come in the child of a fork."""


class Answer(Call):
    """An answer that is awaited once. Subclasses for drivers say how a waiting sender is woken.

    Each transaction makes a few of them. For speed, a subclass sets all the attributes itself, and
    has ``complete`` and ``__await__`` as one step each.

    Attributes:
        done: whether the answer is there. It is set last: another thread may look, without a lock.
        timeout_seconds: how long to wait for it; ``None``: for ever.
        woken: wakes the waiting sender; ``None``: no sender waits yet.
    """

    __slots__ = ("_driver", "_error", "_result", "done", "timeout_seconds", "woken")


__all__ = ["CLOSED", "FORKED", "Answer"]
