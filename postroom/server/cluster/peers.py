"""The transport of consensus: one gRPC stream to each other node, for the frames of all groups.

::

    send(to, frame) ─▶ queue ─▶ one message at a time ─▶ the other's service ─▶ receive
                         └ full: the frame is dropped, consensus sends it again

Each node opens a stream to each other one and only sends on it; what the other one has to say comes
on its own stream. The first message says who sends, and to whom it means to speak; the frames
that have queued up while one was on its way travel in the next message together.

A peer that is slow or gone costs the others nothing: its queue is bounded, connecting goes on
beside everything else, with growing pauses that chance spreads, and nothing ever waits for it.

Frames come in only from who has proved to be a node (:mod:`.security`) of this cluster, by the name
that the cluster knows it by. Whatever is malformed closes its stream, with a logged reason.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import grpc
import msgspec
from grpc import aio

from postroom.raft.messages import FRAME_BYTES_MAX
from postroom.raft.state_machine import NodeId
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.server.cluster.eager import Eager
from postroom.server.cluster.troubles import trouble

PROTOCOL_VERSION: Final = 1
SERVICE: Final = "postroom.v1.Nodes"
STREAM: Final = f"/{SERVICE}/Stream"
ACCEPTED: Final = "postroom-accepted"
"""In the initial metadata once an introduction has been accepted."""

MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + 1024 * 1024
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
"""What waits for one peer. Beyond it frames are dropped."""
FRAMES_PER_MESSAGE_MAX: Final = 64
UNREAD_BYTES_MAX: Final = 128 * 1024 * 1024
"""What has come in and was not taken by the node yet; beyond it streams are not read."""

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
REFUSED_PAUSE_SECONDS_MAX: Final = 5.0
"""Who is refused will most likely be refused again."""
PING_MILLISECONDS: Final = 2000

CHANNEL_OPTIONS: Final = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", PING_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", PING_MILLISECONDS),
    ("grpc.http2.max_pings_without_data", 0),
]

_log = logging.getLogger(__name__)


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a stream: who sends, from where, and to whom."""

    version: int
    cluster_id: bytes
    sender: int
    store_id: bytes
    address: str
    receiver: int = 0


_encode = msgspec.msgpack.Encoder().encode
_introductions = msgspec.msgpack.Decoder(Introduction)
_frames = msgspec.msgpack.Decoder(
    Annotated[list[bytes], msgspec.Meta(max_length=FRAMES_PER_MESSAGE_MAX)]
)


class Refused(Exception):
    """A stream is not what it should be; the message says why."""


class _Link:
    """The stream to one peer, made again whenever it breaks."""

    def __init__(self, peers: Peers, node_id: int, address: str) -> None:
        self.address = address
        self.connected = False
        self._peers = peers
        self._node_id = node_id
        self._queue: list[bytes] = []
        self._bytes = 0
        self._call: Any = None
        self._writing = False
        self._dropping = False
        self.trouble = ""
        self._refusal = ""
        self._is_refused = False
        self._broken = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        """Queue a frame, and send it now if nothing else is on its way."""
        if self._queue and self._bytes + len(frame) > QUEUE_BYTES_MAX:
            if not self._dropping:
                _log.warning("node %d takes no frames: they are dropped", self._node_id)
            self._dropping = True
            return
        self._queue.append(frame)
        self._bytes += len(frame)
        if self._call is not None and not self._writing:
            self._write()

    def _write(self) -> None:
        frames = self._queue[:FRAMES_PER_MESSAGE_MAX]
        del self._queue[: len(frames)]
        self._bytes -= sum(len(frame) for frame in frames)
        self._dropping = False
        self._writing = True
        call = self._call
        Eager(call.write(_encode(frames)), lambda error: self._written(call, error))

    def _written(self, call: Any, error: BaseException | None) -> None:
        if call is not self._call:
            return  # of a stream that has ended since
        self._writing = False
        if error is not None:
            self._broken.set()
        elif self._queue:
            self._write()

    async def _run(self) -> None:
        pause = PAUSE_SECONDS_MIN
        while True:
            started = self._peers.monotonic()
            try:
                await self._talk()
                self._is_refused = False
                _log.info("lost the connection to node %d at %s", self._node_id, self.address)
            except (aio.AioRpcError, asyncio.InvalidStateError) as error:
                self._report(error)
            finally:
                self._call, self.connected, self._writing = None, False, False
                self._queue.clear()
                self._bytes = 0
            # Else a node that is restarted soon would be waited for as long as one that is gone.
            if not self._is_refused and self._peers.monotonic() - started > PAUSE_SECONDS_MAX:
                pause = PAUSE_SECONDS_MIN
            longest = REFUSED_PAUSE_SECONDS_MAX if self._is_refused else PAUSE_SECONDS_MAX
            pause = min(pause, longest)
            await asyncio.sleep(pause * self._peers.random.uniform(0.5, 1.0))
            pause *= 2

    async def _talk(self) -> None:
        """One stream, from its beginning to its end."""
        self._broken.clear()
        async with self._peers.channel(self.address) as channel:
            call = channel.stream_unary(STREAM)()
            await call.write(_encode(self._peers.introduction(self._node_id)))
            if ACCEPTED not in dict(await call.initial_metadata()):
                await call  # raises what the other node says
            _log.info("connected to node %d at %s", self._node_id, self.address)
            self._call, self.connected = call, True
            self.trouble = self._refusal = ""
            answer = asyncio.ensure_future(call)
            broken = asyncio.ensure_future(self._broken.wait())
            try:
                await asyncio.wait((answer, broken), return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    answer.result()
            finally:
                broken.cancel()
                call.cancel()
                await asyncio.wait((answer,))
                if not answer.cancelled():
                    answer.exception()

    def _report(self, error: Exception) -> None:
        if isinstance(error, aio.AioRpcError):
            self.trouble = trouble(error)
        self._is_refused = isinstance(error, aio.AioRpcError) and error.code() not in _QUIET
        if isinstance(error, aio.AioRpcError) and self._is_refused:
            self._report_refusal(error)
        elif self.connected:
            _log.info("lost the connection to node %d at %s", self._node_id, self.address)
        else:
            _log.debug("no connection to node %d at %s: %s", self._node_id, self.address, error)

    def _report_refusal(self, error: aio.AioRpcError) -> None:
        """Once, until it is accepted."""
        said = str(error.details())
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            said += f" (at most {MESSAGE_BYTES_MAX} bytes are taken at once)"
        level = logging.DEBUG if said == self._refusal else logging.WARNING
        _log.log(level, "node %d at %s refuses: %s", self._node_id, self.address, said)
        self._refusal = said

    def close(self) -> None:
        """For good."""
        self._task.cancel()


_QUIET: Final = frozenset({
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # it ended while something was being written; the next one tells why
})  # fmt: skip


class Peers:
    """See the module. A :class:`postroom.raft.transport.Transport`.

    Args:
        introduction: who this node is.
        open_channel: opens a channel to an address, with the credentials of a node.
        randomness: spreads attempts to connect.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        introduction: Introduction,
        open_channel: Callable[[str], aio.Channel],
        randomness: random.Random,
        monotonic: Callable[[], float],
    ) -> None:
        self.random = randomness
        self.monotonic = monotonic
        self.channel = open_channel
        self.on_frames: Callable[[], None] = lambda: None
        self._me = introduction
        self._nodes: Nodes | None = None
        self._moved: dict[int, tuple[str, str]] = {}
        self._links: dict[NodeId, _Link] = {}
        self._arrived: list[tuple[NodeId, bytes]] = []
        self._unread_bytes = 0
        self._distrusted: set[NodeId] = set()
        self._room = asyncio.Event()
        self._room.set()

    def introduction(self, receiver: int) -> Introduction:
        """What this node says first to another one."""
        return msgspec.structs.replace(self._me, receiver=receiver)

    def follow(self, nodes: Nodes | None) -> None:
        """Keep a stream to each node of ``nodes`` but this one, and to no other."""
        self._nodes = nodes
        known = () if nodes is None else nodes.nodes
        recorded = {(node.node_id, node.address) for node in known}
        self._moved = {n: pair for n, pair in self._moved.items() if (n, pair[0]) in recorded}
        # At its own address there is nobody else: who is said to be there has lost its disk.
        places = {node.node_id: self._where(node) for node in known}
        wanted = {n: address for n, address in places.items() if address != self._me.address}
        wanted.pop(self._me.sender, None)
        for node_id, link in list(self._links.items()):
            if wanted.get(int(node_id)) != link.address:
                link.close()
                del self._links[node_id]
        for node_id, address in wanted.items():
            if node_id not in self._links:
                self._links[node_id] = _Link(self, node_id, address)

    def _where(self, node: NodeDescriptor) -> str:
        moved = self._moved.get(node.node_id)
        return node.address if moved is None else moved[1]

    def met(self, store_id: bytes, address: str) -> None:
        """A node has proved to be at ``address``: it is followed there.

        The record may not know yet. It cannot be changed before a majority talks to each other, and
        that may have moved.
        """
        known = None if self._nodes is None else self._nodes.by_store(store_id)
        if known is None or self._where(known) == address or known.node_id == self._me.sender:
            return
        _log.info("node %d is at %s now", known.node_id, address)
        self._moved[known.node_id] = (known.address, address)
        self.follow(self._nodes)

    def close(self) -> None:
        """Let go of all streams."""
        self.follow(None)

    # --- the transport of consensus

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` over for delivery, once or not at all."""
        link = self._links.get(to)
        if link is not None:
            link.send(frame)

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """The frames that have arrived since the last call."""
        arrived = self._arrived
        if arrived:
            self._arrived = []
            self._unread_bytes = 0
            self._room.set()
        return arrived

    def connected(self, node: NodeId) -> bool:
        """Whether there is a stream to ``node``. A hint."""
        link = self._links.get(node)
        return link is not None and link.connected

    def trouble(self, node: NodeId) -> str:
        """Why there is no stream to ``node``, in words; empty: there is one, or nobody knows."""
        link = self._links.get(node)
        return "" if link is None else link.trouble

    # --- what comes in

    def sender_of(self, message: bytes) -> Introduction:
        """Who has opened a stream, by its first message; that its address is true is to be proved.

        Raises:
            Refused: it is not a node of this cluster, or means another one.
        """
        try:
            said = _introductions.decode(message)
        except (msgspec.DecodeError, ValueError) as error:
            raise Refused(f"the first message is malformed ({error})") from error
        if said.version != PROTOCOL_VERSION:
            raise Refused(f"version {said.version} of the protocol, not {PROTOCOL_VERSION}")
        if said.cluster_id != self._me.cluster_id:
            raise Refused("a node of another cluster")
        if said.receiver != self._me.sender:
            raise Refused(f"it means node {said.receiver}, this is node {self._me.sender}")
        if self._nodes is not None:
            self._check_known(self._nodes, said)
        return said

    def _check_known(self, nodes: Nodes, said: Introduction) -> None:
        known = nodes.by_id(said.sender)
        if known is None:
            if said.sender < nodes.next_node_id:
                raise Refused(f"node {said.sender} has been removed from the cluster for good")
            return  # it was admitted after what is known here
        if known.store_id != said.store_id:
            raise Refused(f"node {said.sender} has another disk")

    def distrust(self, sender: NodeId) -> None:
        """A frame of ``sender`` was malformed: its stream ends with the next message."""
        self._distrusted.add(sender)

    async def take(self, sender: int, message: bytes) -> None:
        """Frames of ``sender`` have come in; waits while the node has too much to read.

        Raises:
            Refused: they are malformed.
        """
        try:
            frames = _frames.decode(message)
        except (msgspec.DecodeError, ValueError) as error:
            raise Refused(f"malformed frames ({error})") from error
        if sender in self._distrusted:
            self._distrusted.discard(sender)
            raise Refused("a frame of it was malformed")
        self._arrived += [(sender, frame) for frame in frames]
        self._unread_bytes += len(message)
        self.on_frames()
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
