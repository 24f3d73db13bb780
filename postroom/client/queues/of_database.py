"""What a database offers about queues, in the asyncio form: making them, and finding them."""

from __future__ import annotations

from typing import Literal

from postroom.client.codec import Packing
from postroom.client.commits import commit_one
from postroom.client.queues import arguments as checks
from postroom.client.queues.messages import QueueInfo, info_of
from postroom.client.queues.queue import Queue
from postroom.client.sender import Sender
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.requests import (
    CreateQueue,
    QueueDefinition,
    QueueSettings,
)


class QueuesOfDatabase:
    """What a database offers about queues, in the asyncio form."""

    _sender: Sender
    codec: Packing

    @property
    def sender(self) -> Sender:
        """How the store is reached: for what is built on top, as workers are."""
        return self._sender

    async def create_queue(  # noqa: PLR0913 - each argument is a setting
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
            name: text, 256 bytes at most.
            ack_wait: seconds that a consumer may hold a message before it is fired again; doubled
                for each attempt, and varied by a tenth.
            min_backoff, max_backoff: bounds of the wait before a message is fired again, in
                seconds; if ``max_backoff`` is not given, an hour is the most.
            max_attempts: a message that failed so often is dead; ``None``: never.
            purge_after: seconds that an acknowledged message is kept; 0: it is deleted at once.
            archive: acknowledged messages are archived instead, and never purged.
            batch_size: how many messages one answer hands to a consumer at most.
            cache_size: how many messages are kept in memory.
            poller_interval: seconds after which the store looks for due messages though no timer
                rang.
            max_rate: messages a second; ``None``: any number.
            max_concurrency: how many may be held at a time, by all consumers; ``None``: any number.
            order: ``"group"``: in a group one message at a time, in order; ``"none"``: by time and
                priority.
            on_duplicate: what happens to a message whose kind and id are there already: it is left
                out (``"ignore"``), its transaction fails (``"error"``), or it takes the place of
                one that was not fired yet (``"replace"``).
            dead_letter_queue: where the dead go, instead of this queue's own dead letters.
            group_max_rate, group_max_concurrency: the same of each group.

        Returns:
            The queue.

        Raises:
            TypeError, Invalid: a setting is none that can be, or other than that of the queue that
                is there, and is named; nothing happened.
        """
        given = {each: value for each, value in locals().items() if each not in {"self", "name"}}
        queue = self.queue(name)
        request = CreateQueue(queue.name, QueueSettings(**checks.settings(given)))
        await commit_one(self._sender, request.key, request)
        return queue

    def queue(self, name: str) -> Queue:
        """The queue of that name. Nobody is asked: if there is none, the first call raises
        ``Invalid``.
        """
        return Queue(self._sender, self.codec, name)

    async def queues(self) -> list[QueueInfo]:
        """All queues, with their settings."""
        found: list[QueueDefinition] = await self._sender.send(ReadQueues())
        return [info_of(each) for each in found if not each.dropped]


__all__ = ["QueuesOfDatabase"]
