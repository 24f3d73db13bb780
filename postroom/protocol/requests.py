"""The requests of clients, and the types of their answers.

Requests of upkeep are not among them. Answers have no kind of their own; they are decoded by the
type of the request that they answer.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from postroom.messaging.bulk_requests import (
    InboxesPage,
    LettersPage,
    OutboxPage,
    ReapedPage,
    ScanDeadLetters,
    ScanInboxes,
    ScanOutbox,
    ScanReaped,
)
from postroom.messaging.counters import Counters
from postroom.messaging.image_requests import (
    AbandonRestore,
    BeginRestore,
    CheckImage,
    Counted,
    EndPart,
    EndRestore,
    ImagePage,
    ReadRestore,
    Restoration,
    RestoreEntries,
    ScanImage,
)
from postroom.messaging.queues.queries import (
    ListQueueMessages,
    QueuePage,
    QueueStats,
    ReadQueueMessage,
    ReadQueues,
    ReadQueueStats,
    ReadSchedules,
)
from postroom.messaging.queues.requests import (
    Acknowledge,
    CancelMessages,
    Claimed,
    ClaimQueue,
    CreateQueue,
    DropQueue,
    Enqueue,
    Extend,
    QueueMessage,
    Reject,
    ReplayMessages,
    Reschedule,
    SetSchedule,
    ToldQueue,
    TrimArchive,
    UpdateQueue,
    WhenDone,
)
from postroom.messaging.recount_requests import (
    BesidePage,
    CountersPage,
    InboxIndexPage,
    PlacesPage,
    ScanBeside,
    ScanCounters,
    ScanInboxIndex,
    ScanPlaces,
)
from postroom.messaging.requests import (
    AwaitQuiet,
    BuryMessages,
    CancelScheduled,
    CheckInbox,
    DeadLetter,
    DiscardDeadLetters,
    EnqueueMessage,
    EnqueueUpdate,
    Inbox,
    ListDeadLetters,
    ListInboxes,
    ListScheduled,
    Peek,
    Peeked,
    PostponeMessages,
    ReadCounters,
    Reaped,
    ReapMessages,
    ReapQueue,
    ReplayDeadLetters,
    SchedulePage,
)
from postroom.messaging.staging_requests import (
    AbortStaged,
    ApplyStaged,
    BeginLoad,
    EndLoad,
    ForgetQuery,
    LoadRows,
    PublishStaged,
    ReadStaging,
    StageRows,
    Staging,
    SweepStaged,
)
from postroom.protocol.failures import WireError
from postroom.ranges.bulk_requests import (
    AccountingPage,
    Columns,
    Partition,
    ReadPartitions,
    ScanAccounting,
    ScanColumns,
)
from postroom.ranges.nodes import Nodes, NodeStatus, ReadNodes, RebindNode, RetireNode
from postroom.ranges.positions import KeepPosition, Position, ReadPositions
from postroom.ranges.requests import (
    Accounting,
    Changes,
    Committed,
    CommitTransaction,
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Lock,
    Now,
    Pairs,
    Protect,
    Put,
    ReadAccounting,
    ReleaseLocks,
    Request,
    ReverseScan,
    Scan,
    ScanChanges,
    Unprotect,
    Value,
    Values,
)


class DescribeNode(Request, frozen=True, array_like=True, tag="describe_node", gc=False):
    """The request for a node's description of itself, by any node; answers ``NodeStatus``."""


WriteRequest: TypeAlias = (
    Put
    | ConditionalPut
    | Increment
    | Delete
    | DeleteRange
    | Accounting
    | EnqueueMessage
    | EnqueueUpdate
    | ReapMessages
    | PostponeMessages
    | BuryMessages
    | CheckInbox
    | ReplayDeadLetters
    | DiscardDeadLetters
    | CancelScheduled
    | CreateQueue
    | UpdateQueue
    | DropQueue
    | Enqueue
    | Acknowledge
    | Reject
    | Extend
    | Reschedule
    | CancelMessages
    | ReplayMessages
    | WhenDone
    | SetSchedule
    | TrimArchive
    | StageRows
    | PublishStaged
    | ApplyStaged
    | AbortStaged
    | SweepStaged
    | ForgetQuery
    | BeginLoad
    | LoadRows
    | EndLoad
    | KeepPosition
)
"""The writes that a transaction may have."""

ClientRequest: TypeAlias = (
    CommitTransaction[WriteRequest]
    | Get
    | GetForUpdate
    | Lock
    | GetMany
    | Scan
    | ReverseScan
    | ScanChanges
    | Now
    | ReadAccounting
    | Protect
    | Unprotect
    | ReleaseLocks
    | ReapQueue
    | Peek
    | ListInboxes
    | ListDeadLetters
    | ListScheduled
    | ReadCounters
    | AwaitQuiet
    | ClaimQueue
    | ReadQueues
    | ReadQueueMessage
    | ListQueueMessages
    | ReadSchedules
    | ReadQueueStats
    | ReadPartitions
    | ScanColumns
    | ScanAccounting
    | ScanInboxes
    | ScanReaped
    | ScanOutbox
    | ScanDeadLetters
    | ScanCounters
    | ScanInboxIndex
    | ScanPlaces
    | ScanBeside
    | ReadStaging
    | ScanImage
    | ReadRestore
    | CheckImage
    | BeginRestore
    | RestoreEntries
    | EndPart
    | EndRestore
    | AbandonRestore
    | ReadPositions
    | ReadNodes
    | RetireNode
    | RebindNode
    | DescribeNode
)
"""The requests that a client may ask for."""

ANSWERS: Final[dict[type, Any]] = {
    CommitTransaction: Committed,
    Get: Value,
    GetForUpdate: Value,
    Lock: None,
    GetMany: Values,
    Scan: Pairs,
    ReverseScan: Pairs,
    ScanChanges: Changes,
    Now: int,
    ReadAccounting: dict[str, int],
    Protect: int,
    Unprotect: None,
    ReleaseLocks: None,
    ReapQueue: Reaped,
    Peek: Peeked,
    ListInboxes: list[Inbox],
    ListDeadLetters: list[DeadLetter],
    ListScheduled: SchedulePage,
    ReadCounters: Counters,
    AwaitQuiet: None,
    ClaimQueue: Claimed,
    ReadQueues: list[ToldQueue],
    ReadQueueMessage: list[QueueMessage],
    ListQueueMessages: QueuePage,
    ReadSchedules: list[SetSchedule],
    ReadQueueStats: QueueStats,
    ReadPartitions: list[Partition],
    ScanColumns: Columns,
    ScanAccounting: AccountingPage,
    ScanInboxes: InboxesPage,
    ScanReaped: ReapedPage,
    ScanOutbox: OutboxPage,
    ScanDeadLetters: LettersPage,
    ScanCounters: CountersPage,
    ScanInboxIndex: InboxIndexPage,
    ScanPlaces: PlacesPage,
    ScanBeside: BesidePage,
    ReadStaging: Staging,
    ScanImage: ImagePage,
    ReadRestore: Restoration,
    CheckImage: Counted,
    BeginRestore: str,
    RestoreEntries: None,
    EndPart: None,
    EndRestore: None,
    AbandonRestore: bool,
    ReadPositions: list[Position],
    ReadNodes: Nodes,
    RetireNode: Nodes,
    RebindNode: Nodes,
    DescribeNode: NodeStatus,
}
"""The type of each request's answer."""

RESULT_DECODERS: Final = {
    kind: msgspec.msgpack.Decoder(answer).decode for kind, answer in ANSWERS.items()
}
"""The decoders of answers. They raise ``MALFORMED`` for bytes that are no such answer."""

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_result(kind: type, result: msgspec.Raw) -> Any:
    """Decode the answer to a request of the type ``kind``.

    Raises:
        WireError: the bytes are no such answer.
    """
    try:
        return RESULT_DECODERS[kind](result)
    except MALFORMED as error:
        raise not_an_answer(kind, error) from error


def not_an_answer(kind: type, error: Exception) -> WireError:
    """Return the error for a result that is no answer to a request of the type ``kind``."""
    return WireError(f"not an answer to {kind.__name__}: {error}")
