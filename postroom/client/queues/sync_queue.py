"""The synchronous form of queues: see :mod:`postroom.client.sync` for what all its calls may
raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from postroom.client.arguments import Due
from postroom.client.queues import queue as asynchronous
from postroom.client.queues.arguments import Id, Messages
from postroom.client.queues.messages import AnyMessage, QueueInfo, QueueSchedule
from postroom.client.queues.messages import QueueMessage as AsynchronousMessage
from postroom.client.queues.queue import CREDIT_DEFAULT, State, When
from postroom.client.sender import BlockingSender
from postroom.client.sync_iteration import iterate
from postroom.kv.clock import Timestamp
from postroom.messaging.queues.queries import QueueStats


class QueueMessage(AnyMessage):
    """A message of a queue.

    Attributes:
        queue: the name of the queue.
    """

    __slots__ = ("_core", "_sender")

    def __init__(self, sender: BlockingSender, core: AsynchronousMessage) -> None:
        super().__init__(core.queue, core.stored, core.codec)
        self._sender = sender
        self._core = core

    def acknowledge(self) -> None:
        """It is done, in a transaction of its own; ``tx.acknowledge`` does so together with other
        changes.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        self._sender.run(self._core.acknowledge())

    def reject(self, delay: Any = None, *, dead: bool = False, reason: str | None = None) -> None:
        """It is given back, and fired again: after the queue's back-off, or after ``delay`` seconds
        (0: at once), or never (``dead``).

        Args:
            delay: seconds; ``None``: the queue's back-off.
            dead: it becomes a dead letter.
            reason: why; kept with it.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        self._sender.run(self._core.reject(delay, dead=dead, reason=reason))

    def extend(self, seconds: float) -> Timestamp:
        """It is held for ``seconds`` from now on; returns until when.

        Raises:
            LeaseLost: the attempt has passed; nothing was changed.
        """
        return self._sender.run(self._core.extend(seconds))

    @property
    def leased_until(self) -> Timestamp | None:
        """Until when it is held; ``None``: nobody holds it."""
        return self._core.leased_until

    def leased_for(self, until: int) -> None:
        """Its lease was extended."""
        self._core.leased_for(until)

    def settled(self) -> None:
        """It was acknowledged or given back."""
        self._core.settled()


class Queue:
    """A queue: its settings, its messages, and who consumes them. Made by ``db.queue(name)``, which
    asks nobody: if there is no such queue, the first call raises ``Invalid``.
    """

    __slots__ = ("_core", "_run", "_sender")

    def __init__(self, sender: BlockingSender, core: asynchronous.Queue) -> None:
        self._sender = sender
        self._run = sender.run
        self._core = core

    @property
    def name(self) -> str:
        """Of the queue."""
        return self._core.name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # --- the queue itself

    def info(self) -> QueueInfo:
        """Its settings, and whether it is paused."""
        return self._run(self._core.info())

    def update(self, **settings: Any) -> None:
        """Changes settings, at once and for all its consumers.

        Args:
            settings: those of ``create_queue``, by name. What is not named stays.

        Raises:
            TypeError, Invalid: one of them is none that can be, and is named; nothing was changed.
        """
        self._run(self._core.update(**settings))

    def pause(self) -> None:
        """Nothing is fired until :meth:`resume`. What is held can be settled."""
        self._run(self._core.pause())

    def resume(self) -> None:
        """Messages are fired again."""
        self._run(self._core.resume())

    def drop(self) -> None:
        """The queue is gone, with all its messages; who consumes it gets ``Invalid``, which says
        so.
        """
        self._run(self._core.drop())

    def stats(self) -> QueueStats:
        """What it has done, and holds."""
        return self._run(self._core.stats())

    # --- consuming

    def receive(
        self,
        *,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
        credit: int = CREDIT_DEFAULT,
    ) -> Iterator[QueueMessage]:
        """The messages as they become ready, for ever: ``for message in q.receive()``.

        Each goes to one consumer, the least busy. Leaving the loop gives back what was claimed
        ahead of it, uncounted; what was handed out stays held until its lease passes. A leader that
        changes, or nodes that cannot be reached for a while, do not end the loop.

        Args:
            start, end: only messages with ``start <= key < end``.
            kinds: only of these kinds; ``None``: of every kind.
            where: only with these headers.
            credit: how many messages it may hold that were not settled, nor lost.

        Raises:
            Invalid: there is no such queue, or it was dropped, or the database was closed.
            AccessDenied: not allowed.
        """
        found = self._core.receive(start=start, end=end, kinds=kinds, where=where, credit=credit)
        return (QueueMessage(self._sender, each) for each in iterate(self._sender, found))

    def claim(
        self,
        max_results: int = 1,
        *,
        wait: float | None = None,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[QueueMessage]:
        """Takes messages that are ready; they are held for ``ack_wait`` seconds.

        Args:
            max_results: how many at most.
            wait: seconds to wait for the first one.
            start, end, kinds, where: as for :meth:`receive`.
        """
        return self._own(self._run(self._core.claim(
            max_results, wait=wait, start=start, end=end, kinds=kinds, where=where
        )))  # fmt: skip

    # --- settling, each call a transaction (1000 messages at a time)

    def acknowledge(self, messages: Messages, *, kind: str | None = None) -> int:
        """Messages are done; returns how many of them still had to be.

        Args:
            messages: one or several messages, or ids.
            kind: of the ids; ``None``: whichever.

        Raises:
            LeaseLost: an attempt that a message names has passed. Nothing was changed.
        """
        return self._run(self._core.acknowledge(messages, kind=kind))

    def reject(
        self,
        messages: Messages,
        delay: Any = None,
        *,
        dead: bool = False,
        reason: str | None = None,
        kind: str | None = None,
    ) -> int:
        """Messages are given back, and fired again; arguments as for ``tx.reject``.

        Raises:
            LeaseLost: as :meth:`acknowledge`.
        """
        return self._run(self._core.reject(messages, delay, dead=dead, reason=reason, kind=kind))

    def extend(self, message: AnyMessage, seconds: float) -> Timestamp:
        """A message is held for ``seconds`` from now on; returns until when.

        Raises:
            LeaseLost: its attempt has passed. Nothing was changed.
        """
        return self._run(self._core.extend(message, seconds))

    def reschedule(
        self,
        ids: Messages,
        deliver_at: Due | None = None,
        epoch: int | None = None,
        *,
        kind: str | None = None,
    ) -> int:
        """Messages that nobody holds are fired at another time; returns how many were found.

        Arguments as for ``tx.reschedule``.
        """
        return self._run(self._core.reschedule(ids, deliver_at, epoch, kind=kind))

    def cancel(self, ids: Messages, *, kind: str | None = None) -> int:
        """Messages that are not done are deleted, whoever holds them; returns how many were
        found.
        """
        return self._run(self._core.cancel(ids, kind=kind))

    def replay(self, ids: Messages, *, kind: str | None = None) -> int:
        """Dead messages are fired again, as if for the first time; returns how many were found.

        Args:
            ids: or messages, as :meth:`dead_letters` tells them.
            kind: of the ids; ``None``: whichever.
        """
        return self._run(self._core.replay(ids, kind=kind))

    # --- looking

    def get(self, id: Id, kind: str | None = None) -> QueueMessage | None:  # noqa: A002
        """The message with an id, whatever its state; ``None`` if there is none.

        Args:
            id: text or bytes.
            kind: of the message; ``None``: whichever (if there are several, the first of them).
        """
        found = self._run(self._core.get(id, kind))
        return None if found is None else QueueMessage(self._sender, found)

    def messages(
        self, state: State | None = None, limit: int = 100, *, at: int | None = None
    ) -> list[QueueMessage]:
        """Messages, without claiming any.

        Args:
            state: only those; ``None``: all that live (scheduled, ready or leased).
            limit: how many at most.
            at: as of this timestamp instead of now.
        """
        return self._own(self._run(self._core.messages(state, limit, at=at)))

    def dead_letters(self, *, limit: int = 100) -> list[QueueMessage]:
        """Messages that are given up, the first to die first; ``last_error`` says why."""
        return self._own(self._run(self._core.dead_letters(limit=limit)))

    def archive(
        self,
        start: When = None,
        end: When = None,
        *,
        limit: int | None = None,
        at: int | None = None,
    ) -> Iterator[QueueMessage]:
        """The archived messages that were acknowledged in ``[start, end)``, in that order.

        Args:
            start, end: a ``Timestamp`` or an aware ``datetime`` each; ``None``: no bound.
            limit: how many at most.
            at: as of this timestamp instead of now.
        """
        return self.scan("archived", start, end, limit=limit, at=at)

    def trim_archive(
        self, until: When, *, created_at: int | None = None, limit: int | None = None
    ) -> int:
        """Deletes archived messages that were acknowledged up to a timestamp, the first to be
        acknowledged first; returns how many.

        For who has them elsewhere, as the job ``archive`` does. Those that may be read at a past
        timestamp (``gc_ttl``, and what somebody protects) stay for now. Their ids can be used
        again. It may be repeated.

        Args:
            until: a ``Timestamp`` or an aware ``datetime``.
            created_at: of the queue that is meant (``info().created_at``), lest it has been dropped
                and made anew; ``None``: the one that is there.
            limit: about how many at most; ``None``: all of them.

        Raises:
            Invalid: there is no such queue.
        """
        return self._run(self._core.trim_archive(until, created_at=created_at, limit=limit))

    def scan(
        self,
        state: State | None = None,
        start: When = None,
        end: When = None,
        *,
        limit: int | None = None,
        at: int | None = None,
    ) -> Iterator[QueueMessage]:
        """Messages of a state, in the order of their time, page by page.

        Args:
            state: only those; ``None``: all that live.
            start, end: of the time at which they are due, or were acknowledged, or died.
            limit: how many at most.
            at: as of this timestamp instead of now.
        """
        found = self._core.scan(state, start, end, limit=limit, at=at)
        return (QueueMessage(self._sender, each) for each in iterate(self._sender, found))

    def _own(self, messages: list[AsynchronousMessage]) -> list[QueueMessage]:
        return [QueueMessage(self._sender, each) for each in messages]

    # --- periodic

    def schedule(  # noqa: PLR0913 - each argument is an option
        self,
        name: str,
        *,
        cron: str,
        payload: Any,
        timezone: str = "UTC",
        kind: str = "",
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        group: str | None = None,
    ) -> None:
        """Enqueues a message at each tick of ``cron``, once per tick whatever fails.

        Its id is ``name@`` and the tick's time. Of the ticks that passed while no node ran only the
        latest one is enqueued. A schedule of the same name is replaced.

        Args:
            name: of the schedule.
            cron: five fields (minute, hour, day, month, weekday), as ``"0 3 * * *"``.
            payload, kind, headers, priority, group: of the messages.
            timezone: in which the fields are meant, as ``"Europe/Berlin"``.
        """
        self._run(self._core.schedule(
            name, cron=cron, payload=payload, timezone=timezone, kind=kind, headers=headers,
            priority=priority, group=group,
        ))  # fmt: skip

    def schedules(self) -> list[QueueSchedule]:
        """Its periodic schedules."""
        return self._run(self._core.schedules())

    def unschedule(self, name: str) -> None:
        """Ends a schedule; what it has enqueued stays."""
        self._run(self._core.unschedule(name))


__all__ = ["Queue", "QueueMessage"]
