"""Queues as applications use them from a database and in a transaction, in the synchronous form.

See :mod:`.of_database` and :mod:`.sending`.
"""

from __future__ import annotations

from postroom.client.blocking import blocking, owning
from postroom.client.queues import of_database, sending
from postroom.client.queues.sync_queue import Queue, own_messages
from postroom.client.sender import BlockingSender


class QueuesOfDatabase:
    """What a database offers about queues."""

    _blocking: BlockingSender
    _core: of_database.QueuesOfDatabase

    create_queue = owning(of_database.QueuesOfDatabase.create_queue, Queue)

    def queue(self, name: str) -> Queue:
        """The queue of that name. Nobody is asked: if there is none, the first call raises
        ``Invalid``.
        """
        return Queue(self._blocking, self._core.queue(name))

    queues = blocking(of_database.QueuesOfDatabase.queues)


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

    def keep_young(self) -> None:
        """See :meth:`.QueueSends.keep_young`."""
        self._core.keep_young()

    claim = owning(sending.QueueWrites.claim, own_messages)


__all__ = ["QueueWrites", "QueuesOfDatabase"]
