"""What clients and nodes say to each other: frames of MessagePack, decoded and checked in one step.

::

    client                                             node
      Hello    version, who, which stream ──────────▶
                              ◀────────── Welcome      version, clock, who leads, where all are
      Ask      clock, requests, withdrawn ──────────▶
                              ◀────────── Answers      clock, lease, results and failures
      Ask      (with a look-up)           ──────────▶
                              ◀────────── Welcome      the same again: who leads now
                              ◀────────── Goodbye      why the stream ends

A frame carries many requests, and many answers, in any order; numbers say which is whose. Every
frame is an array that begins with its kind; fields may be added at its end, and are ignored by who
does not know them. ``docs/protocol.md`` tells all of it, with bytes.

What a client may ask is the union :data:`ClientRequest`: upkeep is not in it. Answers have no kind
of their own; they are decoded by the type of the request that they answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from postroom import errors
from postroom.client.sender import DeadlineExceeded
from postroom.limits import TRANSACTION_BYTES_MAX
from postroom.messaging.counters import Counters
from postroom.messaging.requests import (
    AwaitQuiet,
    DeadLetter,
    DiscardDeadLetters,
    EnqueueMessage,
    EnqueueUpdate,
    Inbox,
    ListDeadLetters,
    ListInboxes,
    Peek,
    Peeked,
    ReadCounters,
    Reaped,
    ReapMessages,
    ReapQueue,
    ReplayDeadLetters,
)
from postroom.ranges.nodes import Nodes, NodeStatus, ReadNodes, RetireNode
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

PROTOCOL_VERSION: Final = 1
FRAME_BYTES_MAX: Final = 2 * TRANSACTION_BYTES_MAX
"""A frame holds at least the greatest transaction, whatever it is made of."""
REQUESTS_PER_FRAME_MAX: Final = 4096
CLIENT_ID_BYTES: Final = 8
ACCEPTED: Final = "postroom-accepted"
"""In the initial metadata of a stream that was let in: a client that began to write sooner would
not always be told why it was not."""


class WireError(Exception):
    """What came in is no frame of this protocol. Nothing of it was done."""


class DescribeNode(Request, frozen=True, array_like=True, tag="describe_node", gc=False):
    """What the node that is asked, whichever it is, says of itself; answers ``NodeStatus``."""


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
    | ReplayDeadLetters
    | DiscardDeadLetters
)
"""What a transaction may do."""

ClientRequest: TypeAlias = (
    CommitTransaction[WriteRequest]
    | Get
    | GetForUpdate
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
    | ReadCounters
    | AwaitQuiet
    | ReadNodes
    | RetireNode
    | DescribeNode
)
"""What a client may ask."""

ANSWERS: Final[dict[type, Any]] = {
    CommitTransaction: Committed,
    Get: Value,
    GetForUpdate: Value,
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
    ReadCounters: Counters,
    AwaitQuiet: None,
    ReadNodes: Nodes,
    RetireNode: Nodes,
    DescribeNode: NodeStatus,
}
"""What each request is answered with."""

Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Failure: TypeAlias = tuple[str, str, Any]
"""An error: its name, its message, and what else it carries."""


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all frames are."""


# --- from a client --------------------------------------------------------------------------------


class Hello(_Frame, frozen=True, array_like=True, tag=0):
    """The first frame of a stream.

    Attributes:
        client: drawn at random by each client process.
        stream: the client's streams are numbered upwards. A node ends an older stream of a client
            before it welcomes a newer one, so that what was sent on it cannot come too late.
    """

    version: int
    client: Annotated[bytes, msgspec.Meta(min_length=CLIENT_ID_BYTES, max_length=CLIENT_ID_BYTES)]
    stream: Number


class Ask(_Frame, frozen=True, array_like=True, tag=1):
    """Requests.

    Attributes:
        clock: about now, on the client: the newest timestamp heard and the time since then.
        requests: each with a number that no unanswered request of the stream has.
        withdrawn: numbers of requests, those of this frame included, that are not wanted any more
            unless they are answered at once. All are answered all the same.
        looks_up: a ``Welcome`` is wanted: who leads, and a sign of life.
    """

    clock: Moment
    requests: Annotated[
        list[tuple[Number, ClientRequest]], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)
    ] = []
    withdrawn: Annotated[list[Number], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)] = []
    looks_up: bool = False


# --- from a node ----------------------------------------------------------------------------------


class Welcome(_Frame, frozen=True, array_like=True, tag=0):
    """Answers ``Hello``, and whoever looks up.

    Attributes:
        clock: the node's.
        node_id: whom the client talks to.
        leader: who leads, as far as this node knows; 0: nobody.
        nodes: the number and address of each node of the cluster; none if it stands alone.
        requests_max: how many requests this stream may have unanswered, those that wait apart.
    """

    version: int
    clock: Moment
    node_id: int
    leader: int
    nodes: list[tuple[int, str]]
    requests_max: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The result of one request; or its failure, and the result is nil."""

    number: int
    result: msgspec.Raw
    failure: Failure | None = None


class Answers(_Frame, frozen=True, array_like=True, tag=1):
    """Answers of one turn.

    Attributes:
        clock: the node's, not below any timestamp in the answers.
        lease: the number of the lease under which the node serves. When it changes, what clients
            had in the leaseholder's memory (protections, locks) is gone.
    """

    clock: Moment
    lease: int
    answers: list[Answer]


class Goodbye(_Frame, frozen=True, array_like=True, tag=2):
    """The node ends the stream, and why."""

    failure: Failure


# --- to bytes and back ----------------------------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode
_from_client: Final = msgspec.msgpack.Decoder(Hello | Ask)
_from_node: Final = msgspec.msgpack.Decoder(Welcome | Answers | Goodbye)
_result_decoders: Final = {
    kind: msgspec.msgpack.Decoder(answer).decode for kind, answer in ANSWERS.items()
}


def from_client(frame: bytes) -> Hello | Ask:
    """A frame of a client's.

    Raises:
        WireError: it is none.
    """
    message: Hello | Ask = _decoded(_from_client, frame)
    return message


def from_node(frame: bytes) -> Welcome | Answers | Goodbye:
    """A frame of a node's.

    Raises:
        WireError: it is none.
    """
    message: Welcome | Answers | Goodbye = _decoded(_from_node, frame)
    return message


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    if len(frame) > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a frame of this protocol: {error}") from error


def decode_result(kind: type, result: msgspec.Raw) -> Any:
    """What answers a request of the type ``kind``.

    Raises:
        WireError: it is something else.
    """
    try:
        return _result_decoders[kind](result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an answer to {kind.__name__}: {error}") from error


# --- errors ---------------------------------------------------------------------------------------

NOT_LEASEHOLDER: Final = "NotLeaseholder"
"""Another node leads; nothing happened. Carries its number and address, or nil."""
WITHDRAWN: Final = "Withdrawn"
"""The client did not want the answer any more; nothing happened."""
CLOCK_AHEAD: Final = "ClockAhead"
"""The client's clock is too far ahead of the node's; nothing happened."""


def _tree(kind: type[errors.Error]) -> dict[str, type[errors.Error]]:
    known = {kind.__name__: kind} if kind.__module__ == errors.__name__ else {}
    for narrower in kind.__subclasses__():
        known |= _tree(narrower)
    return known


ERRORS: Final[dict[str, type[Exception]]] = {
    **_tree(errors.Error),
    "ValueError": ValueError,
    "TypeError": TypeError,
}
"""The errors that travel. What a node says that is not among them is an ``Error``."""


def failure_from(error: BaseException) -> Failure:
    """An error as it travels."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), "Error")
    extra = None
    if isinstance(error, errors.ConditionFailed):
        extra = error.actual
    elif isinstance(error, errors.Unavailable):
        extra = error.retry_after
    return name, str(error), extra


def error_from(failure: Failure) -> Exception:
    """An error that has travelled."""
    name, message, extra = failure
    if name == WITHDRAWN:
        return DeadlineExceeded()
    if name == "Unavailable":
        return errors.Unavailable(message, extra if isinstance(extra, int | float) else 0.1)
    if name == "ConditionFailed":
        return errors.ConditionFailed(message, extra)
    return ERRORS.get(name, errors.Error)(message)
