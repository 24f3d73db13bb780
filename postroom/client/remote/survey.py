"""A survey of all nodes of a cluster, for ``status``: each node reports for itself.

A database talks to the leader; without a majority there is none. The survey greets every address,
and every node that one of them names. Each node reports its own status.

::

    greet ─▶ Welcome ─▶ Ask: DescribeNode, ReadCounters ─▶ Answers      on a stream to each node
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.client.remote.addresses import in_words
from postroom.client.remote.connection import Streams
from postroom.client.remote.tls_files import TLS
from postroom.errors import AccessDenied, Error
from postroom.messaging.requests import Counters, ReadCounters
from postroom.protocol import frames
from postroom.protocol.failures import WireError, error_from
from postroom.protocol.frames import SECRET_BYTES
from postroom.protocol.requests import decode_result
from postroom.ranges.nodes import DescribeNode, NodeStatus

SURVEY_SECONDS: Final = 3.0
_DESCRIBE, _COUNT = 1, 2


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
        counters: the sums over all messages, if a leader could be asked.
    """

    nodes: list[NodeReport] = field(default_factory=list)
    counters: Counters | None = None

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
) -> Survey:
    """Ask the nodes at ``addresses``, and those that they name.

    Raises:
        Error: none of them answers; ``AccessDenied``, if that is why.
    """
    streams = Streams(tls, token)
    asking = _Asking(streams, randomness)
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

    def __init__(self, streams: Streams, randomness: random.Random) -> None:
        self.done = asyncio.Event()
        self._streams = streams
        self._secret = randomness.randbytes(SECRET_BYTES)
        self._links: dict[int, NodeReport] = {}
        self._frames: dict[int, list[bytes]] = {}
        self._unanswered: dict[int, set[int]] = {}
        self._counters: Counters | None = None
        self._named: dict[int, str] = {}
        self._welcomed_links: set[int] = set()

    def greet(self, address: str) -> None:
        """Open a stream, unless there is one."""
        if any(each.address == address for each in self._links.values()):
            return
        link = len(self._links) + 1
        self._links[link] = NodeReport(address)
        self._frames[link] = [
            frames.encode(frames.Hello(frames.PROTOCOL_VERSION, self._secret, link))
        ]
        self._unanswered[link] = {_DESCRIBE, _COUNT}
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
        self._unanswered[link].clear()
        self._look()

    def _welcomed(self, link: int, welcome: frames.Welcome) -> None:
        self._named.update(welcome.nodes)
        self._links[link].node_id = welcome.node_id
        if link not in self._welcomed_links:  # else it says that the nodes have changed
            self._welcomed_links.add(link)
            self._ask(link, welcome)
        for node_id, address in welcome.nodes:
            self.greet(address)
            for report in self._links.values():
                if report.address == address and not report.node_id:
                    report.node_id = node_id

    def _ask(self, link: int, welcome: frames.Welcome) -> None:
        requests = [(_DESCRIBE, DescribeNode()), (_COUNT, ReadCounters())]
        self._frames[link].append(frames.encode((1, welcome.clock, requests)))
        self._streams.output(link)

    def _answered(self, link: int, answer: frames.NumberedAnswer) -> None:
        self._unanswered[link].discard(answer.number)
        report = self._links[link]
        if answer.failure is not None:
            if answer.number == _DESCRIBE:
                report.error = error_from(answer.failure)
        elif answer.number == _DESCRIBE:
            report.status = decode_result(DescribeNode, answer.result)
        else:
            self._counters = decode_result(ReadCounters, answer.result)
        self._look()

    def _look(self) -> None:
        if not any(self._unanswered.values()):
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
        return Survey(found, self._counters)


def _nobody(reports: list[NodeReport]) -> Error:
    kind = Error
    if all(isinstance(each.error, AccessDenied) for each in reports):
        kind = AccessDenied
    return kind(f"no node answers: {in_words({each.address: each.error for each in reports})}")
