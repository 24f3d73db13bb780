"""Postroom: a key-value store in which every key has an inbox and every transaction an outbox.

This module hands on the public names and nothing else; the asyncio forms are in
:mod:`postroom.aio`.

A name is imported when it is used for the first time. All of them together bring the client and the
server, 0.4 s of a processor. A program that connects needs no server, and a process of Spark's not
even all of the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from postroom import errors
from postroom.collector import without_collections
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
    OutboxFull,
    Overflow,
    Retryable,
    SnapshotTooOld,
    StoreCorrupted,
    StoreLocked,
    TaskFailed,
    TransactionClosed,
    TransactionConflict,
    TransactionExpired,
    TransactionTooLarge,
    Unavailable,
    ValueTooLarge,
    VersionMismatch,
    WrongType,
)
from postroom.version import VERSION

if TYPE_CHECKING:
    from postroom.client.bulk import Partition
    from postroom.client.codec import Codec
    from postroom.client.history import MessageTrace, TraceEvent
    from postroom.client.queues.messages import QueueInfo, QueueSchedule
    from postroom.client.queues.results import TaskResult
    from postroom.client.queues.sending import Enqueue
    from postroom.client.queues.sync_queue import EnqueueHandle, Queue, QueueMessage
    from postroom.client.remote.tls_files import TLS
    from postroom.client.sync import Transaction
    from postroom.client.sync_parts import Snapshot
    from postroom.client.transactional import transactional
    from postroom.client.values import (
        Change,
        DeadLetter,
        InboxInfo,
        Message,
        NodeInfo,
        PositionInfo,
        Reaped,
        Scheduled,
        ServiceInfo,
        Status,
        StorageInfo,
        integer,
    )
    from postroom.client.worker.failures import Discard, Reject
    from postroom.client.worker.sync_worker import Worker
    from postroom.databases.opening import open  # noqa: A004 - a public name, as of files
    from postroom.databases.synchronous import Database, connect
    from postroom.kv.clock import Timestamp
    from postroom.kv.tuples import key, prefix, unpack
    from postroom.layers.search.matching import Hit as SearchHit
    from postroom.layers.search.sync_index import SearchIndex
    from postroom.messaging.queues.definition_requests import QueueSettings
    from postroom.messaging.queues.queries import QueueStats
    from postroom.ranges.listing import RangeInfo
    from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put

__version__ = VERSION

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
    "MessageTrace",
    "NodeInfo",
    "NotInTransaction",
    "OutboxFull",
    "Overflow",
    "Partition",
    "PositionInfo",
    "Put",
    "Queue",
    "QueueInfo",
    "QueueMessage",
    "QueueSchedule",
    "QueueSettings",
    "QueueStats",
    "RangeInfo",
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
    "StorageInfo",
    "StoreCorrupted",
    "StoreLocked",
    "TaskFailed",
    "TaskResult",
    "Timestamp",
    "TraceEvent",
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

_NAMES: Final = {
    "client.bulk": "Partition",
    "client.codec": "Codec",
    "client.history": "MessageTrace TraceEvent",
    "client.queues.messages": "QueueInfo QueueSchedule",
    "client.queues.results": "TaskResult",
    "client.queues.sending": "Enqueue",
    "client.queues.sync_queue": "EnqueueHandle Queue QueueMessage",
    "client.remote.tls_files": "TLS",
    "client.sync": "Transaction",
    "client.sync_parts": "Snapshot",
    "client.transactional": "transactional",
    "client.values": (
        "Change DeadLetter InboxInfo Message NodeInfo Reaped PositionInfo Scheduled "
        "ServiceInfo Status StorageInfo integer"
    ),
    "client.worker.failures": "Discard Reject",
    "client.worker.sync_worker": "Worker",
    "databases.opening": "open",
    "databases.synchronous": "connect Database",
    "kv.clock": "Timestamp",
    "kv.tuples": "key prefix unpack",
    "layers.search.matching": "SearchHit",
    "layers.search.sync_index": "SearchIndex",
    "messaging.queues.definition_requests": "QueueSettings",
    "messaging.queues.queries": "QueueStats",
    "ranges.listing": "RangeInfo",
    "ranges.requests": "Accounting Delete DeleteRange Increment Put",
}
"""The public names of each module, in agreement with those of ``TYPE_CHECKING``."""
_HOMES: Final = {
    name: f"postroom.{home}" for home, names in _NAMES.items() for name in names.split()
}
_OTHER_NAMES: Final = {"SearchHit": "Hit"}

if not TYPE_CHECKING:  # or any name would do for a type checker

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with without_collections():  # they take a quarter of the time
            found = getattr(import_module(home), _OTHER_NAMES.get(name, name))
        globals()[name] = found  # the next time nobody asks here
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
