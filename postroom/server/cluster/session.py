"""The server's end of one client stream: requests in, answers out, and what must not grow.

::

    frame ─▶ Session ─▶ decoded, checked ─▶ Admission ─▶ node.submit ··· complete ─▶ batch ─▶ frame
                                     ▲        │ full                                  one a turn
                            backlog ─┘        └──▶ Unavailable(retry_after), at once

Requests are submitted as long as the client takes its answers and the turn has room for reads; the
rest of a frame waits in the session's *backlog*: until answers were taken, or for the next turn, in
which all clients have their turns. What a client does not read, within a frame too, is bounded:
first nothing more is done for it, and in the end its stream ends.

Plain synchronous code: a shell (:mod:`.native_server`) or a simulation moves the frames. It feeds
``received``; when ``on_output`` is called it takes what there is to send, after whatever else
happens now, so that all answers of a turn leave in one frame; it does not read from a session that
is not ``reading``: its client does not take its answers.

A session ends with its stream, or when its client has been silent while it waits for something or
holds something: a client that lives says something every second then, also while its application is
busy (:mod:`postroom.client.remote.link`). What still waits is withdrawn, and the protections that
it had asked for are taken back. What its transactions hold (locks, claims on messages) is released
when it has been silent for five seconds, whether the stream has ended or not: who was only cut off,
and comes back in time, keeps it (:mod:`.silence`). Whose a transaction is tells its id.

A client's new stream ends its old one on this node before it is welcomed, so that nothing sent on
the old one is evaluated after what is sent on the new one
(:mod:`postroom.client.remote.router` relies on that).

Nothing that comes in is trusted to be well-formed, in time or of sane size; what is not ends the
stream with a reason, and does nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from postroom.errors import Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import LOGICAL_BITS, ClockOffset, HybridLogicalClock
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.messaging.queues.requests import ClaimQueue
from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    Failure,
    WireError,
    failure_from,
)
from postroom.protocol.requests import DescribeNode
from postroom.raft.state_machine import NodeId
from postroom.ranges.calls import Call, NotLeaseholder
from postroom.ranges.nodes import Nodes, NodeStatus
from postroom.ranges.replica import Replica
from postroom.ranges.requests import (
    CLIENT_ID_BYTES,
    CommitTransaction,
    GetForUpdate,
    Protect,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)
from postroom.server.cluster.access import ALLOWED, Role, denied
from postroom.server.cluster.answers import answer_bytes, failure_bytes

if TYPE_CHECKING:
    from postroom.server.cluster.sessions import Sessions

ANSWERS_PER_FRAME_MAX: Final = 256
ANSWERS_BYTES_PER_FRAME: Final = 1024 * 1024
"""No more answers join a frame that has grown past this."""
REAPED_BYTES_MAX: Final = 16 * 1024 * 1024
"""A reaper that sets no limit gets so much at most at a time."""
_log = logging.getLogger(__name__)


class Node(Protocol):
    """What sessions ask of their node."""

    failed: Error | None
    nodes: Nodes | None
    clock: HybridLogicalClock
    monotonic: Callable[[], float]
    replica: Replica

    @property
    def node_id(self) -> int:
        """Which node this is."""

    def submit(self, call: Call) -> None:
        """Take a request."""

    def wake(self, *, urgent: bool) -> None:
        """A turn is wanted."""

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits."""

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """``act`` is called after a time."""

    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""

    def describe(self) -> NodeStatus:
        """What this node says of itself."""


class _Asked(Call):
    """A client's request at this node.

    Attributes:
        size: its share of its frame's bytes.
        waits: for something to happen.
        owner: the session.
    """

    __slots__ = ("number", "owner", "size", "waits")

    def __init__(self, session: Session, number: int, request: Any, size: int) -> None:
        self.request = request
        self.urgent = True
        self.token = None
        self.cancelled = False
        self.owner: Session = session
        self.number = number
        self.size = size
        self.waits = type(request) in _MAY_WAIT and getattr(request, "wait", True)

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.owner.completed(self, result, error)


class _Protecting(_Asked):
    """``Protect`` or ``Unprotect``."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self.owner.protected(self.request, result)
        self.owner.completed(self, result, error)


class _TakenBack(Call):
    """Takes back what a client had asked for that is gone."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Nobody waits."""


_MAY_WAIT: Final = frozenset({AwaitQuiet, ClaimQueue, GetForUpdate, ReapQueue, ScanChanges})
_UNLIKE_OTHERS: Final = frozenset({DescribeNode, Protect, ReapQueue, Unprotect})
_OF_TRANSACTIONS: Final = frozenset({CommitTransaction, GetForUpdate, ReapQueue, ReleaseLocks})
_WITHDRAWN: Final[Failure] = (WITHDRAWN, "withdrawn", None)
_NOT_YOURS: Final = failure_from(Invalid(
    "the id of the transaction does not begin with the client's; nothing was done: a client can "
    "only lock, reap, commit and release for its own transactions"
))  # fmt: skip
_CLOCK_AHEAD: Final[Failure] = (
    CLOCK_AHEAD, "the client's clock is too far ahead; nothing was changed", None
)  # fmt: skip


class Session:
    """One stream of one client. Made by :meth:`.sessions.Sessions.open`.

    Attributes:
        client: who it is, once it has said so.
        stream: which of that client's streams.
        host: where it comes from.
        heard_at: when it last gave a sign of life, on the node's monotonic clock.
        ended: the shell is to close the stream once everything was taken.
    """

    def __init__(
        self,
        sessions: Sessions,
        peer: str,
        on_output: Callable[[], None],
        role: Role = Role.WRITE,
    ) -> None:
        self.client = b""
        self._role = role
        self._allowed = ALLOWED[role]
        self.stream = 0
        self.ended = False
        self.host = peer.rpartition(":")[0] or peer
        self.heard_at = sessions.node.monotonic()
        self._peer = peer
        self._sessions = sessions
        self._node = sessions.node
        self._submit = sessions.node.submit
        self._admission = sessions.admission
        self._on_output = on_output
        self._asked: dict[int, _Asked] = {}
        self._batch: list[tuple[Any, ...]] = []
        self._backlog: deque[tuple[int, Any, int]] = deque()
        self._batch_bytes = 0
        self._frames: deque[bytes] = deque()
        self._frames_bytes = 0
        self._taken_at = self.heard_at
        self._own_bytes = 0
        self._waiting = 0
        self._told = False
        self._protected: Counter[int] = Counter()
        self._protections = 0
        self._protected_under = 0
        self._names_its_own = False

    # --- what the shell calls

    @property
    def reading(self) -> bool:
        """Whether the shell may read on."""
        return not (self.ended or self._backlog) and self._takes_answers()

    @property
    def unread_bytes(self) -> int:
        """About how much of answers the client has not taken."""
        return self._frames_bytes + self._batch_bytes

    def _takes_answers(self) -> bool:
        return self.unread_bytes < self._admission.limits.unread_bytes_max

    def wants(self) -> int:
        """How much it has under way: 0: nothing; 1: what waits for something; 2: more."""
        if self._backlog or len(self._asked) > self._waiting:
            return 2
        return 1 if self._asked or self.unread_bytes else 0

    def takes_nothing_since(self) -> float:
        """When it last took anything of what there is for it."""
        return self._taken_at if self.unread_bytes else math.inf

    def received(self, frame: bytes) -> None:
        """A frame has come in."""
        if self.ended:
            return
        self.heard_at = self._node.monotonic()
        try:
            message = frames.from_client(frame)
            if type(message) is frames.Ask:
                self._on_ask(message, len(frame))
            elif type(message) is frames.Hello:
                self._on_hello(message)
        except (WireError, VersionMismatch) as error:
            self._log_closed(str(error), str(error))
            self.end(error if isinstance(error, Error) else Invalid(str(error)))

    def take(self) -> bytes | None:
        """The next frame to send; ``None``: nothing, until ``on_output`` is called."""
        self._pack_batch()
        if not self._frames and self._backlog:
            self._work_off()
            self._pack_batch()
        if not self._frames:
            self._told = False
            return None
        if not self.reading:  # it cannot say anything, but takes what it is told
            self.heard_at = self._node.monotonic()
        frame = self._frames.popleft()
        self._frames_bytes -= len(frame)
        if not self.ended:
            self._admission.unread_bytes -= len(frame)
        self._taken_at = self._node.monotonic()
        return frame

    def end(self, reason: Error) -> None:
        """Say why, and close the stream after what is to be sent yet."""
        if not self.ended:
            self._pack_batch()
            self._put(frames.encode(frames.Goodbye(failure_from(reason))))
            self.close()

    def cut(self, reason: Error) -> None:
        """End a stream whose client does not read: nothing of what it was to be told is kept."""
        self._log_closed("cut", str(reason))
        self.gone(reason)

    def gone(self, reason: Error) -> None:
        """End a stream whose client may not be there any more: nothing is kept for it."""
        self._forget_unread()
        self.end(reason)

    def _log_closed(self, kind: str, reason: str) -> None:
        now = (self._node.clock.reading() >> LOGICAL_BITS) / 1000
        self._sessions.said.log(
            _log, (self.host, kind), now,
            "the stream of client %s is closed: %s", self._peer, reason,
        )  # fmt: skip

    def _forget_unread(self) -> None:
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self._frames.clear()
        self._batch_bytes = self._frames_bytes = 0

    def close(self) -> None:
        """The stream is over: forget what waits, and take back what was held for the client."""
        if self.ended:
            return
        self.ended = True
        self._admission.unread_bytes -= self.unread_bytes
        self._batch.clear()
        self._batch_bytes = 0
        self._backlog.clear()
        self._own_bytes = self._waiting = 0
        asked, self._asked = self._asked, {}
        for call in asked.values():
            self._node.cancel(call)
            self._admission.left(call.size)
        self._sessions.closed(self)  # by now: one that was cancelled may have let the next one take
        if self._node.replica.lease.sequence == self._protected_under:
            for moment in self._protected.elements():
                self._submit(_TakenBack(Unprotect(moment)))

    def is_busy(self) -> bool:
        """Whether its client waits for something, or holds something."""
        if self._asked or self._backlog or self._protected:
            return True
        return self._node.replica.holds_for(self.client)

    def _is_own(self, client: bytes) -> bool:
        """Whether a transaction whose id begins with ``client`` may be this session's.

        A client of the first release draws these bytes by itself. It may have any but those of
        another client that is here.
        """
        if client == self.client:
            return True
        return not (self._names_its_own or self._sessions.knows(client))

    # --- what comes in

    def _on_hello(self, hello: frames.Hello) -> None:
        if self.stream:
            raise WireError("a second Hello")
        if hello.version != frames.PROTOCOL_VERSION:
            raise VersionMismatch(
                f"this node speaks version {frames.PROTOCOL_VERSION} of the protocol, the client "
                f"version {hello.version}; nothing was done: use the same version of Postroom"
            )
        self.client, self.stream = hello.client, hello.stream
        self._names_its_own = hello.names_its_own
        if self._sessions.admit(self):
            self.welcome()

    def welcome(self) -> None:
        """Say who leads, and who the nodes are."""
        node = self._node
        nodes = () if node.nodes is None else node.nodes.nodes
        addresses = [(each.node_id, each.address) for each in nodes if not each.retired]
        limits, leader = self._admission.limits, node.leader()
        self._put(
            frames.encode(
                frames.Welcome(
                    frames.PROTOCOL_VERSION, node.clock.reading(), node.node_id,
                    leader if isinstance(leader, int) else 0, addresses, limits.stream_requests_max,
                )
            )
        )  # fmt: skip

    def _on_ask(self, ask: frames.Ask, frame_bytes: int) -> None:
        if not self.stream:
            raise WireError("no Hello before the first request")
        if ask.looks_up:
            self.welcome()
        if ask.requests:
            self._on_requests(ask, frame_bytes)
        for number in ask.withdrawn:
            self._on_withdrawn(number)

    def _on_requests(self, ask: frames.Ask, frame_bytes: int) -> None:
        refusal = self._clock_refusal(ask.clock)
        size = frame_bytes // len(ask.requests)
        backlog = self._backlog
        for number, request in ask.requests:
            if self.ended:
                return
            if refusal is not None:
                self._fail(number, refusal)
            elif backlog or not self._may_submit():
                backlog.append((number, request, size))
            else:
                self._take_on(number, request, size)
        if backlog:
            self._wait_for_room()

    def _may_submit(self) -> bool:
        return self._takes_answers() and not self._node.replica.is_used_up

    def _wait_for_room(self) -> None:
        """The backlog goes on when answers were taken, or with the next turn."""
        if self._takes_answers() and not self.ended:
            self._sessions.waits(self)
            self._node.wake(urgent=True)

    def _work_off(self) -> None:
        """As much of the backlog as may be submitted now."""
        backlog = self._backlog
        while backlog and not self.ended and self._may_submit():
            self._take_on(*backlog.popleft())
        if backlog:
            self._wait_for_room()

    def work_off_one(self) -> bool:
        """The first request of the backlog; whether it wants another turn."""
        if self._backlog and not self.ended and self._takes_answers():
            self.heard_at = self._node.monotonic()  # it is not read from until the backlog is done
            self._take_on(*self._backlog.popleft())
        return bool(self._backlog) and not self.ended and self._takes_answers()

    def _take_on(self, number: int, request: Any, size: int) -> None:
        if self.ended:
            return
        asked, admission = self._asked, self._admission
        if number in asked:
            reason = f"request {number} is under way already"
            self._log_closed("number", reason)
            self.end(Invalid(reason))
            return
        kind = type(request)
        no = self._overload(size)
        if kind not in self._allowed:
            no = failure_from(denied(self._role, kind))
        if no is None and kind in _OF_TRANSACTIONS:
            if not self._is_own(request.transaction_id[:CLIENT_ID_BYTES]):
                no = _NOT_YOURS
            elif kind is CommitTransaction and request.began > self._node.clock.last():
                no = _CLOCK_AHEAD
        elif no is None and kind is ClaimQueue and not self._may_claim(request):
            no = _NOT_YOURS
        if no is not None:
            self._fail(number, no)
        elif kind in _UNLIKE_OTHERS:
            self._on_special(number, request, size)
        else:
            call = _Asked(self, number, request, size)
            asked[number] = call
            admission.requests += 1
            admission.bytes += size
            self._own_bytes += size
            self._waiting += call.waits
            self._submit(call)

    def _may_claim(self, request: ClaimQueue) -> bool:
        """Whether consumer and transaction are this client's own."""
        if not self._is_own(request.consumer[:CLIENT_ID_BYTES]):
            return False
        transaction_id = request.transaction_id
        return transaction_id is None or self._is_own(transaction_id[:CLIENT_ID_BYTES])

    def _clock_refusal(self, clock: int) -> Failure | None:
        """Commits will be above the client's clock; or why that cannot be."""
        if clock > self._node.clock.last():
            try:
                self._node.clock.update(clock, CLOCK_OFFSET_SECONDS_MAX)
            except ClockOffset:
                return _CLOCK_AHEAD
        return None

    def _overload(self, size: int) -> Failure | None:
        admission = self._admission
        limits, own = admission.limits, len(self._asked)
        if own < limits.stream_requests_max + limits.stream_waits_max:
            if admission.requests < limits.requests_max and admission.bytes < limits.bytes_max:
                return None
            if admission.admits(own, self._own_bytes, size):
                return None
        return failure_from(admission.refusal())

    def _on_special(self, number: int, request: Any, size: int) -> None:
        if type(request) is DescribeNode:
            self._say((number, self._node.describe()), 1024)
            return
        if type(request) is Protect and self._protections >= (
            self._admission.limits.stream_protections_max
        ):
            self._fail(number, failure_from(Unavailable(
                f"this client has {self._protections} snapshots and scans open, and gets no more; "
                "nothing was changed: end some of them",
            )))  # fmt: skip
            return
        if type(request) is Unprotect and not self._may_have_protected(request.timestamp):
            self._say((number, None), answer_bytes(None))
            return
        kind = _Protecting if type(request) in {Protect, Unprotect} else _Asked
        if type(request) is ReapQueue and request.bytes_max > REAPED_BYTES_MAX:
            request = msgspec.structs.replace(request, bytes_max=REAPED_BYTES_MAX)
        self._asked[number] = call = kind(self, number, request, size)
        self._admission.entered(size)
        self._own_bytes += size
        self._waiting += call.waits
        self._submit(call)

    def _may_have_protected(self, moment: int) -> bool:
        """Else the protection belongs to somebody else, or to nobody any more."""
        if self._protected[moment]:
            return self._node.replica.lease.sequence == self._protected_under
        asked = (call.request for call in self._asked.values() if type(call) is _Protecting)
        return any(type(each) is Protect and each.timestamp == moment for each in asked)

    def _on_withdrawn(self, number: int) -> None:
        call = self._asked.pop(number, None)
        if call is not None:
            self._node.cancel(call)
            self._left(call)
            self._fail(number, _WITHDRAWN)
            return
        for waiting in self._backlog:
            if waiting[0] == number:
                self._backlog.remove(waiting)
                self._fail(number, _WITHDRAWN)
                return

    def _left(self, call: _Asked) -> None:
        self._admission.left(call.size)
        self._own_bytes -= call.size
        self._waiting -= call.waits

    # --- what goes out

    def completed(self, call: _Asked, result: Any, error: BaseException | None) -> None:
        """The node has answered."""
        number = call.number
        if self._asked.pop(number, None) is None:
            return  # it was withdrawn, or the stream is over
        self._left(call)
        if error is None:
            self._say((number, result), answer_bytes(result))
        else:
            self._fail(number, self._failure(error))

    def protected(self, request: Protect | Unprotect, moment: int) -> None:
        """The node has done that for this client: to be taken back when the stream ends."""
        under = self._node.replica.lease.sequence
        if under != self._protected_under:
            self._protected.clear()
            self._protections = 0
            self._protected_under = under
        if type(request) is Protect:
            self._protected[moment] += 1
            self._protections += 1
        elif self._protected[request.timestamp] > 0:
            self._protected[request.timestamp] -= 1
            self._protections -= 1
            if not self._protected[request.timestamp]:
                del self._protected[request.timestamp]

    def _failure(self, error: BaseException) -> Failure:
        if isinstance(error, NotLeaseholder):
            return NOT_LEASEHOLDER, str(error), self._whereabouts(error.leader)
        if error is self._node.replica.failed:
            return NOT_LEASEHOLDER, str(error), None  # whoever leads next may serve it
        if not isinstance(error, Error | ValueError | TypeError):
            _log.error("a request of client %s failed", self._peer, exc_info=error)
        return failure_from(error)

    def _whereabouts(self, leader: NodeId | None) -> tuple[int, str] | None:
        nodes = self._node.nodes
        known = None if nodes is None or not isinstance(leader, int) else nodes.by_id(leader)
        return None if known is None else (known.node_id, known.address)

    def _fail(self, number: int, failure: Failure) -> None:
        self._say((number, None, failure), failure_bytes(failure[2]))

    def _say(self, answer: tuple[Any, ...], size: int) -> None:
        batch = self._batch
        if not (batch or self._frames):
            self._taken_at = self._node.monotonic()
        batch.append(answer)
        self._batch_bytes += size
        self._admission.unread_bytes += size
        if len(batch) >= ANSWERS_PER_FRAME_MAX or self._batch_bytes >= ANSWERS_BYTES_PER_FRAME:
            self._pack_batch()
            self._check_unread()
        if not self._told:
            self._told = True
            self._on_output()

    def _check_unread(self) -> None:
        limits = self._admission.limits
        if self.unread_bytes > max(limits.unread_bytes_end, limits.unread_bytes_max):
            self.cut(Unavailable(
                f"{self.unread_bytes} bytes of answers were not read; what was not answered may or "
                "may not have been done: read the answers, or ask for less at a time"
            ))  # fmt: skip
        elif self._admission.unread_bytes > limits.unread_bytes_all:
            self._sessions.cut_the_worst()

    def _pack_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._admission.unread_bytes -= self._batch_bytes
            self._batch_bytes = 0
            self._pack(batch)

    def _pack(self, batch: list[tuple[Any, ...]]) -> None:
        node = self._node
        frame = frames.encode((1, node.clock.reading(), node.replica.lease.sequence, batch))
        if len(frame) <= frames.FRAME_BYTES_MAX:
            self._put(frame)
        elif len(batch) > 1:
            half = len(batch) // 2
            self._pack(batch[:half])
            self._pack(batch[half:])
        else:
            too_large = Invalid(
                f"the answer takes {len(frame)} bytes, {frames.FRAME_BYTES_MAX} fit into a frame: "
                "ask for less at a time"
            )
            self._pack([(batch[0][0], None, failure_from(too_large))])

    def _put(self, frame: bytes) -> None:
        if not self._frames:
            self._taken_at = self._node.monotonic()
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        self._admission.unread_bytes += len(frame)
        if not self._told:
            self._told = True
            self._on_output()
