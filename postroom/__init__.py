"""Postroom: a key-value store in which every key has an inbox and every transaction an outbox.

This module hands on the public names and nothing else; the asyncio forms are in
:mod:`postroom.aio`.
"""

from postroom import errors
from postroom.client.bulk import Partition
from postroom.client.codec import Codec
from postroom.client.queues.messages import EnqueueHandle, QueueInfo, QueueSchedule
from postroom.client.queues.sending import Enqueue
from postroom.client.queues.sync_queue import Queue, QueueMessage
from postroom.client.remote.connect import TLS, connect
from postroom.client.search.matching import Hit as SearchHit
from postroom.client.search.sync_index import SearchIndex
from postroom.client.sync import Database, Snapshot, Transaction
from postroom.client.transactional import transactional
from postroom.client.values import (
    Change,
    DeadLetter,
    InboxInfo,
    Message,
    NodeInfo,
    Reaped,
    Scheduled,
    ServiceInfo,
    Status,
    integer,
)
from postroom.client.worker.outcomes import Discard, Reject
from postroom.client.worker.sync_worker import Worker
from postroom.errors import (
    AccessDenied,
    CommitUnknown,
    ConditionFailed,
    DatabaseClosed,
    Error,
    Invalid,
    KeyTooLarge,
    LeaseLost,
    NotInTransaction,
    Overflow,
    Retryable,
    SnapshotTooOld,
    StoreCorrupted,
    StoreLocked,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
    TransactionTooLarge,
    Unavailable,
    ValueTooLarge,
    VersionMismatch,
    WrongType,
)
from postroom.kv.clock import Timestamp
from postroom.kv.tuples import key, prefix, unpack
from postroom.messaging.queues.queries import QueueStats
from postroom.messaging.queues.requests import QueueSettings
from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put
from postroom.server.embedded import open  # noqa: A004 - a public name, as of files

__version__ = "0.1.0"

__all__ = [
    "TLS",
    "AccessDenied",
    "Accounting",
    "Change",
    "Codec",
    "CommitUnknown",
    "ConditionFailed",
    "Database",
    "DatabaseClosed",
    "DeadLetter",
    "Delete",
    "DeleteRange",
    "Discard",
    "Enqueue",
    "EnqueueHandle",
    "Error",
    "InboxInfo",
    "Increment",
    "Invalid",
    "KeyTooLarge",
    "LeaseLost",
    "Message",
    "NodeInfo",
    "NotInTransaction",
    "Overflow",
    "Partition",
    "Put",
    "Queue",
    "QueueInfo",
    "QueueMessage",
    "QueueSchedule",
    "QueueSettings",
    "QueueStats",
    "Reaped",
    "Reject",
    "Retryable",
    "Scheduled",
    "SearchHit",
    "SearchIndex",
    "ServiceInfo",
    "Snapshot",
    "SnapshotTooOld",
    "Status",
    "StoreCorrupted",
    "StoreLocked",
    "Timestamp",
    "Transaction",
    "TransactionClosed",
    "TransactionConflict",
    "TransactionExpired",
    "TransactionTooLarge",
    "Unavailable",
    "ValueTooLarge",
    "VersionMismatch",
    "Worker",
    "WrongType",
    "connect",
    "errors",
    "integer",
    "key",
    "open",
    "prefix",
    "transactional",
    "unpack",
]
