"""The frames of clients and nodes: MessagePack, decoded and checked in one step.

::

    client                                             node
      Hello    version, secret, stream    ──────────▶
                              ◀────────── Welcome      version, clock, leader, addresses of all
      Ask      clock, requests, withdrawn ──────────▶
                              ◀────────── Answers      clock, lease, results and failures
      Ask      (with a look-up)           ──────────▶
                              ◀────────── Welcome      as at first, with the leader of now
                              ◀────────── Goodbye      why the stream ends

A frame carries many requests, and many answers, in any order; a number ties an answer to its
request. Every frame is an array that begins with its kind. Fields may be added at its end, and are
ignored by programs that do not know them. ``docs/protocol.md`` describes all of it.

The requests are in :mod:`.requests`, the failures in :mod:`.failures`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from postroom.limits import FRAME_BYTES_MAX, NODES_TOLD_MAX, REQUESTS_PER_FRAME_MAX
from postroom.protocol.failures import Failure, WireError
from postroom.protocol.identities import SECRET_BYTES
from postroom.protocol.requests import REQUESTS
from postroom.ranges.contract import Request

PROTOCOL_VERSION: Final = 1

TimestampNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Asked = TypeVar("Asked")


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """The common form of all frames."""


# --- from a client --------------------------------------------------------------------------------


class Hello(_Frame, frozen=True, array_like=True, tag=0):
    """The first frame of a stream.

    Attributes:
        secret: the secret that the id of the client is made from (:mod:`.identities`).
        stream: the number of the stream, which rises with each of the client's. A node ends an
            older stream of a client before it welcomes a newer one, and its frames cannot come too
            late.
    """

    version: int
    secret: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    stream: Number

    def __repr__(self) -> str:
        return f"Hello({self.version}, {self.stream})"  # without the secret


class Ask(_Frame, Generic[Asked], frozen=True, array_like=True, tag=1):
    """The requests of a client: of all types, or of those of its role (:mod:`.permitted`).

    Attributes:
        clock: the client's present: the newest timestamp heard, plus the time since then.
        requests: each with a number that no unanswered request of the stream has.
        withdrawn: numbers of requests, those of this frame included, that are not wanted any more
            unless they are answered at once. All are answered all the same.
        looks_up: whether a ``Welcome`` is wanted, with the present leader, as a sign of life.
    """

    clock: TimestampNumber
    requests: Annotated[
        list[tuple[Number, Asked]], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)
    ] = []
    withdrawn: Annotated[list[Number], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)] = []
    looks_up: bool = False


# --- from a node ----------------------------------------------------------------------------------


class Welcome(_Frame, frozen=True, array_like=True, tag=0):
    """The answer to ``Hello``, and to an ``Ask`` that looks up.

    Attributes:
        clock: the node's.
        node_id: the node that the client talks to.
        leader: the leader, as far as this node knows; 0: none.
        nodes: the number and address of each node of the cluster; none if it stands alone.
        requests_max: how many requests this stream may have unanswered, apart from waiting ones.
        revision: the revision of requests that the node knows (:mod:`.revisions`).
    """

    version: int
    clock: TimestampNumber
    node_id: int
    leader: int
    nodes: Annotated[list[tuple[int, str]], msgspec.Meta(max_length=NODES_TOLD_MAX)]
    requests_max: int
    revision: int


class NumberedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of one request. If it has a failure, the result is nil."""

    number: int
    result: msgspec.Raw
    failure: Failure | None = None


class Answers(_Frame, frozen=True, array_like=True, tag=1):
    """The answers of one turn.

    Attributes:
        clock: the node's, not below any timestamp in the answers.
        lease: the number of the lease under which the node serves. When it changes, everything that
            clients had in the leaseholder's memory (protections, locks) is gone.
    """

    clock: TimestampNumber
    lease: int
    answers: Annotated[list[NumberedAnswer], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)]


class Goodbye(_Frame, frozen=True, array_like=True, tag=2):
    """The end of a stream by the node, and why."""

    failure: Failure


# --- to bytes and back ----------------------------------------------------------------------------

encode = msgspec.msgpack.Encoder().encode


def decoder_of(request: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of frames whose requests are of a type."""
    return msgspec.msgpack.Decoder(Hello | Ask[request])


FromClient: TypeAlias = Hello | Ask[Request]
_from_client: Final[msgspec.msgpack.Decoder[Any]] = decoder_of(REQUESTS.request)
_from_node: Final = msgspec.msgpack.Decoder(Welcome | Answers | Goodbye)


def from_client(frame: bytes, decoder: msgspec.msgpack.Decoder[Any] = _from_client) -> FromClient:
    """Decode a frame of a client.

    Args:
        frame: the bytes that have come in.
        decoder: knows the requests that the client may ask for; all, if it is left out.

    Raises:
        WireError: the bytes are no such frame.
    """
    message: FromClient = _decoded(decoder, frame)
    return message


def from_node(frame: bytes) -> Welcome | Answers | Goodbye:
    """Decode a frame of a node.

    Raises:
        WireError: the bytes are no such frame.
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
