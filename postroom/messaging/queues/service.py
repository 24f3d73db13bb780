"""The service that advances queues: it asks for ``AdvanceQueues`` when something is due.

It sleeps until the next moment that a manager has named (a lease runs out, a message is due, a
limit allows more) or until somebody wakes it: a claim for which there is something. What is due by
the wall clock is looked at every few seconds besides, because that clock may be set. While nothing
is due it asks for nothing: a range at rest stays at rest.

A step that fails because of one queue does not stop the service: that queue is left alone for a
while (:mod:`.trouble`), and the others are advanced. A step that comes to more than a command holds
is made in smaller parts; if even the smallest is too large, that is a failure of the queue which
had most of it.
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
"""A step that is asked for so many messages of each queue is a whole one."""
ADVANCE: Final = AdvanceQueues(ADVANCED_AT_ONCE)
REST_SECONDS: Final = 0.002
"""After a step that came to nothing."""

_log = logging.getLogger(__name__)


class Agenda(Protocol):
    """What the service asks of the queues."""

    def is_due(self) -> bool:
        """Whether there is something to do now."""

    def seconds_left(self, seconds_max: float) -> float:
        """How long there is nothing to do, but ``seconds_max`` at most."""

    def failed(self, error: Exception) -> tuple[str, bool] | None:
        """The last step has failed, and not for a lack of leadership; of which queue, and whether
        that was sound before.
        """


class Advancer:
    """See the module.

    Args:
        agenda: what is due.
        send: sends a request to the range, as upkeep.
        signal: set by whoever has something to do earlier than was known.
        poll_seconds: how long it may go unnoticed that the wall clock was set.
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
        """For ever."""
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
        """A step; whether it came to anything. If not, the next one is not made at once."""
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
        """As much as goes into one command."""
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
