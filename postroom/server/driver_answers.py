"""A request at a driver, and its answer: what whoever has sent it waits for."""

from __future__ import annotations

from typing import Final

from postroom.kv import forks
from postroom.ranges.calls import Call

CLOSED: Final = "the database was closed; nothing was changed: open it again"
FORKED: Final = forks.refusal("opened", "open one")
"""What those are told that come later, or in the child of a fork."""


class Answer(Call):
    """Awaited once. Drivers have subclasses, which say how who waits for it is woken.

    Each transaction makes a few of them: so a subclass sets all the attributes itself, and has
    ``complete`` and ``__await__`` as one step each.

    Attributes:
        done: it is there. It is set last: another thread may look, without a lock.
        timeout_seconds: how long to wait for it; ``None``: for ever.
        woken: by which who waits is woken; ``None``: nobody waits yet.
    """

    __slots__ = ("_driver", "_error", "_result", "done", "timeout_seconds", "woken")


__all__ = ["CLOSED", "FORKED", "Answer"]
