"""The server's end of client streams: requests in, answers out, and what must not grow.

::

    frame ─▶ Session ─▶ decoded, checked ─▶ Admission ─▶ node.submit ··· complete ─▶ batch ─▶ frame
                                              │ full                                  one a turn
                                              └──▶ Unavailable(retry_after), at once

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
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from postroom.errors import Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import LOGICAL_BITS, ClockOffset, HybridLogicalClock
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.log_once import LogOnce
from postroom.messaging.requests import ReapQueue
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
    Unprotect,
)
from postroom.server.cluster.access import ALLOWED, Role, denied
from postroom.server.cluster.admission import Admission, Limits
from postroom.server.cluster.silence import Silence

ANSWERS_PER_FRAME_MAX: Final = 256
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

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits."""

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """``act`` is called after a time."""

    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""

    def describe(self) -> NodeStatus:
        """What this node says of itself."""


class _Asked(Call):
    """A client's request at this node; ``size`` is its share of its frame's bytes."""

    __slots__ = ("_session", "number", "size")

    def __init__(self, session: Session, number: int, request: Any, size: int) -> None:
        self.request = request
        self.urgent = True
        self.token = None
        self.cancelled = False
        self._session = session
        self.number = number
        self.size = size

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._session.completed(self, result, error)


class _Protecting(_Asked):
    """``Protect`` or ``Unprotect``."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._session.protected(self.request, result)
        self._session.completed(self, result, error)


class _TakenBack(Call):
    """Takes back what a client had asked for that is gone."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Nobody waits."""


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
    """One stream of one client. Made by :meth:`Sessions.open`.

    Attributes:
        client: who it is, once it has said so.
        stream: which of that client's streams.
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
        self._peer = peer
        self._sessions = sessions
        self._node = sessions.node
        self.heard_at = sessions.node.monotonic()
        self._submit = sessions.node.submit
        self._admission = sessions.admission
        self._on_output = on_output
        self._asked: dict[int, _Asked] = {}
        self._batch: list[tuple[Any, ...]] = []
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._told = False
        self._protected: Counter[int] = Counter()
        self._protected_under = 0
        self._names_its_own = False

    # --- what the shell calls

    @property
    def reading(self) -> bool:
        """Whether the shell may read on."""
        return not self.ended and self._unread_bytes < self._admission.limits.unread_bytes_max

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
            host = self._peer.rpartition(":")[0]
            now = (self._node.clock.reading() >> LOGICAL_BITS) / 1000
            self._sessions.said.log(
                _log, (host, str(error)), now,
                "the stream of client %s is closed: %s", self._peer, error,
            )  # fmt: skip
            self.end(error if isinstance(error, Error) else Invalid(str(error)))

    def take(self) -> bytes | None:
        """The next frame to send; ``None``: nothing, until ``on_output`` is called."""
        self._pack_batch()
        if not self._frames:
            self._told = False
            return None
        if not self.reading:  # it cannot say anything, but takes what it is told
            self.heard_at = self._node.monotonic()
        frame = self._frames.popleft()
        self._unread_bytes -= len(frame)
        return frame

    def end(self, reason: Error) -> None:
        """Say why, and close the stream after what is to be sent yet."""
        if not self.ended:
            self._pack_batch()
            self._put(frames.encode(frames.Goodbye(failure_from(reason))))
            self.close()

    def close(self) -> None:
        """The stream is over: forget what waits, and take back what was held for the client."""
        if self.ended:
            return
        self.ended = True
        self._sessions.closed(self)
        asked, self._asked = self._asked, {}
        for call in asked.values():
            self._node.cancel(call)
            self._admission.left(call.size)
        if self._node.replica.lease.sequence == self._protected_under:
            for moment in self._protected.elements():
                self._submit(_TakenBack(Unprotect(moment)))

    def is_busy(self) -> bool:
        """Whether its client waits for something, or holds something."""
        held = self._node.replica.holders.of(self.client)
        return bool(self._asked or self._protected or held)

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
        last = self._node.clock.last()
        size = frame_bytes // len(ask.requests)
        asked, admission, submit = self._asked, self._admission, self._submit
        request: Any
        for number, request in ask.requests:
            if number in asked:
                raise WireError(f"request {number} is under way already")
            kind = type(request)
            no = refusal or self._overload()
            if kind not in self._allowed:
                no = failure_from(denied(self._role, kind))
            if no is None and kind in _OF_TRANSACTIONS:
                if not self._is_own(request.transaction_id[:CLIENT_ID_BYTES]):
                    no = _NOT_YOURS
                elif kind is CommitTransaction and request.began > last:
                    no = _CLOCK_AHEAD
            if no is not None:
                self._say((number, None, no))
            elif kind in _UNLIKE_OTHERS:
                self._on_special(number, request, size)
            else:
                asked[number] = call = _Asked(self, number, request, size)
                admission.requests += 1
                admission.bytes += size
                submit(call)

    def _clock_refusal(self, clock: int) -> Failure | None:
        """Commits will be above the client's clock; or why that cannot be."""
        if clock > self._node.clock.last():
            try:
                self._node.clock.update(clock, CLOCK_OFFSET_SECONDS_MAX)
            except ClockOffset:
                return _CLOCK_AHEAD
        return None

    def _overload(self) -> Failure | None:
        admission = self._admission
        limits = admission.limits
        if len(self._asked) >= limits.stream_requests_max + limits.stream_waits_max:
            return failure_from(admission.refusal())
        if admission.requests < limits.requests_max and admission.bytes < limits.bytes_max:
            return None
        return failure_from(admission.refusal())

    def _on_special(self, number: int, request: Any, size: int) -> None:
        if type(request) is DescribeNode:
            self._say((number, self._node.describe()))
            return
        if type(request) is Unprotect and not self._may_have_protected(request.timestamp):
            self._say((number, None))
            return
        kind = _Protecting if type(request) in {Protect, Unprotect} else _Asked
        if type(request) is ReapQueue and request.bytes_max > REAPED_BYTES_MAX:
            request = msgspec.structs.replace(request, bytes_max=REAPED_BYTES_MAX)
        self._asked[number] = call = kind(self, number, request, size)
        self._admission.entered(size)
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
            self._admission.left(call.size)
            self._say((number, None, _WITHDRAWN))

    # --- what goes out

    def completed(self, call: _Asked, result: Any, error: BaseException | None) -> None:
        """The node has answered."""
        number = call.number
        if self._asked.pop(number, None) is None:
            return  # it was withdrawn, or the stream is over
        admission = self._admission
        admission.requests -= 1
        admission.bytes -= call.size
        self._say((number, result) if error is None else (number, None, self._failure(error)))

    def protected(self, request: Protect | Unprotect, moment: int) -> None:
        """The node has done that for this client: to be taken back when the stream ends."""
        under = self._node.replica.lease.sequence
        if under != self._protected_under:
            self._protected.clear()
            self._protected_under = under
        if type(request) is Protect:
            self._protected[moment] += 1
        else:
            self._protected = +(self._protected - Counter({request.timestamp: 1}))

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

    def _say(self, answer: tuple[Any, ...]) -> None:
        batch = self._batch
        batch.append(answer)
        if len(batch) >= ANSWERS_PER_FRAME_MAX:
            self._pack_batch()
        if not self._told:
            self._told = True
            self._on_output()

    def _pack_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
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
        self._frames.append(frame)
        self._unread_bytes += len(frame)
        if not self._told:
            self._told = True
            self._on_output()


class Sessions:
    """All client streams of a node.

    Attributes:
        node: whose.
        admission: how much is under way.
        said: what was logged of them.
    """

    def __init__(self, node: Node, limits: Limits | None = None) -> None:
        self.node = node
        self.admission = Admission(limits or Limits())
        self.said = LogOnce()
        self._open: dict[bytes, Session] = {}
        self._silence = Silence(node, self._open.values)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, peer: str, on_output: Callable[[], None], role: Role = Role.WRITE) -> Session:
        """A stream has been opened.

        Args:
            peer: by whom, for the log.
            on_output: called when there is something to ``take``; not again before all was taken.
            role: what the client may do.
        """
        return Session(self, peer, on_output, role)

    def admit(self, session: Session) -> bool:
        """The session has said whose it is: the client's older ones end. Whether it may go on."""
        older = self._open.get(session.client)
        if older is not None and older.stream >= session.stream:
            session.end(Invalid("a newer stream of this client is open"))
            return False
        if older is not None:
            older.end(Invalid("the client has opened a newer stream"))
        streams_max = self.admission.limits.streams_max
        if len(self._open) >= streams_max:
            session.end(Unavailable(
                f"this node serves {streams_max} clients and takes no more", retry_after=1.0
            ))  # fmt: skip
            return False
        self._open[session.client] = session
        self._silence.opened(session.client)
        return True

    def knows(self, client: bytes) -> bool:
        """Whether a client of this id is here."""
        return client in self._open

    def closed(self, session: Session) -> None:
        """It has ended."""
        if self._open.get(session.client) is session:
            del self._open[session.client]
            self._silence.closed(session)

    def tell_nodes(self) -> None:
        """The nodes are others now. All clients are told: of those that one knows from before, none
        may be left when it next loses its stream.
        """
        for session in self._open.values():
            session.welcome()

    def end_all(self, reason: Error) -> None:
        """The node stops: each client is told, and goes elsewhere."""
        for session in list(self._open.values()):
            session.end(reason)
