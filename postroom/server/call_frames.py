"""The frames with which nodes carry calls from range to range, and their answers.

::

    c1 │ array of messages, in MessagePack
         [1, number, range id, request, is passed on]     a question
         [2, number, result, failure, clock]              an answer

All messages of a turn to one node leave in one frame, when the turn is prepared and when it is
finished. Calls that have come are taken before a turn evaluates anything, so the turn includes
them. The frames of consensus, which arrive on the same streams, stay for its stage.

The first byte is one with which no MessagePack begins.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from postroom.limits import (
    CALLS_KEPT_BYTES_MAX,
    CALLS_READ_BYTES_A_TURN,
    CALLS_TOGETHER_BYTES_MAX,
)
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.queues.maintenance import AskForSlots, LearnDefinitions, LeaveSlots
from postroom.protocol.failures import Failure
from postroom.protocol.requests import REQUESTS, any_of
from postroom.raft.interface import NodeId, Transport
from postroom.ranges.audit import NoteRefusals
from postroom.ranges.requests import Now
from postroom.ranges.split.requests import NewRangeId
from postroom.ranges.transactions.requests import Prepare, Push, Resolve

CALL_FRAME: Final = b"\xc1"
"""The first byte of the frames of calls."""

if TYPE_CHECKING:
    CarriedRequest: TypeAlias = (
        AskForSlots | HandOver | LearnDefinitions | LeaveSlots | NewRangeId | NoteRefusals | Now
        | Prepare[Any] | Resolve | Push
    )  # fmt: skip
else:
    CarriedRequest = any_of(
        (
            AskForSlots, HandOver, LearnDefinitions, LeaveSlots, NewRangeId, NoteRefusals, Now,
            Prepare[REQUESTS.write], Resolve, Push,
        )
    )  # fmt: skip
"""The requests that leaseholders send to each other."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class CallQuestion(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A call: its number, which is a timestamp of its node, the range, and the request.

    If it ``is_passed_on``, its receiver asks the leader, which the sender cannot reach.
    """

    number: _Number
    range_id: _Number
    request: CarriedRequest
    is_passed_on: bool = False

    @property
    def clock(self) -> int:
        """Return a timestamp of the sender's clock."""
        return self.number


class CallAnswer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call, with its number: a result, or a failure in its place."""

    number: _Number
    result: msgspec.Raw
    failure: Failure | None
    clock: _Number


encode: Final = msgspec.msgpack.Encoder().encode


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[list[CallQuestion | CallAnswer]]:
    """Return the decoder of messages, made when it is first needed: it takes a while."""
    return msgspec.msgpack.Decoder(list[CallQuestion | CallAnswer])


def decode_messages(frame: bytes) -> list[CallQuestion | CallAnswer]:
    """Return the messages of a frame.

    Raises:
        ValueError, msgspec.DecodeError, RecursionError: it is malformed.
    """
    messages = _decoder().decode(memoryview(frame)[len(CALL_FRAME) :])
    if not messages:
        raise ValueError("a frame without a call")
    return messages


class GatheredMessages:
    """The messages that leave together, by node. Its truth is whether there is any.

    Args:
        send: sends a frame to a node.
    """

    def __init__(self, send: Callable[[NodeId, bytes], None]) -> None:
        self._send = send
        self._packed: dict[NodeId, list[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._packed)

    def add(self, to: NodeId, packed: bytes) -> None:
        """Add a message that is encoded already."""
        self._packed.setdefault(to, []).append(packed)

    def leave(self) -> None:
        """Send all of them, in as few frames as their size allows."""
        gathered, self._packed = self._packed, {}
        for to, messages in gathered.items():
            first = size = 0
            for number, message in enumerate(messages):
                size += len(message)
                if size > CALLS_TOGETHER_BYTES_MAX and number > first:
                    self._send(to, _frame(messages[first:number]))
                    first, size = number, len(message)
            self._send(to, _frame(messages[first:]))


def _frame(messages: list[bytes]) -> bytes:
    head = b"\xdd" + len(messages).to_bytes(4, "big")
    return b"".join((CALL_FRAME, head, *messages))


class CallTaker(Protocol):
    """The part of a node that takes the frames of calls."""

    def take(self, sender: NodeId, frame: bytes) -> None:
        """Take a frame of calls and answers."""

    def read_on(self) -> None:
        """Ask for another turn, since frames are left."""


class SortedFrames:
    """The transport of a node as consensus sees it: without the frames of calls.

    A turn takes in so many bytes of calls, then the rest waits for the next turn.

    Args:
        transport: the node's way to other nodes.
        calls: takes the others.
    """

    def __init__(self, transport: Transport, calls: CallTaker) -> None:
        self.send, self.connected = transport.send, transport.connected
        self._receive = transport.receive
        self._calls = calls
        self._arrived: Iterator[tuple[NodeId, bytes]] | None = None
        self._others: deque[tuple[NodeId, bytes]] = deque()
        self._others_bytes = 0

    def sort(self) -> None:
        """Take the calls that have arrived, and keep the frames between them."""
        calls_left = CALLS_READ_BYTES_A_TURN
        arrived = self._arrived = self._arrived or iter(self._receive())
        while calls_left >= 0 and self._others_bytes <= CALLS_KEPT_BYTES_MAX:
            sender, frame = next(arrived, (None, b""))
            if sender is None:
                self._arrived = None
                return
            if frame[:1] == CALL_FRAME:
                calls_left -= len(frame)
                self._calls.take(sender, frame)
            else:
                self._others.append((sender, frame))
                self._others_bytes += len(frame)
        self._calls.read_on()

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Yield the frames of consensus that were kept."""
        others = self._others
        while others:
            sender, frame = others.popleft()
            self._others_bytes -= len(frame)
            yield sender, frame
