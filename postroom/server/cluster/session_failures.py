"""The failures of requests that were not done: why, and what the client can do."""

from __future__ import annotations

import logging
from typing import Final

from postroom.errors import Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import ClockOffset, HybridLogicalClock
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    Failure,
    failure_from,
)
from postroom.protocol.frames import PROTOCOL_VERSION
from postroom.raft.state_machine import NodeId
from postroom.ranges.calls import NotLeaseholder
from postroom.server.cluster.admission import Admission
from postroom.server.cluster.session_node import SessionNode

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


def clock_refusal(clock: HybridLogicalClock, clients: int) -> Failure | None:
    """Raise the clock above the client's, for its commits, or return why that is refused."""
    if clients > clock.last():
        try:
            clock.update(clients, CLOCK_OFFSET_SECONDS_MAX)
        except ClockOffset:
            return CLOCK_IS_AHEAD
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


def failure_of(node: SessionNode, error: BaseException, peer: str) -> Failure:
    """Return the failure of a request that the node has answered with an error.

    Args:
        node: the node.
        error: the error.
        peer: the client, for the log.
    """
    if isinstance(error, NotLeaseholder):
        return NOT_LEASEHOLDER, str(error), _whereabouts(node, error.leader)
    if error is node.replicas.failed:
        return NOT_LEASEHOLDER, str(error), None  # the next leader may serve it
    if not isinstance(error, Error | ValueError | TypeError):
        _log.error("a request of client %s failed", peer, exc_info=error)
    return failure_from(error)


def _whereabouts(node: SessionNode, leader: NodeId | None) -> tuple[int, str] | None:
    nodes = node.nodes
    known = None if nodes is None or not isinstance(leader, int) else nodes.by_id(leader)
    return None if known is None else (known.node_id, known.address)
