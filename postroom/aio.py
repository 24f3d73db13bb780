"""The asyncio forms: the same names, awaited where they may have to wait."""

from postroom.client.pages import Snapshot
from postroom.client.queues.handles import EnqueueHandle
from postroom.client.queues.messages import QueueMessage
from postroom.client.queues.queue import Queue
from postroom.client.remote.tls_files import TLS
from postroom.client.transaction import Transaction
from postroom.client.transactional import transactional
from postroom.client.worker.worker import Worker
from postroom.databases.asynchronous import Database, connect
from postroom.databases.opening import open_async as open  # noqa: A004 - a public name
from postroom.layers.search.index import SearchIndex

__all__ = [
    "TLS",
    "Database",
    "EnqueueHandle",
    "Queue",
    "QueueMessage",
    "SearchIndex",
    "Snapshot",
    "Transaction",
    "Worker",
    "connect",
    "open",
    "transactional",
]
