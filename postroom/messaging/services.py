"""The dispatcher, the executor and the advancer: services of the leaseholder.

The dispatcher and the executor empty its outboxes. Each is woken by every commit that adds to its
outbox, and otherwise sleeps until the next entry is due. The outbox is the truth. No service knows
the client or the node: each gets a function that sends requests, and a wake-up to wait for.

Entries that cannot be moved together are tried in smaller numbers, and in the end alone. An entry
that cannot be moved alone either is buried, with the reason. Otherwise it would be in the way of
all later ones.

Within one range a service has little to do: it asks the range to move what is due. Recipients in
other ranges will be grouped here, and moved by one transaction for each group.

The advancer sends ``AdvanceQueues`` when something is due in a queue. It sleeps until the next
deadline that a manager has named: a lease runs out, a message is due, a limit allows more. A claim
that can be served wakes it earlier. While nothing is due it sends nothing: a range at rest stays at
rest.

A step that fails because of one queue does not stop it: that queue is set aside for a while
(:mod:`.queues.timing`), and the others are advanced. A step that is too large for a command is made
in smaller parts. If even the smallest is too large, the queue that had most of it has failed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from postroom.errors import (
    CommitUnknown,
    Retryable,
    StoreCorrupted,
    TransactionTooLarge,
    Unavailable,
)
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.requests import BuryDue, DeliverDue, ExecuteDue, Moved
from postroom.ranges.ports import ServiceWakeUp

DELIVER_DUE: Final = DeliverDue(512)
EXECUTE_DUE: Final = ExecuteDue(4096)
ADVANCED_AT_ONCE: Final = 512
"""The number of messages of each queue that a whole step asks for."""
ADVANCE: Final = AdvanceQueues(ADVANCED_AT_ONCE)
REST_SECONDS: Final = 0.002
"""The pause after a step that came to nothing."""

_NOT_ITS_FAULT: Final = (Retryable, CommitUnknown, StoreCorrupted, OSError, MemoryError)
"""The errors that say nothing about the entry that was to be moved."""

_log = logging.getLogger(__name__)


async def _repeat(step: Callable[[], Awaitable[float]], wake_up: ServiceWakeUp) -> None:
    """Take steps for ever; each returns for how many seconds there is nothing to do."""
    while True:
        try:
            pause = await step()
        except Retryable as error:
            pause = error.retry_after if isinstance(error, Unavailable) else 0.0
        except CommitUnknown:
            pause = 0.0  # whatever came of it, the stored state is the truth
        await wake_up.wait(pause)


@dataclass(eq=False)
class Mover:
    """The dispatcher or the executor: it moves due entries whenever there may be some.

    Attributes:
        request: the request for the range.
        send: a function that sends it to the range, as upkeep.
        wake_up: the wake-up of commits that add to the outbox.
        seconds_until: a function that returns how long it takes until a timestamp has come.
        last_commit: the last commit of the range. While it stays the same, and nothing is
            scheduled, the range is not asked: a range at rest stays at rest.
        empty_since: the last commit at which nothing waited; -1: something does.
    """

    request: DeliverDue | ExecuteDue
    send: Callable[[Any], Awaitable[Any]]
    wake_up: ServiceWakeUp
    seconds_until: Callable[[int], float]
    last_commit: Callable[[], int]
    empty_since: int = field(default=-1, init=False)

    async def run(self) -> None:
        """Move due entries for ever."""
        await _repeat(self._step, self.wake_up)

    async def _step(self) -> float:
        if self.empty_since == self.last_commit():
            return math.inf
        next_due = await self.move_all()
        return self.seconds_until(next_due) if next_due else math.inf

    async def move_all(self) -> int:
        """Move everything that is due; return when the next entry will be (0: there is none)."""
        while True:
            before = self.last_commit()
            moved = await self._move()
            self.empty_since = -1 if moved.messages or moved.next_due else before
            if not moved.more:
                return moved.next_due

    async def _move(self) -> Moved:
        """Move as many entries as can be moved together; bury one that cannot be moved alone."""
        request = self.request
        while True:
            try:
                moved: Moved = await self.send(request)
            except _NOT_ITS_FAULT:
                raise
            except Exception as error:
                if request.messages_max > 1:
                    request = type(request)(request.messages_max // 2)
                    continue
                await self._bury(error)
                return Moved(1, more=True, next_due=0)
            else:
                return moved

    async def _bury(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        _log.error(
            "the entry that is due first cannot be moved, and is made a dead letter: %s", reason
        )
        await self.send(BuryDue(type(self.request) is ExecuteDue, reason))


class AdvancedQueues(Protocol):
    """The queues, as the service uses them."""

    def is_due(self) -> bool:
        """Return whether there is something to do now."""

    def seconds_left(self) -> float:
        """Return for how many seconds there is nothing to do, as far as is known."""

    def failed(self, error: Exception) -> tuple[str, bool] | None:
        """Note that the last step has failed, and not for a lack of leadership.

        Returns:
            The queue that failed, and whether it was sound before; ``None``: no queue in
            particular.
        """


@dataclass(eq=False)
class Advancer:
    """The service that advances the queues of a range.

    Attributes:
        agenda: the queues.
        send: a function that sends a request to the range, as upkeep.
        wake_up: the wake-up that something is due earlier than was known.
        rest_seconds: the pause after a step that came to nothing.
    """

    agenda: AdvancedQueues
    send: Callable[[Any], Awaitable[Any]]
    wake_up: ServiceWakeUp
    rest_seconds: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Advance queues for ever."""
        await _repeat(self._step, self.wake_up)

    async def _step(self) -> float:
        while self.agenda.is_due() and await self._advance():
            pass
        return max(self.agenda.seconds_left(), self.rest_seconds)

    async def _advance(self) -> bool:
        """Send a step.

        Return whether it did anything. If not, the next one is sent after a pause.
        """
        try:
            moved = await self._send_some()
        except (Retryable, CommitUnknown):
            raise
        except Exception as error:
            failed = self.agenda.failed(error)
            if failed is None:
                raise
            name, is_news = failed
            if is_news:
                _log.error("the queue %s fails, and is left alone for now", name, exc_info=error)
            return False
        has_moved = moved.messages > 0 or moved.more
        self.rest_seconds = 0.0 if has_moved else REST_SECONDS
        return has_moved

    async def _send_some(self) -> Moved:
        """Send a step, halved until it goes into one command."""
        messages_max = ADVANCE.messages_max
        while True:
            try:
                moved: Moved = await self.send(AdvanceQueues(messages_max))
            except TransactionTooLarge:
                if messages_max == 1:
                    raise
                messages_max //= 2
            else:
                return moved
