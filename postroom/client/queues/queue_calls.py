"""The queue calls of a database, in the asyncio form: making queues, and finding them."""

from __future__ import annotations

from typing import Literal

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.commits import commit_one
from postroom.client.queues.messages import QueueInfo, info_of
from postroom.client.queues.queue import Queue
from postroom.client.sender import Sender
from postroom.limits import ATTEMPTS_MAX_DEFAULT
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.requests import (
    CreateQueue,
    QueueDefinition,
    QueueSettings,
)


class QueueCalls:
    """The queue calls of a database, in the asyncio form."""

    _sender: Sender
    codec: Packing

    @property
    def sender(self) -> Sender:
        """Return the sender that reaches the store, for layers on top, such as workers."""
        return self._sender

    async def create_queue(  # noqa: PLR0913 - each argument is a setting
        self,
        name: str,
        *,
        ack_wait: float = 30.0,
        min_backoff: float | None = None,
        max_backoff: float | None = None,
        max_attempts: int | None = ATTEMPTS_MAX_DEFAULT,
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
        """Make a queue.

        If one of that name exists with the same settings, nothing happens; other settings are an
        error.

        Args:
            name: text, 256 bytes at most.
            ack_wait: seconds that a consumer may hold a message before it is fired again; doubled
                for each attempt, and varied by a tenth.
            min_backoff: the shortest wait before a message is fired again, in seconds.
            max_backoff: the longest one; ``None``: an hour.
            max_attempts: a message is dead after this many failed attempts (16 by default);
                ``None``: never.
            purge_after: seconds that an acknowledged message is kept; 0: it is deleted at once.
            archive: whether acknowledged messages are archived instead, and never purged.
            batch_size: how many messages one answer hands to a consumer at most.
            cache_size: how many messages are kept in memory.
            poller_interval: seconds after which the store looks for due messages even if no timer
                has rung.
            max_rate: messages a second; ``None``: any number.
            max_concurrency: how many all consumers together may hold at a time; ``None``: any
                number.
            order: ``"group"``: in a group one message at a time, in order; ``"none"``: by time and
                priority.
            on_duplicate: the effect of a message whose kind and id exist already: it is left out
                (``"ignore"``), its transaction fails (``"error"``), or it replaces one that was not
                fired yet (``"replace"``).
            dead_letter_queue: the queue that gets dead messages, instead of this queue's own dead
                letters.
            group_max_rate: messages a second of each group; ``None``: any number.
            group_max_concurrency: how many messages of each group may be held at a time; ``None``:
                any number.

        Returns:
            The queue.

        Raises:
            TypeError, Invalid: a setting is not valid, or differs from that of the existing queue.
                The error names it; nothing happened.
        """
        given = {each: value for each, value in locals().items() if each not in {"self", "name"}}
        queue = self.queue(name)
        request = CreateQueue(queue.name, QueueSettings(**arguments.settings(given)))
        await commit_one(self._sender, request.anchor(), request)
        return queue

    def queue(self, name: str) -> Queue:
        """Return the queue of that name.

        The store is not asked: if there is no such queue, the first call raises ``Invalid``.

        A plain call, also with asyncio: it is not awaited.

        Args:
            name: its name.
        """
        return Queue(self._sender, self.codec, name)

    async def queues(self) -> list[QueueInfo]:
        """Return all queues, with their settings."""
        found: list[QueueDefinition] = await self._sender.send(ReadQueues())
        return [info_of(each) for each in found if not each.dropped]


__all__ = ["QueueCalls"]
