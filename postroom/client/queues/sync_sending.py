"""The queue calls of a database and of a transaction, in the synchronous form.

See :mod:`.of_database` and :mod:`.sending`.
"""

from __future__ import annotations

from postroom.client.blocking import blocking, owning
from postroom.client.queues import of_database, sending
from postroom.client.queues.sync_queue import Queue, own_messages
from postroom.client.sender import BlockingSender


class QueuesOfDatabase:
    """The queue calls of a database."""

    _blocking: BlockingSender
    _core: of_database.QueuesOfDatabase

    create_queue = owning(of_database.QueuesOfDatabase.create_queue, Queue)

    def queue(self, name: str) -> Queue:
        """Return the queue of that name.

        The store is not asked: if there is no such queue, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return Queue(self._blocking, self._core.queue(name))

    queues = blocking(of_database.QueuesOfDatabase.queues)


class QueueWrites(sending.QueueSends):
    """The queue calls of a transaction.

    Attributes:
        _blocking, _core: the sender and the asyncio form of the transaction.
    """

    __slots__ = ()
    _blocking: BlockingSender
    _core: sending.QueueWrites

    @property
    def queues(self) -> sending.Sends:
        """Return what was gathered, for layers on top."""
        return self._core.queues

    def keep_young(self) -> None:
        """Restart the transaction's time if nothing in it could become too old.

        For layers on top.
        """
        self._core.keep_young()

    claim = owning(sending.QueueWrites.claim, own_messages)


__all__ = ["QueueWrites", "QueuesOfDatabase"]
