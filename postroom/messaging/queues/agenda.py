"""The plan of what is due in each queue, and the service that advances the queues.

::

    memory of a queue changes ─▶ plan ─▶ by timestamps       a 12:00 · c 12:05
                                         by the wall clock   d 12:01
                                         by monotonic time   b 4.1 s · a 30 s      ─ due ─▶ a step
                                         polls               a 29 s

A queue is planned by its name, so nothing of it need be in memory while it waits. A plan may be too
early: then the queue is looked at in vain, and planned anew. It is never too late. A queue stays
due until the step that does its work is applied, since a step may come to nothing. Queues that are
due take turns. Queues that have nothing to do cost nothing in a turn.

The service sends ``AdvanceQueues`` when something is due.

It sleeps until the next deadline that a manager has named: a lease runs out, a message is due, a
limit allows more. A claim that can be served wakes it earlier. It also looks every few seconds
whether something is due by the wall clock, because that clock may be set. While nothing is due it
sends nothing: a range at rest stays at rest.

A step that fails because of one queue does not stop the service: that queue is set aside for a
while (:mod:`.trouble`), and the others are advanced. A step that is too large for a command is made
in smaller parts. If even the smallest is too large, the queue that had most of it has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from postroom.errors import CommitUnknown, Retryable, TransactionTooLarge, Unavailable
from postroom.kv.clock import seconds_until
from postroom.messaging.queues.requests import AdvanceQueues
from postroom.messaging.requests import Moved
from postroom.messaging.services import CommitWakeUp
from postroom.ranges.waiting import Deadlines

LOOK_SECONDS: Final = 1.0
"""The time within which a change of the wall clock must be noticed."""


class Agenda:
    """The plan of the queues of a range.

    Args:
        monotonic: the seconds of a clock that never goes back.
        reading: about now, as a timestamp.
        by_wall: the same by the trusted wall clock. It may be set, so queues that wait for it are
            looked at every second.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        reading: Callable[[], int],
        by_wall: Callable[[], int],
    ) -> None:
        self._monotonic = monotonic
        self._reading = reading
        self._wall = by_wall
        self._by_timestamp: Deadlines[str] = Deadlines()
        self._by_wall: Deadlines[str] = Deadlines()
        self._by_time: Deadlines[str] = Deadlines()
        self._polls: Deadlines[str] = Deadlines()
        self._due: dict[str, None] = {}

    def clear(self) -> None:
        """Forget all queues."""
        for each in (self._by_timestamp, self._by_wall, self._by_time, self._polls):
            each.clear()
        self._due.clear()

    def begin(self, by_timestamp: Mapping[str, int], by_wall: Mapping[str, int]) -> None:
        """Plan queues by the stored state, when nothing is planned yet.

        Args:
            by_timestamp: the timestamp at which something is due, by name.
            by_wall: the same by the wall clock.
        """
        self._by_timestamp.begin(by_timestamp)
        self._by_wall.begin(by_wall)

    def plan(
        self,
        name: str,
        *,
        by_timestamp: int = 0,
        by_wall: int = 0,
        by_time: float | None = None,
        poll: float | None = None,
    ) -> None:
        """Plan a queue anew.

        Args:
            name: the name of the queue.
            by_timestamp: the timestamp at which something is due; 0: nothing is.
            by_wall: the same by the wall clock.
            by_time: the same on the monotonic clock; ``None``: nothing is.
            poll: when to poll it, on that clock; ``None``: never.
        """
        self._due.pop(name, None)
        _set(self._by_timestamp, name, by_timestamp or None)
        _set(self._by_wall, name, by_wall or None)
        _set(self._by_time, name, by_time)
        _set(self._polls, name, poll)

    def by(self, name: str, deadline: float) -> None:
        """Plan a queue for a deadline on the monotonic clock, if not for an earlier one."""
        known = self._by_time.of(name)
        if known is None or deadline < known:
            self._by_time.set(name, deadline)

    def forget(self, name: str) -> None:
        """Plan nothing for a queue."""
        self.plan(name)

    def due(self) -> Iterable[str]:
        """Return the queues in which something is due, the one whose turn it is first."""
        now, reading = self._monotonic(), self._reading()
        self._due |= dict.fromkeys(self._by_time.take_due(now))
        self._due |= dict.fromkeys(self._by_timestamp.take_due(reading))
        self._due |= dict.fromkeys(self._by_wall.take_due(self._wall()))
        return self._due

    def move_back(self, name: str) -> None:
        """Let the other queues that are due come before this one next time."""
        if name in self._due:
            del self._due[name]
            self._due[name] = None

    def has_poll(self, name: str) -> bool:
        """Return whether a poll of a queue is planned."""
        return self._polls.of(name) is not None

    def polls(self) -> Iterator[str]:
        """Return the queues to poll now; they are planned anew afterwards."""
        return iter(self._polls.take_due(self._monotonic()))

    def deadlines(self) -> Iterator[float]:
        """Return when the first queues will be due, or polled, on the monotonic clock."""
        now, reading = self._monotonic(), self._reading()
        if self._due:
            yield now
        timestamp, moment = self._by_timestamp.first(), self._by_wall.first()
        if timestamp is not None:
            yield now + seconds_until(int(timestamp), reading)
        if moment is not None:
            yield now + min(seconds_until(int(moment), self._wall()), LOOK_SECONDS)
        for first in (self._by_time.first(), self._polls.first()):
            if first is not None:
                yield first


def _set(deadlines: Deadlines[str], name: str, deadline: float | None) -> None:
    if deadline is None:
        deadlines.cancel(name)
    elif deadlines.of(name) != deadline:
        deadlines.set(name, deadline)


def earliest(*timestamps: int) -> int:
    """Return the first of some timestamps; 0 stands for none."""
    return min(filter(None, timestamps), default=0)


ADVANCED_AT_ONCE: Final = 512
"""The number of messages of each queue that a whole step asks for."""
ADVANCE: Final = AdvanceQueues(ADVANCED_AT_ONCE)
REST_SECONDS: Final = 0.002
"""The pause after a step that came to nothing."""

_log = logging.getLogger(__name__)


class AdvancedQueues(Protocol):
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
        wake_up: the wake-up that something is due earlier than was known.
        poll_seconds: how long a change of the wall clock may go unnoticed.
    """

    def __init__(
        self,
        agenda: AdvancedQueues,
        send: Callable[[Any], Awaitable[Any]],
        wake_up: CommitWakeUp,
        poll_seconds: float,
    ) -> None:
        self._agenda = agenda
        self._send = send
        self._wake_up = wake_up
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
            await self._wake_up.wait(pause)

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
