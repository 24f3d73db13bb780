"""The calls from one range to another: each goes to the leaseholder, on this node or another one.

::

    service ── carry ──▶ RangeCalls ─┬─ this node leads the range ──────▶ its replica ── answer ──┐
       ▲                             └─ another node: a call frame ─▶ RangeCalls ─▶ its replica   │
       │                                                          ◀── an answer frame ──┘         │
       └── answered ──────────────────────────────────────────────────────────────────────────────┘

The node knows the ranges by its own replicas: the span map tells the range of a key, the consensus
group its leader. Both are looked up anew for each call. A node that has a range no more, or does
not lead it, answers with an error. If the leader cannot be reached, another member passes the call
on: two leaders may have a majority each, and no link to each other.

Calls travel on the streams of the nodes, among the frames of consensus (:mod:`.call_frames`). Like
those they may be lost, doubled or delayed. A call whose answer does not come in time has failed,
and whether it took effect is not known. The number of a call is a timestamp of its node, which
never gives one twice, also over restarts. A late answer to a call of an earlier run therefore fits
none.

Each message has a timestamp of its sender. The receiver's clock passes over it, so that nothing is
received before it was sent, whatever the wall clocks are.

The bytes under way are limited, by the sender for each node, and by the receiver as a whole.
A frame that is malformed, or too large, is dropped, and its stream ends. It is malformed as well if
it tells a timestamp above its sender's clock.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from postroom.errors import Unavailable
from postroom.kv.clock import ClockOffset, HybridLogicalClock
from postroom.limits import (
    CALL_BYTES_MAX,
    CALL_CLOCK_OFFSET_SECONDS_MAX,
    CALLS_SERVED_BYTES_MAX,
    CALLS_UNDER_WAY_BYTES_MAX,
)
from postroom.log_once import LogOnce
from postroom.messaging.handover.requests import HandOver
from postroom.protocol.failures import WRONG_RANGE, error_from, failure_from
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId, NoPeers, Transport
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call, NotLeaseholder
from postroom.ranges.carrier import Recipient
from postroom.ranges.contract import ROOT_ID, Request
from postroom.ranges.requests import Now
from postroom.ranges.split.requests import NewRangeId
from postroom.ranges.transactions.requests import Prepared, Push, Resolve, Standing
from postroom.server.call_frames import (
    CallAnswer,
    CallQuestion,
    GatheredMessages,
    SortedFrames,
    decode_messages,
    encode,
)
from postroom.server.replicas import Replicas
from postroom.server.services import NodeTasks, Pending

ANSWER_SECONDS: Final = 4.0
"""The time after which a call without an answer has failed."""

CLOCKS_SECONDS: Final = 0.1
"""The time from one question for the clocks of others to the next."""

_log = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[Any], None]

_NOTHING: Final = msgspec.Raw(encode(None))


@functools.cache
def _decoder_of(kind: type[Request]) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of the answers to a request."""
    return msgspec.msgpack.Decoder(kind.answer)


class CallingNode(Protocol):
    """The parts of its node that the calls use.

    Attributes:
        replicas: its ranges.
        clock: its clock.
        tasks: its tasks, which have the timers.
        on_malformed: called with the sender of a frame that was dropped because it is malformed.
        on_wake: called when a turn is wanted; with whether it is urgent.
    """

    replicas: Replicas
    clock: HybridLogicalClock
    tasks: NodeTasks
    on_malformed: Callable[[NodeId], None]
    on_wake: Callable[[bool], None]

    @property
    def node_id(self) -> int:
        """Return the node's id."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""


@dataclass(eq=False, slots=True)
class _UnderWay:
    """A call to another node, whose answer has not come."""

    to: NodeId
    kind: type[Request]
    size: int
    answered: Answered
    ends_at: float


class _LocalCall(Call):
    """A call to a range that this node leads."""

    __slots__ = ("_answered",)

    def __init__(self, request: Request, answered: Answered) -> None:
        super().__init__(request, urgent=type(request) is not HandOver)
        self._answered = answered

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._answered(result if error is None else error)


class _ServedCall(Call):
    """A call of another node to a range here."""

    __slots__ = ("_answer",)

    def __init__(
        self, request: Request, answer: Callable[[Any, BaseException | None], None]
    ) -> None:
        super().__init__(request, urgent=type(request) is not HandOver)
        self._answer = answer

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._answer(result, error)


class RangeCalls:
    """The calls between the ranges of this node and all ranges; see the module.

    It implements ``Carrier``.

    Args:
        node: the node.
        transport: the node's way to other nodes.

    Attributes:
        transport: the way of consensus to other nodes, which gets the other frames.
        has_peers: whether there may be other nodes. Else turns need not begin and end here.
    """

    def __init__(self, node: CallingNode, transport: Transport) -> None:
        self._node = node
        self._connected = transport.connected
        self.has_peers = not isinstance(transport, NoPeers)
        self._frames = SortedFrames(transport, self)
        self.transport: Transport = self._frames if self.has_peers else transport
        self._gathered = GatheredMessages(transport.send)
        self._is_in_turn = self._is_timed = False
        self._under_way: dict[int, _UnderWay] = {}
        self._bytes_to: Counter[NodeId] = Counter()
        self._bytes_served = 0
        self._clocks_asked_at, self._has_asked = -CLOCKS_SECONDS, False
        self._said = LogOnce()

    def __len__(self) -> int:
        """Return the number of calls to other nodes whose answers have not come."""
        return len(self._under_way)

    # --- a carrier

    @property
    def version(self) -> int:
        """Return the number of the changes of the node's span map."""
        return self._node.replicas.version

    def recipient_of(self, key: bytes) -> Recipient:
        """Return the range that contains a key.

        If there is none here, it has the id 0, and reaches to the ranges beside it. A span that is
        cut at the ends of ranges gets past it in one step.
        """
        replica = self._node.replicas.by_key(key)
        if replica is None:
            return Recipient(0, *self._node.replicas.gap(key))
        return Recipient(replica.range_id, replica.bounds.start, replica.bounds.end)

    def carry(self, recipient: Recipient, request: Request, answered: Answered) -> None:
        """Carry a request to the leaseholder of a range; see ``Carrier``."""
        hosted = self._node.replicas.hosted.get(recipient.range_id)
        if hosted is None:
            answered(NotLeaseholder(None))
            return
        leader = hosted.group.leader
        if leader == self._node.node_id:
            hosted.replica.submit(_LocalCall(request, answered))
        elif leader is not None and self._connected(leader):
            self._send(leader, recipient.range_id, request, answered)
        else:
            self._send_by_another(hosted.group, request, answered)

    def _send_by_another(self, group: RaftGroup, request: Request, answered: Answered) -> None:
        """Send a call to another member, which may know and reach the leader."""
        own = self._node.node_id
        reached = [each for each in group.members if each != own and self._connected(each)]
        if reached:
            to = reached[self._node.clock.now() % len(reached)]
            self._send(to, group.group_id, request, answered, is_passed_on=True)
        else:
            answered(NotLeaseholder(None))

    def hear_clocks(self) -> bool:
        """Have the clock follow those of the nodes that lead other ranges.

        They are asked at most ten times a second, each for one of its ranges.

        Returns:
            Whether there are such nodes.
        """
        now = self._node.tasks.monotonic()
        if now >= self._clocks_asked_at + CLOCKS_SECONDS:
            self._clocks_asked_at = now
            leads = {
                leader: each.range_id
                for each in self._node.replicas.hosted.values()
                if (leader := each.group.leader) is not None and leader != self._node.node_id
            }
            self._has_asked = bool(leads)
            for leader, range_id in leads.items():
                if self._connected(leader):
                    self._send(leader, range_id, Now(), self._follow_clock)
        return self._has_asked

    def _follow_clock(self, answer: Any) -> None:
        if isinstance(answer, int):
            self._node.clock.pass_over(answer)

    async def new_range_id(self) -> int:
        """Ask the root for an id that no range has had.

        Raises:
            Error: there is none now.
        """
        range_id: int = await self.ask(Recipient(ROOT_ID, b"", b""), NewRangeId())
        return range_id

    async def ask(self, recipient: Recipient, request: Request) -> Any:
        """Ask the leaseholder of a range, and return its answer.

        Raises:
            Error: there is none now.
        """
        pending = Pending()

        def answered(answer: Any) -> None:
            is_error = isinstance(answer, BaseException)
            pending.complete(None, answer) if is_error else pending.complete(answer)

        self.carry(recipient, request, answered)
        return await pending

    def _send(
        self,
        to: NodeId,
        range_id: int,
        request: Any,
        answered: Answered,
        *,
        is_passed_on: bool = False,
    ) -> None:
        number = self._node.clock.now()
        packed = encode(CallQuestion(number, range_id, request, is_passed_on))
        size = len(packed)
        if self._bytes_to[to] and self._bytes_to[to] + size > CALLS_UNDER_WAY_BYTES_MAX:
            answered(Unavailable(f"too much is under way to node {to}; nothing was changed"))
            return
        ends_at = self._node.tasks.monotonic() + ANSWER_SECONDS
        self._under_way[number] = _UnderWay(to, type(request), size, answered, ends_at)
        self._bytes_to[to] += size
        if not self._is_timed:
            self._look_after(ANSWER_SECONDS)
        self._gather(to, packed)

    def _look_after(self, seconds: float) -> None:
        """Have the calls end after a time that have no answer then."""
        self._is_timed = True
        timer = Pending()
        timer.callback = self._end_late
        self._node.tasks.at(seconds, timer)

    def _end_late(self) -> None:
        """End the calls that have waited for too long. They are in the order of their ends."""
        self._is_timed = False
        now = self._node.tasks.monotonic()
        late = itertools.takewhile(lambda each: each[1].ends_at <= now, self._under_way.items())
        for number, call in list(late):
            self._end(number, _silence(call.to))
        if self._under_way and not self._is_timed:
            self._look_after(next(iter(self._under_way.values())).ends_at - now)

    def _end(self, number: int, answer: Any) -> None:
        """End a call with its answer, or with an error."""
        call = self._under_way.pop(number)
        self._bytes_to[call.to] -= call.size
        call.answered(answer)

    # --- turns of the node

    def begin_turn(self) -> None:
        """Take the calls and answers that have come."""
        self._is_in_turn = True
        self._frames.sort()

    def leave(self) -> None:
        """Send what was gathered: the node's turn is prepared."""
        if self._gathered:
            self._gathered.leave()

    def end_turn(self) -> None:
        """Send what was gathered: the node's turn is over."""
        self._is_in_turn = False
        if self._gathered:
            self._gathered.leave()

    def _gather(self, to: NodeId, packed: bytes) -> None:
        """Add a message to those that leave with this turn, or with the next one."""
        if not self._is_in_turn:
            self._node.wake(urgent=True)
        self._gathered.add(to, packed)

    # --- frames of other nodes

    def take(self, sender: NodeId, frame: bytes) -> None:
        """Take a frame of calls and answers."""
        if len(frame) > CALL_BYTES_MAX:
            self._distrust(sender, f"{len(frame)} bytes are too large")
            return
        try:
            messages = decode_messages(frame)
            clock = max([message.clock for message in messages])
            self._node.clock.update(clock, CALL_CLOCK_OFFSET_SECONDS_MAX)
            size = len(frame) // len(messages)
            for message in messages:
                if isinstance(message, CallQuestion):
                    _check_timestamp(message.clock, message.request)
                    self._serve(sender, message, size)
                else:
                    self._take_answer(sender, message)
        except (ValueError, RecursionError, msgspec.DecodeError, ClockOffset) as error:
            self._distrust(sender, str(error))

    def _serve(self, sender: NodeId, question: CallQuestion, size: int) -> None:
        """Have a range answer the call of another node."""
        number = question.number
        hosted = self._node.replicas.hosted.get(question.range_id)
        if hosted is None:
            self._tell(sender, number, None, NotLeaseholder(None))
        elif self._bytes_served and self._bytes_served + size > CALLS_SERVED_BYTES_MAX:
            busy = Unavailable("the node has too many calls of others; nothing was changed")
            self._tell(sender, number, None, busy)
        else:
            self._bytes_served += size

            def answer(result: Any, error: BaseException | None) -> None:
                self._bytes_served -= size
                self._tell(sender, number, result, error)

            leader = hosted.group.leader
            if not question.is_passed_on or leader in {None, self._node.node_id, sender}:
                hosted.replica.submit(_ServedCall(question.request, answer))
            elif self._connected(leader):

                def answered(told: Any) -> None:
                    is_error = isinstance(told, BaseException)
                    answer(None, told) if is_error else answer(told, None)

                self._send(leader, question.range_id, question.request, answered)
            else:
                answer(None, NotLeaseholder(None))

    def _tell(self, sender: NodeId, number: int, result: Any, error: BaseException | None) -> None:
        """Send an answer."""
        failure = None if error is None else failure_from(error)
        if isinstance(error, WrongRange):
            failure = WRONG_RANGE, str(error), None
        packed = _NOTHING if result is None else msgspec.Raw(encode(result))
        answer = CallAnswer(number, packed, failure, self._node.clock.last())
        self._gather(sender, encode(answer))

    def _take_answer(self, sender: NodeId, answer: CallAnswer) -> None:
        """End the call that is answered, unless it has ended, or was sent to another node."""
        call = self._under_way.get(answer.number)
        if call is None or call.to != sender:
            return
        if answer.failure is not None:
            is_wrong = answer.failure[0] == WRONG_RANGE
            self._end(answer.number, WrongRange() if is_wrong else error_from(answer.failure))
        else:
            result = _decoder_of(call.kind).decode(answer.result)
            _check_timestamp(answer.clock, result)
            self._end(answer.number, result)

    def _distrust(self, sender: NodeId, fault: str) -> None:
        """Log that a frame of ``sender`` was dropped, and report its sender."""
        now = self._node.tasks.monotonic()
        self._said.log(
            _log, (sender, fault), now, "dropped a call of node %s: malformed: %s", sender, fault
        )
        self._node.on_malformed(sender)

    def read_on(self) -> None:
        """Ask for another turn, since frames are left."""
        self._node.on_wake(True)


_TIMESTAMPS: Final[Mapping[type, Callable[[Any], int]]] = {
    int: int,  # the answer to ``Now``
    Prepared: attrgetter("timestamp"),
    Push: attrgetter("above"),
    Resolve: attrgetter("timestamp"),
    Standing: attrgetter("timestamp"),
}
"""The timestamps that clocks and commits follow, in what nodes tell each other."""


def _check_timestamp(clock: int, told: Any) -> None:
    """Check that a node tells no timestamp above its own clock.

    Raises:
        ValueError: it does.
    """
    timestamp = _TIMESTAMPS.get(type(told))
    if timestamp is not None and timestamp(told) > clock:
        raise ValueError("a timestamp is above the clock of its sender")


def _silence(to: NodeId) -> Unavailable:
    return Unavailable(f"node {to} has not answered in time")
