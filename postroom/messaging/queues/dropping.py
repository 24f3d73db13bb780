"""The service of the root that has all ranges learn of dropped queues.

::

    a queue is dropped ─▶ each range, in the order of keys: LearnDefinitions ─▶ version, end
                             all have learned the drop ─▶ NoteAllKnow ─▶ its name is free

A range answers with the end of its keys. The next one that is asked is the one behind it, also
after splits of which this node has not heard. The right half of a split knows what the left one
knew. A range that cannot be asked now is asked later, and the name is not free before that.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from postroom.errors import CommitUnknown, Error, Retryable
from postroom.messaging.queues.maintenance import LearnDefinitions, Learned, NoteAllKnow
from postroom.ranges.carrier import Recipient
from postroom.ranges.contract import ROOT_ID, Request
from postroom.ranges.ports import ServiceWakeUp

AGAIN_SECONDS: Final = 0.05
"""The first pause before ranges are asked again; it doubles up to a second."""
LATER_SECONDS: Final = 1.0


class Ranges(Protocol):
    """The way to the ranges."""

    def recipient_of(self, key: bytes) -> Recipient:
        """Return the range that contains a key, with the id 0 if it is not known."""

    async def ask(self, recipient: Recipient, request: Request) -> Any:
        """Ask a range, and return its answer."""


@dataclass(eq=False)
class DropTeller:
    """The service; see the module.

    Attributes:
        untold: returns the version that all ranges have to learn; 0: they need not learn anything.
        ranges: the way to the ranges.
        send: sends a request to the root, as upkeep.
        wake_up: the wake-up that a queue was dropped.
    """

    untold: Callable[[], int]
    ranges: Ranges
    send: Callable[[Any], Awaitable[Any]]
    wake_up: ServiceWakeUp

    async def run(self) -> None:
        """Have all ranges learn, for ever."""
        pause = AGAIN_SECONDS
        while True:
            version = self.untold()
            if not version:
                pause = AGAIN_SECONDS
            elif await self._all_know(version):
                with suppress(Retryable, CommitUnknown):
                    await self.send(NoteAllKnow(version))
                    continue
            await self.wake_up.wait(pause if version else math.inf)
            pause = min(2 * pause, LATER_SECONDS)

    async def _all_know(self, version: int) -> bool:
        """Have one range after the other learn; return whether all know a version."""
        key: bytes | None = b""
        while key is not None:
            recipient = self.ranges.recipient_of(key)
            end = recipient.end
            if recipient.range_id != ROOT_ID:
                try:
                    learned: Learned = await self.ranges.ask(recipient, LearnDefinitions())
                except Error:
                    return False
                if learned.version < version:
                    return False
                end = learned.end
            if end is not None and end <= key:
                return False  # this node has yet to hear of a split
            key = end
        return True
