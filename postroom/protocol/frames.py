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

import functools
from collections.abc import Callable
from hashlib import blake2b
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec

from postroom.limits import (
    FRAME_BYTES_MAX,
    LED_RANGES_TOLD_MAX,
    NODES_TOLD_MAX,
    REQUESTS_PER_FRAME_MAX,
)
from postroom.protocol.failures import Failure, WireError
from postroom.protocol.requests import REQUESTS, any_of, name_of, weight_of
from postroom.ranges.contract import Request
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import CLIENT_ID_BYTES

# --- the identity of a client ---------------------------------------------------------------------


SECRET_BYTES: Final = 32


class ClientIdentity(NamedTuple):
    """The id of a client, and the secret that it is made from.

    The ids of a client's transactions begin with its own id, and lists of dead letters and of
    scheduled messages show them to every reader. An id by itself therefore proves nothing::

        secret: 32 random bytes ──▶ client: 8 bytes of its BLAKE2b hash
           told to nodes only          in each transaction's id, seen by others

    A client's Hello has its secret, from which the node makes the id. A node needs to remember
    nothing for that: any node recognises the client when it comes there for the first time. To find
    another secret for the same id takes some 2^64 guesses.
    """

    client: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Identity({self.client!r})"  # logs and errors may show it


def draw_identity(randomness: Random) -> ClientIdentity:
    """Draw a new identity.

    Args:
        randomness: has a seed that no other process knows.
    """
    secret = randomness.randbytes(SECRET_BYTES)
    return ClientIdentity(client_of(secret), secret)


def client_of(secret: bytes) -> bytes:
    """Return the id that is made from a secret."""
    return blake2b(secret, digest_size=CLIENT_ID_BYTES, person=b"postroom client").digest()


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
        secret: the secret that the id of the client is made from (:class:`ClientIdentity`).
        stream: the number of the stream, which rises with each of the client's. A node ends an
            older stream of a client before it welcomes a newer one, and its frames cannot come too
            late.
        revision: the revision of requests that the client knows (:mod:`.requests`).
    """

    version: int
    secret: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    stream: Number
    revision: Number = 1

    def __repr__(self) -> str:
        return f"Hello({self.version}, {self.stream})"  # without the secret


class Ask(_Frame, Generic[Asked], frozen=True, array_like=True, tag=1):
    """The requests of a client: of all types, or of those of its role (:class:`Permitted`).

    Attributes:
        clock: the client's present: the newest timestamp heard, plus the time since then.
        requests: each with a number that no unanswered request of the stream has.
        withdrawn: numbers of requests, those of this frame included, that are not wanted any more
            unless they are answered at once. All are answered all the same.
        looks_up: whether a ``Welcome`` is wanted, with the present leader, as a sign of life.
        ranges: the ranges that requests are for: the number of a request, and the id and the
            generation of the range. Others go by their keys.
    """

    clock: TimestampNumber
    requests: Annotated[
        list[tuple[Number, Asked]], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)
    ] = []
    withdrawn: Annotated[list[Number], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)] = []
    looks_up: bool = False
    ranges: Annotated[
        list[tuple[Number, Number, Number]], msgspec.Meta(max_length=REQUESTS_PER_FRAME_MAX)
    ] = []


# --- from a node ----------------------------------------------------------------------------------


class Welcome(_Frame, frozen=True, array_like=True, tag=0):
    """The answer to ``Hello``, and to an ``Ask`` that looks up.

    Attributes:
        clock: the node's.
        node_id: the node that the client talks to.
        leader: the leader of the first range, as far as this node knows; 0: none.
        nodes: the number and address of each node of the cluster; none if it stands alone.
        requests_max: how many requests this stream may have unanswered, apart from waiting ones.
        revision: the revision of requests that the node knows (:mod:`.requests`).
        leads: the ranges that the node leads.
    """

    version: int
    clock: TimestampNumber
    node_id: int
    leader: int
    nodes: Annotated[list[tuple[int, str]], msgspec.Meta(max_length=NODES_TOLD_MAX)]
    requests_max: int
    revision: int
    leads: Annotated[list[RangeDescriptor], msgspec.Meta(max_length=LED_RANGES_TOLD_MAX)] = []


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
_from_node: Final = msgspec.msgpack.Decoder(Welcome | Answers | Goodbye)


@functools.cache
def _decoder_of_all() -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of all requests, made when it is first needed: it takes a while."""
    return decoder_of(REQUESTS.request)


def from_client(frame: bytes, decoder: msgspec.msgpack.Decoder[Any] | None = None) -> FromClient:
    """Decode a frame of a client.

    Args:
        frame: the bytes that have come in.
        decoder: knows the requests that the client may ask for; ``None``: all.

    Raises:
        WireError: the bytes are no such frame.
    """
    message: FromClient = _decoded(decoder or _decoder_of_all(), frame)
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


# --- the requests of a role -----------------------------------------------------------------------


Numbered: TypeAlias = tuple[int, Any, int]
"""A request: its number, itself, and its weight (:mod:`.requests`)."""


class NotDecoded(msgspec.Struct, frozen=True):
    """A stand-in for a request that is refused because of its size, or of the client's role.

    Attributes:
        failure: the failure that its client is told.
    """

    failure: Failure


class _Tagged(msgspec.Struct, frozen=True, array_like=True):
    """A request of which only the tag is decoded."""

    tag: str


_TAGS: Final[dict[str, Any]] = {
    name_of(get_origin(each) or each): each for each in get_args(REQUESTS.request)
}
_decode_tagged: Final = msgspec.msgpack.Decoder(tuple[Number, _Tagged]).decode
decode_number: Final = msgspec.msgpack.Decoder(Number).decode


class Permitted:
    """The permitted requests of one role.

    A request is an array that begins with its tag, and the tag tells the role that it needs. A
    client's frames are read by decoders that know the requests of its role alone, and end at any
    other tag::

        frame ── Permitted.frame ──▶ Ask                       usually
                   │ another request in it
                   └─ decode_run ──▶ each request, or NotDecoded: denied

    Args:
        kinds: the types of requests.
        denied: returns the failure for another type.

    Attributes:
        frame: decodes frames that have only permitted requests.
    """

    def __init__(
        self, kinds: frozenset[type[Request]], denied: Callable[[type[Request]], Failure]
    ) -> None:
        self._denied = {
            tag: denied(get_origin(each) or each)
            for tag, each in _TAGS.items()
            if (get_origin(each) or each) not in kinds
        }
        union: Any = any_of(each for tag, each in _TAGS.items() if tag not in self._denied)
        pair: Any = tuple[Number, union]
        self.frame = decoder_of(union)
        self._decode_list = msgspec.msgpack.Decoder(list[pair]).decode
        self._decode_pair = msgspec.msgpack.Decoder(pair).decode

    def denied(self, tag: str) -> Failure | None:
        """Return why the client may not ask for this, or ``None`` if it may."""
        return self._denied.get(tag)

    def decode_run(self, count: int, packed: memoryview) -> list[Numbered]:
        """Decode ``count`` requests, one after the other, and small all together.

        Raises:
            MsgspecError: one of them is malformed.
        """
        share = len(packed) // count
        try:
            pairs = self._decode_list(b"".join((array_header(count), packed)))
        except msgspec.ValidationError:
            raws = _decode_raws(b"".join((array_header(count), packed)))
            return [self._decode_one(bytes(raw), share) for raw in raws]
        return [(number, request, share + weight_of(request)) for number, request in pairs]

    def _decode_one(self, pair: bytes, share: int) -> Numbered:
        number, request = _decode_tagged(pair)
        failure = self.denied(request.tag)
        if failure is not None:
            return number, NotDecoded(failure), share
        if request.tag not in _TAGS:
            raise WireError("not a frame of this protocol: nothing that can be asked")
        number, decoded = self._decode_pair(pair)
        return number, decoded, share + weight_of(decoded)


def array_header(length: int) -> bytes:
    """Return the header of an array, in MessagePack."""
    if length < 1 << 4:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


_decode_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
