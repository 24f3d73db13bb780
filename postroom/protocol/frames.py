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

The requests are in :mod:`.requests`, the failures in :mod:`.failures`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from postroom.limits import FRAME_BYTES_MAX, REQUESTS_PER_FRAME_MAX
from postroom.protocol.failures import Failure, WireError
from postroom.protocol.requests import ClientRequest
from postroom.ranges.requests import CLIENT_ID_BYTES

PROTOCOL_VERSION: Final = 1
ACCEPTED: Final = "postroom-accepted"
"""In the initial metadata of a stream that was let in: a client that began to write sooner would
not always be told why it was not."""


Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all frames are."""


# --- from a client --------------------------------------------------------------------------------


class Hello(_Frame, frozen=True, array_like=True, tag=0):
    """The first frame of a stream.

    Attributes:
        client: the id of the client process (:mod:`.identities`).
        stream: the client's streams are numbered upwards. A node ends an older stream of a client
            before it welcomes a newer one, so that what was sent on it cannot come too late.
        names_its_own: the ids of its transactions begin with ``client``. (Those of clients of the
            first release do not.)
        secret: what ``client`` is made from; empty: it is not made from a secret.
    """

    version: int
    client: Annotated[bytes, msgspec.Meta(min_length=CLIENT_ID_BYTES, max_length=CLIENT_ID_BYTES)]
    stream: Number
    names_its_own: bool = False
    secret: Annotated[bytes, msgspec.Meta(max_length=64)] = b""

    def __repr__(self) -> str:
        return f"Hello({self.version}, {self.client!r}, {self.stream})"  # without the secret


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
        revision: which requests the node knows (:mod:`.revisions`).
    """

    version: int
    clock: Moment
    node_id: int
    leader: int
    nodes: list[tuple[int, str]]
    requests_max: int
    revision: int = 0


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
