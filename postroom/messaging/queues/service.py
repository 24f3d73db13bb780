"""The service that advances queues: it sends ``AdvanceQueues`` when something is due.

It sleeps until the next moment that a manager has named: a lease runs out, a message is due, a
limit allows more. A claim that can be served wakes it earlier. It also looks every few seconds
whether something is due by the wall clock, because that clock may be set. While nothing is due it
sends nothing: a range at rest stays at rest.

A step that fails because of one queue does not stop the service: that queue is set aside for a
while (:mod:`.trouble`), and the others are advanced. A step that is too large for a command is made
in smaller parts. If even the smallest is too large, the queue that had most of it has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from postroom.errors import CommitUnknown, Retryable, TransactionTooLarge, Unavailable
from postroom.messaging.queues.requests import AdvanceQueues
from postroom.messaging.requests import Moved
from postroom.messaging.services import Signal

ADVANCED_AT_ONCE: Final = 512
"""The number of messages of each queue that a whole step asks for."""
ADVANCE: Final = AdvanceQueues(ADVANCED_AT_ONCE)
REST_SECONDS: Final = 0.002
"""The pause after a step that came to nothing."""

_log = logging.getLogger(__name__)


class Agenda(Protocol):
    """The queues, as the service uses them."""

    def is_due(self) -> bool:
        """Return whether there is something to do now."""

    def seconds_left(self, seconds_max: float) -> float:
        """Return for how many seconds there is nothing to do, at most ``seconds_max``."""

    def failed(self, error: Exception) -> tuple[str, bool] | None:
        """Note that the last step has failed, and not for a lack of leadership.

        Returns:
            The queue that failed, and whether it was sound before; ``None``: no queue in
            particular.
        """


class Advancer:
    """The service that advances the queues of a range.

    Args:
        agenda: the queues.
        send: a function that sends a request to the range, as upkeep.
        signal: the signal that something is due earlier than was known.
        poll_seconds: how long a change of the wall clock may go unnoticed.
    """

    def __init__(
        self,
        agenda: Agenda,
        send: Callable[[Any], Awaitable[Any]],
        signal: Signal,
        poll_seconds: float,
    ) -> None:
        self._agenda = agenda
        self._send = send
        self._signal = signal
        self._poll_seconds = poll_seconds
        self._rest_seconds = 0.0

    async def run(self) -> None:
        """Advance queues for ever."""
        while True:
            pause = 0.0
            try:
                while self._agenda.is_due() and await self._advance():
                    pass
            except Retryable as error:
                pause = error.retry_after if isinstance(error, Unavailable) else 0.0
            except CommitUnknown:
                pause = 0.0
            else:
                pause = max(self._agenda.seconds_left(self._poll_seconds), self._rest_seconds)
            await self._signal.wait(pause)

    async def _advance(self) -> bool:
        """Send a step.

        Return whether it did anything. If not, the next one is sent after a pause.
        """
        try:
            moved = await self._send_some()
        except (Retryable, CommitUnknown):
            raise
        except Exception as error:
            failed = self._agenda.failed(error)
            if failed is None:
                raise
            name, is_news = failed
            if is_news:
                _log.error("the queue %s fails, and is left alone for now", name, exc_info=error)
            return False
        has_moved = moved.messages > 0 or moved.more
        self._rest_seconds = 0.0 if has_moved else REST_SECONDS
        return has_moved

    async def _send_some(self) -> Moved:
        """Send a step, halved until it goes into one command."""
        messages_max = ADVANCE.messages_max
        while True:
            try:
                moved: Moved = await self._send(AdvanceQueues(messages_max))
            except TransactionTooLarge:
                if messages_max == 1:
                    raise
                messages_max //= 2
            else:
                return moved
