"""Queues as applications use them from a database and in a transaction, in the synchronous form.

What a call means is told at its asyncio twin (:mod:`.of_database`, :mod:`.sending`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from postroom.client.queues import of_database, sending
from postroom.client.queues.messages import QueueInfo
from postroom.client.queues.sync_queue import Queue, QueueMessage
from postroom.client.sender import BlockingSender


class QueuesOfDatabase:
    """What a database offers about queues."""

    def __init__(self, sender: BlockingSender, core: of_database.QueuesOfDatabase) -> None:
        self._blocking = sender
        self._with_queues = core

    def create_queue(  # noqa: PLR0913 - each argument is a setting
        self,
        name: str,
        *,
        ack_wait: float = 30.0,
        min_backoff: float | None = None,
        max_backoff: float | None = None,
        max_attempts: int | None = None,
        purge_after: float = 86400.0,
        archive: bool = False,
        batch_size: int = 10,
        cache_size: int = 10_000,
        poller_interval: float = 30.0,
        max_rate: float | None = None,
        max_concurrency: int | None = None,
        order: Literal["none", "group"] = "none",
        on_duplicate: Literal["ignore", "error", "replace"] = "ignore",
        dead_letter_queue: str | None = None,
        group_max_rate: float | None = None,
        group_max_concurrency: int | None = None,
    ) -> Queue:
        """Makes a queue. One of that name with the same settings is fine; with others it is an
        error.

        Args:
            name: 256 bytes at most.
            ack_wait: seconds that a consumer may hold a message before it is fired again; doubled
                for each attempt, and varied by a tenth.
            min_backoff, max_backoff: bounds of the wait before a message is fired again.
            max_attempts: a message that failed so often is dead; ``None``: never.
            purge_after: seconds that an acknowledged message is kept; 0: it is deleted at once.
            archive: acknowledged messages are archived instead, and never purged.
            batch_size: how many messages one answer hands to a consumer at most.
            cache_size: how many messages are kept in memory.
            poller_interval: seconds after which the store looks for due messages though no timer
                rang.
            max_rate: messages a second; ``None``: any number.
            max_concurrency: how many may be held at a time, by all consumers.
            order: ``"group"``: in a group one message at a time, in order.
            on_duplicate: what happens to a message whose kind and id are there already.
            dead_letter_queue: where the dead go, instead of this queue's own dead letters.
            group_max_rate, group_max_concurrency: the same of each group.

        Returns:
            The queue.

        Raises:
            TypeError, Invalid: a setting is none that can be, and is named; nothing happened.
        """
        settings = {each: value for each, value in locals().items() if each not in {"self", "name"}}
        made = self._blocking.run(self._with_queues.create_queue(name, **settings))
        return Queue(self._blocking, made)

    def queue(self, name: str) -> Queue:
        """The queue of that name. Nobody is asked: if there is none, the first call says so."""
        return Queue(self._blocking, self._with_queues.queue(name))

    def queues(self) -> list[QueueInfo]:
        """All queues, with their settings."""
        return self._blocking.run(self._with_queues.queues())


class QueueWrites(sending.QueueSends):
    """What a transaction offers about queues.

    Attributes:
        _blocking, _core: of the transaction.
    """

    __slots__ = ()
    _blocking: BlockingSender
    _core: sending.QueueWrites

    @property
    def queues(self) -> sending.Sends:
        """What was gathered: for what is built on top."""
        return self._core.queues

    def claim(  # noqa: PLR0913 - each argument is an option
        self,
        queue: str,
        max_results: int = 1,
        *,
        wait: float | None = None,
        start: bytes = b"",
        end: bytes | None = None,
        kinds: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[QueueMessage]:
        """Takes messages that are ready, for this transaction.

        They are acknowledged when it commits, but for those that were rejected, cancelled or
        acknowledged in it. If it does not commit, the attempt has failed: they are fired again
        after the queue's back-off.

        Args:
            queue: its name.
            max_results: how many at most.
            wait: seconds to wait for the first one, as many as you like; as with ``reap_queue``
                they do not count towards the time of a transaction that has read nothing.
            start, end: only messages with ``start <= key < end``.
            kinds: only of these; ``None``: of every kind.
            where: only with these headers.
        """
        found = self._blocking.run(self._core.claim(
            queue, max_results, wait=wait, start=start, end=end, kinds=kinds, where=where
        ))  # fmt: skip
        return [QueueMessage(self._blocking, each) for each in found]


__all__ = ["QueueWrites", "QueuesOfDatabase"]
