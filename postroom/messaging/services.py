"""The dispatcher and the executor: services of the leaseholder that empty its outboxes.

Each is woken by every commit that adds to its outbox and also polls. Wake-ups may be lost; the
outbox is the truth. Neither knows the client nor the node: each gets a function that sends
requests, and a wake-up to wait for.

Entries that cannot be moved together are tried in smaller numbers, and in the end alone. An entry
that cannot be moved alone either is buried, with the reason. Otherwise it would be in the way of
all later ones.

Within one range a service has little to do: it asks the range to move what is due. Recipients in
other ranges will be grouped here, and moved by one transaction for each group.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from postroom.errors import CommitUnknown, Retryable, StoreCorrupted, Unavailable
from postroom.kv.clock import seconds_until
from postroom.messaging.requests import BuryDue, DeliverDue, ExecuteDue, Moved

DELIVER_DUE: Final = DeliverDue(512)
EXECUTE_DUE: Final = ExecuteDue(4096)
POLL_SECONDS: Final = 5.0

_NOT_ITS_FAULT: Final = (Retryable, CommitUnknown, StoreCorrupted, OSError, MemoryError)
"""The errors that say nothing about the entry that was to be moved."""

_log = logging.getLogger(__name__)


class CommitWakeUp(Protocol):
    """A wake-up that commits set and a service waits for."""

    def set(self, *, urgent: bool = False) -> None:
        """Set the wake-up: there may be something to do, and perhaps a client waits for it."""

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until it is set, or for a time, and reset it."""


class Mover:
    """The dispatcher or the executor: it moves due entries whenever there may be some.

    Args:
        request: the request for the range.
        send: a function that sends it to the range, as upkeep.
        wake_up: the wake-up of commits that add to the outbox.
        now: the node's clock.
        last_commit: the last commit of the range. While it stays the same, and nothing is
            scheduled, there is no poll, since it can find nothing: a range at rest stays at rest.
        poll_seconds: how long a lost wake-up may go unnoticed.
    """

    def __init__(
        self,
        request: DeliverDue | ExecuteDue,
        send: Callable[[Any], Awaitable[Any]],
        wake_up: CommitWakeUp,
        now: Callable[[], int],
        last_commit: Callable[[], int],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._request = request
        self._send = send
        self._wake_up = wake_up
        self._now = now
        self._last_commit = last_commit
        self._poll_seconds = poll_seconds
        self._empty_since = -1

    async def run(self) -> None:
        """Move due entries for ever."""
        while True:
            try:
                pause = self._poll_seconds
                if self._empty_since != self._last_commit():
                    pause = self._pause(await self.move_all())
            except Retryable as error:
                pause = error.retry_after if isinstance(error, Unavailable) else 0.0
            except CommitUnknown:
                pause = 0.0  # whatever came of it, the outbox is the truth
            await self._wake_up.wait(pause)

    async def move_all(self) -> int:
        """Move everything that is due; return when the next entry will be (0: there is none)."""
        while True:
            before = self._last_commit()
            moved = await self._move()
            self._empty_since = -1 if moved.messages or moved.next_due else before
            if not moved.more:
                return moved.next_due

    async def _move(self) -> Moved:
        """Move as many entries as can be moved together; bury one that cannot be moved alone."""
        request = self._request
        while True:
            try:
                moved: Moved = await self._send(request)
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
        _log.error("what is due first cannot be moved, and is made a dead letter: %s", reason)
        await self._send(BuryDue(type(self._request) is ExecuteDue, reason))

    def _pause(self, next_due: int) -> float:
        if not next_due:
            return self._poll_seconds
        return min(seconds_until(next_due, self._now()), self._poll_seconds)


def dispatcher(
    send: Callable[[Any], Awaitable[Any]],
    wake_up: CommitWakeUp,
    now: Callable[[], int],
    last_commit: Callable[[], int],
    poll_seconds: float = POLL_SECONDS,
) -> Mover:
    """Return the service that delivers."""
    return Mover(DELIVER_DUE, send, wake_up, now, last_commit, poll_seconds)


def executor(
    send: Callable[[Any], Awaitable[Any]],
    wake_up: CommitWakeUp,
    now: Callable[[], int],
    last_commit: Callable[[], int],
    poll_seconds: float = POLL_SECONDS,
) -> Mover:
    """Return the service that executes."""
    return Mover(EXECUTE_DUE, send, wake_up, now, last_commit, poll_seconds)
