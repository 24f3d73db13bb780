"""The parts of a session: its node, the calls of its client, their failures, its protections."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from postroom.errors import Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import HybridLogicalClock
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.protocol import frames
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    WRONG_RANGE,
    Failure,
    failure_from,
)
from postroom.protocol.frames import PROTOCOL_VERSION
from postroom.protocol.requests import RANGES_REVISION, REVISION
from postroom.raft.interface import NodeId
from postroom.ranges.access import Grants
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call, NotLeaseholder
from postroom.ranges.carrier import Carrier
from postroom.ranges.contract import ROOT_ID, UNTIL_IT_HAPPENS
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.nodes import Nodes, NodeStatus
from postroom.ranges.protections import Protections
from postroom.ranges.requests import Protect, Unprotect
from postroom.ranges.rights import Rights
from postroom.server.cluster.admission import Admission
from postroom.server.cluster.session_ranges import (
    concerned_ranges,
    has_several_ranges,
    led_ranges,
    shown_to,
)
from postroom.server.replicas import Replicas

# --- the node -------------------------------------------------------------------------------------


class SessionNode(Protocol):
    """The parts of their node that sessions use."""

    failed: Error | None
    nodes: Nodes | None
    grants: Grants
    on_grants: Callable[[], None]
    on_lead_lost: Callable[[], None]
    clock: HybridLogicalClock
    monotonic: Callable[[], float]
    replicas: Replicas

    @property
    def node_id(self) -> int:
        """Return the node's id."""

    @property
    def calls(self) -> Carrier:
        """Return the way to the leaseholders of ranges."""

    def wake(self, *, urgent: bool) -> None:
        """Ask for a turn."""

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after a time."""

    def leader(self) -> NodeId | None:
        """Return the leader, as far as this node knows."""

    def describe(self) -> NodeStatus:
        """Return the node's description of itself."""


def welcome_of(node: SessionNode, requests_max: int, rights: Rights | None) -> bytes:
    """Return the frame that names the leader and the nodes.

    Args:
        node: the node that sends it.
        requests_max: how many requests a client may have unanswered.
        rights: the rights of the client; ``None``: it is told of all ranges.
    """
    nodes = () if node.nodes is None else node.nodes.nodes
    addresses = [(each.node_id, each.address) for each in nodes if not each.retired]
    leader = node.leader()
    return frames.encode(
        frames.Welcome(
            frames.PROTOCOL_VERSION, node.clock.reading(), node.node_id,
            leader if isinstance(leader, int) else 0, addresses, requests_max,
            REVISION, led_ranges(node.replicas, rights),
        )
    )  # fmt: skip


# --- calls ----------------------------------------------------------------------------------------


class CallOwner(Protocol):
    """The session."""

    principal: str

    def completed(self, call: ClientCall, result: Any, error: BaseException | None) -> None:
        """Take the node's answer to ``call``."""

    def protected(self, request: Protect | Unprotect, timestamp: int) -> None:
        """Note that the node has protected, or released, a timestamp for this client."""


class ClientCall(Call):
    """A client's request at this node.

    Attributes:
        owner: the session.
        principal: the session's principal.
        number: the number that the client has given it.
        size: its share of its frame's bytes.
        waits: whether it waits for an event.
    """

    __slots__ = ("number", "owner", "principal", "size", "waits")

    def __init__(self, owner: CallOwner, number: int, request: Any, size: int) -> None:
        self.request = request
        self.urgent = True
        self.token = self.within = None
        self.cancelled = False
        self.owner: CallOwner = owner
        self.principal = owner.principal
        self.number = number
        self.size = size
        self.waits = request.wait_seconds_max == UNTIL_IT_HAPPENS and request.waits()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session."""
        self.owner.completed(self, result, error)


class NamingCall(ClientCall):
    """A request that names the range that it is for.

    Attributes:
        range_id: the range.
    """

    __slots__ = ("range_id",)
    range_id: int


class Protecting(ClientCall):
    """A ``Protect`` or ``Unprotect`` of a client."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session, which takes note of it first."""
        if error is None:
            self.owner.protected(self.request, result)
        self.owner.completed(self, result, error)


class TakenBack(Call):
    """A request that undoes an earlier one of a client that is gone."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Ignore the answer, for which no client waits."""


# --- failures -------------------------------------------------------------------------------------


IS_WITHDRAWN: Final[Failure] = (WITHDRAWN, "withdrawn", None)
NOT_YOURS: Final = failure_from(Invalid(
    "the id of the transaction does not begin with the client's; nothing was done: a client can "
    "only lock, reap, commit and release for its own transactions"
))  # fmt: skip
CLOCK_IS_AHEAD: Final[Failure] = (
    CLOCK_AHEAD, "the client's clock is too far ahead; nothing was changed", None
)  # fmt: skip

_log = logging.getLogger(__name__)


def check_version(version: int) -> None:
    """Check that a client speaks this protocol.

    Raises:
        VersionMismatch: it speaks another version.
    """
    if version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"this node speaks version {PROTOCOL_VERSION} of the protocol, the client version "
            f"{version}; nothing was done: use the same version of Postroom"
        )


def check_ranges(replicas: Replicas, revision: int) -> None:
    """Check that a client knows that there are several ranges, if there are.

    Raises:
        VersionMismatch: it does not.
    """
    if revision < RANGES_REVISION and has_several_ranges(replicas):
        raise VersionMismatch(
            "this store has several ranges, of which the client's version of Postroom does not "
            "know; nothing was done: upgrade the client"
        )


def clock_refusal(clock: HybridLogicalClock, clients: int) -> Failure | None:
    """Raise the clock above the client's, for its commits, or return why that is refused."""
    if clients > clock.last():
        if not clock.may_follow(clients):
            return CLOCK_IS_AHEAD
        clock.update(clients, CLOCK_OFFSET_SECONDS_MAX)
    return None


def overload(
    admission: Admission, principal: str, own_requests: int, own_bytes: int, size: int
) -> Failure | None:
    """Return why a client may not have one more request, of ``size`` bytes, or ``None``."""
    limits = admission.limits
    may_have_more = own_requests < limits.stream_requests_max + limits.stream_waits_max
    if may_have_more and admission.admits(principal, own_requests, own_bytes, size):
        return None
    return failure_from(admission.refusal())


def too_many_protections(count: int) -> Failure:
    """Return the failure for a client that has so many protections, and gets no more."""
    return failure_from(Unavailable(
        f"this client has {count} snapshots and scans open, and gets no more; nothing was "
        "changed: end some of them",
    ))  # fmt: skip


def failure_of(
    node: SessionNode,
    call: ClientCall,
    error: BaseException,
    rights: Rights | None,
    peer: str,
) -> Failure:
    """Return the failure of a request that the node has answered with an error.

    Args:
        node: the node.
        call: the request.
        error: the error.
        rights: the rights of the client; ``None``: it is told of all ranges.
        peer: the client, for the log.
    """
    if isinstance(error, NotLeaseholder):
        return NOT_LEASEHOLDER, str(error), _whereabouts(node, call, error.leader, rights)
    if isinstance(error, WrongRange):
        shown = shown_to(rights, error.descriptors)
        told = dict.fromkeys((*_concerned(node, call, rights), *shown))
        return WRONG_RANGE, str(error), list(told)
    if error is node.replicas.failed:
        return NOT_LEASEHOLDER, str(error), None  # the next leader may serve it
    if not isinstance(error, Error | ValueError | TypeError):
        _log.error("a request of client %s failed", peer, exc_info=error)
    return failure_from(error)


def _whereabouts(
    node: SessionNode, call: ClientCall, leader: NodeId | None, rights: Rights | None
) -> tuple[int, str] | tuple[int, str, RangeDescriptor] | None:
    """Return the node that leads, and the range if there are several."""
    nodes = node.nodes
    known = None if nodes is None or not isinstance(leader, int) else nodes.by_id(leader)
    if not has_several_ranges(node.replicas):
        return None if known is None else (known.node_id, known.address)
    node_id, address = (0, "") if known is None else (known.node_id, known.address)
    ranges = _concerned(node, call, rights)
    return (node_id, address, ranges[0]) if len(ranges) == 1 else (node_id, address)


def _concerned(node: SessionNode, call: ClientCall, rights: Rights | None) -> list[RangeDescriptor]:
    named = call.range_id if isinstance(call, NamingCall) else 0
    return concerned_ranges(node.replicas, call.request, named, rights)


# --- protections ----------------------------------------------------------------------------------


class ClientProtections:
    """The protected timestamps of one client.

    They are in the memory of the root's leaseholder, and gone with its lease.

    Args:
        replicas: the node's.

    Attributes:
        count: how many timestamps are protected.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.count = 0
        self._replicas = replicas
        self._timestamps: Counter[int] = Counter()
        self._asked: Counter[int] = Counter()
        self._under = 0

    def __bool__(self) -> bool:
        return bool(self._timestamps)

    @property
    def free(self) -> int:
        """Return how many more can be protected: no client has more than are left for others."""
        return self._of_node.free

    @property
    def _of_node(self) -> Protections:
        return self._replicas.by_id(ROOT_ID).protections

    def release(self, timestamp: int, client: bytes) -> None:
        """Close the snapshots that a client has had taken at a timestamp."""
        self._of_node.release(timestamp, client)

    def release_client(self, client: bytes) -> None:
        """Close all snapshots of a client."""
        self._of_node.release_client(client)

    def holds_for(self, client: bytes) -> bool:
        """Return whether snapshots are kept for a client."""
        return self._of_node.holds_for(client)

    def asks(self, request: Protect | Unprotect) -> None:
        """Note that the client has asked for that, and is not answered yet."""
        if type(request) is Protect:
            self._asked[request.timestamp] += 1

    def asks_no_more(self, request: Protect | Unprotect) -> None:
        """Note that the client is answered, or has withdrawn the request."""
        if type(request) is Protect:
            self._asked[request.timestamp] -= 1
            if not self._asked[request.timestamp]:
                del self._asked[request.timestamp]

    def may_protect(self, timestamp: int) -> bool:
        """Return whether a timestamp is protected for the client, or will be."""
        return self._are_protected if self._timestamps[timestamp] else timestamp in self._asked

    @property
    def _are_protected(self) -> bool:
        """Return whether they are still there, under the lease under which they were asked for."""
        return self._lease_sequence == self._under

    @property
    def _lease_sequence(self) -> int:
        return self._replicas.by_id(ROOT_ID).lease.sequence

    def note(self, request: Protect | Unprotect, timestamp: int) -> None:
        """Note that the node has protected, or released, a timestamp for this client."""
        under = self._lease_sequence
        if under != self._under:
            self._timestamps.clear()
            self.count = 0
            self._under = under
        if type(request) is Protect:
            self._timestamps[timestamp] += 1
            self.count += 1
        elif self._timestamps[request.timestamp] > 0:
            self._timestamps[request.timestamp] -= 1
            self.count -= 1
            if not self._timestamps[request.timestamp]:
                del self._timestamps[request.timestamp]

    def to_take_back(self) -> Iterator[int]:
        """Return each timestamp as often as it is protected; none if they are gone."""
        return self._timestamps.elements() if self._are_protected else iter(())
