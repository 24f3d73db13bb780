"""The nodes of a cluster, for an administrator: their status, and changes of them.

A database talks to the leader, whose answers give ``db.status()``. Without a majority there is
none. A *survey* therefore greets every address, and every node that one of them names. Each node
reports its own status.

::

    greet ─▶ Welcome ─▶ Ask: DescribeNode ─▶ Answers      on a stream to each node
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.client.remote.connection import Streams
from postroom.client.remote.sender import AsyncioSender
from postroom.client.remote.tls_files import TLS
from postroom.client.routing.search import in_words
from postroom.client.sender import Sender
from postroom.client.values import (
    NodeInfo,
    Status,
    position_infos,
    service_infos,
    storage_info,
)
from postroom.errors import AccessDenied, Error, Invalid, Retryable, Unavailable
from postroom.kv.clock import Timestamp
from postroom.messaging.requests import Counters, ReadCounters
from postroom.protocol import frames
from postroom.protocol.failures import DeadlineExceeded, WireError, error_from
from postroom.protocol.frames import SECRET_BYTES
from postroom.protocol.requests import REVISION, decode_result
from postroom.ranges.nodes import (
    DescribeNode,
    NodeDescriptor,
    Nodes,
    NodeStatus,
    ReadNodes,
    RebindNode,
    RetireNode,
)
from postroom.ranges.protections import Position, ReadPositions
from postroom.ranges.requests import Now

SURVEY_SECONDS: Final = 3.0
_DESCRIBE: Final = 1


@dataclass(slots=True)
class NodeReport:
    """The report of one node.

    Attributes:
        address: where it is, or should be.
        node_id: its id; 0: not known.
        status: what it says of itself; ``None``: it does not answer.
        error: why it does not answer.
    """

    address: str
    node_id: int = 0
    status: NodeStatus | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Survey:
    """The result of a survey.

    Attributes:
        nodes: in the order of their ids.
    """

    nodes: list[NodeReport] = field(default_factory=list)

    @property
    def leader(self) -> NodeReport | None:
        """Return the node that leads; of two that believe that they do, the one elected later."""
        leading = [(each.status.term, each.node_id, each) for each in self.nodes
                   if each.status is not None and each.status.role == "leader"]  # fmt: skip
        return max(leading)[2] if leading else None


async def survey(
    addresses: Iterable[str],
    tls: TLS | None,
    token: str | None,
    randomness: random.Random,
    timeout_seconds: float = SURVEY_SECONDS,
    *,
    follow: bool = True,
) -> Survey:
    """Ask the nodes at ``addresses``; with ``follow`` also those that they name.

    Raises:
        Error: none of them answers; ``AccessDenied``, if that is why.
    """
    streams = Streams(tls, token)
    asking = _Asking(streams, randomness, follow=follow)
    streams.router = asking  # type: ignore[assignment]  # it offers what streams ask of a router
    for address in addresses:
        asking.greet(address)
    try:
        await asyncio.wait_for(asking.done.wait(), timeout_seconds)
    except TimeoutError:
        asking.give_up(timeout_seconds)
    finally:
        asking.end()
        await streams.closed()
    return asking.result()


class _Asking:
    """The conversations with the nodes, in place of a router."""

    def __init__(self, streams: Streams, randomness: random.Random, *, follow: bool) -> None:
        self.done = asyncio.Event()
        self._streams = streams
        self._follow = follow
        self._secret = randomness.randbytes(SECRET_BYTES)
        self._links: dict[int, NodeReport] = {}
        self._frames: dict[int, list[bytes]] = {}
        self._unanswered: set[int] = set()
        self._named: dict[int, str] = {}
        self._welcomed_links: set[int] = set()

    def greet(self, address: str) -> None:
        """Open a stream, unless there is one."""
        if any(each.address == address for each in self._links.values()):
            return
        link = len(self._links) + 1
        self._links[link] = NodeReport(address)
        self._frames[link] = [
            frames.encode(frames.Hello(frames.PROTOCOL_VERSION, self._secret, link, REVISION))
        ]
        self._unanswered.add(link)
        self._streams.open(link, address)

    # --- calls of the streams

    def take(self, link: int) -> bytes | None:
        """Return the next frame to be sent."""
        queued = self._frames[link]
        return queued.pop(0) if queued else None

    def received(self, link: int, frame: bytes) -> None:
        """Handle a frame that has come in."""
        try:
            message = frames.from_node(frame)
            match message:
                case frames.Welcome():
                    self._welcomed(link, message)
                case frames.Answers():
                    for answer in message.answers:
                        self._answered(link, answer)
                case frames.Goodbye():
                    self.disconnected(link, error_from(message.failure))
        except WireError as error:
            self.disconnected(link, error)

    def disconnected(self, link: int, reason: Exception | None) -> None:
        """Handle the end of a stream."""
        report = self._links[link]
        if report.status is None and report.error is None:
            report.error = reason or Error("the node has closed the stream")
        self._unanswered.discard(link)
        self._look()

    def _welcomed(self, link: int, welcome: frames.Welcome) -> None:
        self._links[link].node_id = welcome.node_id
        if link not in self._welcomed_links:  # else it says that the nodes have changed
            self._welcomed_links.add(link)
            self._ask(link, welcome)
        if self._follow:
            self._named.update(welcome.nodes)
            self._greet_all(welcome.nodes)

    def _greet_all(self, nodes: Iterable[tuple[int, str]]) -> None:
        for node_id, address in nodes:
            self.greet(address)
            for report in self._links.values():
                if report.address == address and not report.node_id:
                    report.node_id = node_id

    def _ask(self, link: int, welcome: frames.Welcome) -> None:
        asked = (1, welcome.clock, [(_DESCRIBE, DescribeNode())])
        self._frames[link].append(frames.encode(asked))
        self._streams.output(link)

    def _answered(self, link: int, answer: frames.NumberedAnswer) -> None:
        self._unanswered.discard(link)
        report = self._links[link]
        if answer.failure is not None:
            report.error = error_from(answer.failure)
        else:
            report.status = decode_result(DescribeNode, answer.result)
        self._look()

    def _look(self) -> None:
        if not self._unanswered:
            self.done.set()

    def give_up(self, seconds: float) -> None:
        """Note an error for each node that has not answered in time."""
        for report in self._links.values():
            if report.status is None and report.error is None:
                report.error = Error(f"no answer within {seconds:g} s")

    def end(self) -> None:
        """Close all streams."""
        for link in self._links:
            self._streams.close(link)

    def result(self) -> Survey:
        """Return what is known now.

        A node that is reached at two addresses counts once. If two nodes are said to be at one
        address, one of them is not there.
        """
        reports: dict[Any, NodeReport] = {}
        for report in self._links.values():
            key = report.node_id or report.address
            if key not in reports or reports[key].status is None:
                reports[key] = report
        for node_id, address in self._named.items():
            elsewhere = Error(f"another node answers at {address}")
            reports.setdefault(node_id, NodeReport(address, node_id, error=elsewhere))
        found = sorted(reports.values(), key=lambda each: (each.node_id or 2**63, each.address))
        if not any(each.status is not None for each in found):
            raise _nobody(found)
        return Survey(found)


def _nobody(reports: list[NodeReport]) -> Error:
    kind = Error
    if all(isinstance(each.error, AccessDenied) for each in reports):
        kind = AccessDenied
    return kind(f"no node answers: {in_words({each.address: each.error for each in reports})}")


LOOK_SECONDS: Final = 0.1


async def remove_node(
    addresses: Sequence[str],
    node_id: int,
    tls: TLS | None,
    token: str | None,
    randomness: random.Random,
    timeout_seconds: float,
) -> Nodes:
    """Retire a node for good; return the nodes that are left when it is out of the consensus group.

    Args:
        addresses: those of some nodes.
        node_id: the node to remove.
        tls, token: see :func:`postroom.connect`.
        randomness: for the client's id.
        timeout_seconds: how long it may take.

    Raises:
        Invalid: there is no such node, or it is the last one.
        Unavailable: the node is retired, but was still there after that time.
    """
    sender = AsyncioSender(addresses, tls, token, randomness, timeout_seconds)
    give_up_at = sender.monotonic() + timeout_seconds
    try:
        nodes: Nodes = await sender.send(RetireNode(node_id))
        while nodes.by_id(node_id) is not None:
            if sender.monotonic() > give_up_at:
                raise Unavailable(
                    f"node {node_id} is to be removed, but was still there after "
                    f"{timeout_seconds:g} s; the cluster goes on trying: look at 'postroom status'",
                    retry_after=1.0,
                )
            await asyncio.sleep(LOOK_SECONDS)
            try:
                nodes = await sender.send(ReadNodes(), max(give_up_at - sender.monotonic(), 0.1))
            except (Retryable, DeadlineExceeded):  # an election: the time is not over yet
                continue
        return nodes
    finally:
        await sender.close()


async def rebind_node(
    addresses: Sequence[str],
    request: RebindNode,
    tls: TLS | None,
    token: str | None,
    randomness: random.Random,
    timeout_seconds: float,
) -> Nodes:
    """Give a node a new key: it is now the node with this key; streams with the old one end.

    Args:
        addresses: those of some nodes.
        request: which node, and the fingerprint of its new key.
        tls, token: see :func:`postroom.connect`; those of an administrator.
        randomness: for the client's id.
        timeout_seconds: how long it may take.

    Raises:
        Invalid: there is no such node.
        AccessDenied: the caller is no administrator.
    """
    sender = AsyncioSender(addresses, tls, token, randomness, timeout_seconds)
    try:
        nodes: Nodes = await sender.send(request)
        return nodes
    finally:
        await sender.close()


async def cluster_status(sender: Sender, addresses: Sequence[str]) -> Status:
    """Return the status of a remote store now.

    Args:
        sender: the client's sender.
        addresses: those that the application connected to.
    """
    counters: Counters = await sender.send(ReadCounters())
    now: int = await sender.send(Now())
    node: NodeStatus = await sender.send(DescribeNode())
    try:
        nodes: Nodes = await sender.send(ReadNodes())
        infos = tuple(_info(each, node) for each in nodes.nodes)
    except Invalid:  # a store that stands alone
        infos = ()
    positions: list[Position] = await sender.send(ReadPositions())
    return Status(
        ",".join(addresses),
        node.node_id,
        node.term,
        node.applied_index,
        Timestamp(now),
        node.disk_bytes,
        counters,
        node.leader or None,
        infos,
        service_infos(node.services),
        storage_info(node.storage),
        node.refused,
        position_infos(positions, now),
        node.store_id,
    )


def _info(node: NodeDescriptor, leader: NodeStatus) -> NodeInfo:
    if node.node_id == leader.node_id:
        return NodeInfo(node.node_id, node.address, 0, 0.0, node.retired)
    peer = next((each for each in leader.peers if each.node_id == node.node_id), None)
    if peer is None:
        return NodeInfo(node.node_id, node.address, None, None, node.retired)
    behind = max(leader.last_index - peer.match_index, 0)
    return NodeInfo(node.node_id, node.address, behind, peer.silent_seconds, node.retired)
