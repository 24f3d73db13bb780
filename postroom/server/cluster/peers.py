"""The transport of consensus: one stream to each other node, for the frames of all groups.

::

    send(to, frame) ─▶ stream, at once ─▶ the other's PeerArrival ─▶ receive
                         └ not taken: queued; full: dropped, consensus sends it again

Each node opens a stream to each other one and only sends on it; the other one's frames come
on its own stream. The first message names the sender and the receiver.

A peer that is slow or gone costs the others nothing (:mod:`.peer_links`), and nothing ever waits
for it.

Frames come in only from a node of this cluster (:mod:`.security`), on one stream at a time. The
node has proved its id by the key that the record binds to it. They go out only to a node that has
shown its key.

A record that is behind may have another key of a node. The node is let in with a proof that it has
the state of the cluster, and only while no node leads. A node that the record does not name is let
in on these terms, too. It may have been admitted after the entries known here, and may be needed to
elect a leader. While a leader is heard, those entries come here soon, and the newcomer tries again.

A malformed message closes its stream, with a logged reason.

Each peer has a queue of its own, and they take turns. One that sends much is not read from any
more: it neither keeps the others from being heard nor takes more memory than its share.
"""

from __future__ import annotations

import hmac
import logging
import random  # noqa: TID251 - passed in, as an instance
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from postroom.limits import PEER_UNREAD_BYTES_MAX
from postroom.log_once import LogOnce, shown
from postroom.protocol.streams import DENIED, UNAVAILABLE
from postroom.raft.interface import NodeId
from postroom.ranges.nodes import NodeDescriptor, Nodes, short, wrong_key
from postroom.server.cluster.dialing import (
    PROTOCOL_VERSION,
    CallerRefused,
    Dialer,
    Introduction,
    encode,
    introductions,
    proof_of,
)
from postroom.server.cluster.peer_links import PeerLink

FRAME_BYTES: Final = 16 * 1024
"""The bytes that a frame counts besides its own: there are some thousand frames at most."""


class UnreadFrames:
    """The unread frames of one node; see the module.

    Attributes:
        bytes: the counted bytes of the frames of each peer.
    """

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self._frames: dict[int, deque[bytes]] = {}
        self._held_up: dict[int, list[Callable[[], None]]] = {}

    def add(self, sender: int, frame: bytes) -> None:
        """Keep a frame."""
        self._frames.setdefault(sender, deque()).append(frame)
        self.bytes[sender] = self.bytes.get(sender, 0) + FRAME_BYTES + len(frame)

    def has_room(self, sender: int, read_on: Callable[[], None]) -> bool:
        """Return whether more may be read from a peer; else ``read_on`` is called when it may."""
        if self.bytes.get(sender, 0) <= PEER_UNREAD_BYTES_MAX:
            return True
        self._held_up.setdefault(sender, []).append(read_on)
        return False

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Yield the frames, one of each peer after the other. Frames that are not taken stay."""
        waiting = self._frames
        while waiting:
            sender = next(iter(waiting))
            frames = waiting.pop(sender)
            frame = frames.popleft()
            if frames:
                waiting[sender] = frames
                self.bytes[sender] -= FRAME_BYTES + len(frame)
            else:
                del self.bytes[sender]
            if self._held_up and self.bytes.get(sender, 0) <= PEER_UNREAD_BYTES_MAX:
                for read_on in self._held_up.pop(sender, ()):
                    read_on()
            yield sender, frame


LIVE_SECONDS: Final = 2.0
"""The silence after which a stream may be replaced by another one of its node."""

_log = logging.getLogger(__name__)


class PeerArrival:
    """A stream of another node to this one. :meth:`Peers.enter` makes it.

    Attributes:
        sender: the node.
        fingerprint: the fingerprint of the key that it has shown; empty: there is no TLS.
    """

    def __init__(
        self,
        peers: Peers,
        sender: int,
        end: Callable[[], None],
        read_on: Callable[[], None],
        fingerprint: bytes = b"",
    ) -> None:
        self.sender = sender
        self.fingerprint = fingerprint
        self.end = end
        self.read_on = read_on
        self.heard_at = peers.monotonic()
        self._peers = peers

    def received(self, frame: bytes) -> bool:
        """Take a frame, and return whether to read on; if not, ``read_on`` will be called.

        Raises:
            CallerRefused: an earlier frame was malformed.
        """
        self.heard_at = self._peers.monotonic()
        return self._peers.take(self, frame)

    def close(self) -> None:
        """Note that the stream has ended."""
        self._peers.left(self)


class Peers:
    """The streams to and from other nodes: a :class:`postroom.raft.interface.Transport`.

    Args:
        introduction: the identity of this node.
        dialer: calls other nodes.
        randomness: spreads tries to connect.
        monotonic: seconds that never go back.

    Attributes:
        on_frame: called when one has come in, with its sender.
        unread: the frames that have come in.
        has_leader: returns whether a leader is heard; see the module.
        secret: returns the cluster's secret, as far as this node has its state.
        fingerprint: the fingerprint of this node's key; empty: there is no TLS.
    """

    def __init__(
        self,
        introduction: Introduction,
        dialer: Dialer,
        randomness: random.Random,
        monotonic: Callable[[], float],
    ) -> None:
        self.random = randomness
        self.monotonic = monotonic
        self.dialer = dialer
        self.on_frame: Callable[[NodeId, bytes], None] = lambda sender, frame: None
        self.has_leader: Callable[[], bool] = lambda: True
        self.secret: Callable[[], bytes] = lambda: b""
        self.fingerprint = b""
        self._said = LogOnce()
        self._proved: dict[int, bytes] = {}
        self._me = introduction
        self._nodes: Nodes | None = None
        self._moved: dict[int, tuple[str, str]] = {}
        self._links: dict[NodeId, PeerLink] = {}
        self._arrivals: dict[int, PeerArrival] = {}
        self._distrusted: set[NodeId] = set()
        self.unread = UnreadFrames()

    def introduction(self, receiver: int) -> bytes:
        """Return the first message of this node to another one."""
        said, secret = msgspec.structs.replace(self._me, receiver=receiver), self.secret()
        if self.fingerprint and secret:
            proof = proof_of(secret, said, self.fingerprint)
            said = msgspec.structs.replace(said, proof=proof)
        return encode(said)

    @property
    def hears_others(self) -> bool:
        """Return whether any other node has a stream to this one."""
        return bool(self._arrivals)

    def follow(self, nodes: Nodes | None) -> None:
        """Keep a stream to each node of ``nodes`` but this one, and to no other."""
        rebound = self._take_over(nodes)
        known = () if nodes is None else nodes.nodes
        recorded = {(node.node_id, node.address) for node in known}
        self._moved = {n: pair for n, pair in self._moved.items() if (n, pair[0]) in recorded}
        # No other node is at this node's address: a node recorded there has lost its disk.
        addresses = {node.node_id: self._where(node) for node in known}
        wanted = {n: address for n, address in addresses.items() if address != self._me.address}
        wanted.pop(self._me.sender, None)
        for node_id, link in list(self._links.items()):
            if wanted.get(int(node_id)) != link.address or (
                node_id in rebound and not self._goes_on(int(node_id), link)
            ):
                link.close()
                del self._links[node_id]
        for node_id, address in wanted.items():
            if node_id not in self._links:
                self._links[node_id] = PeerLink(self, node_id, address)

    def _take_over(self, nodes: Nodes | None) -> set[NodeId]:
        """Take a new record, and end the streams of nodes whose keys it does not have.

        Returns:
            The nodes whose keys are new.
        """
        before, self._nodes = self._nodes, nodes
        if before == nodes or nodes is None:
            return set()
        for node_id, fingerprint in list(self._proved.items()):
            known = nodes.by_id(node_id)
            if known is None or fingerprint in _keys(known):
                del self._proved[node_id]  # it is in the record now, which counts from here on
        for arrival in list(self._arrivals.values()):
            if self.fault_of_key(arrival.sender, arrival.fingerprint) is not None:
                _log.warning("the stream of node %d ends: its key is another one", arrival.sender)
                arrival.close()
                arrival.end()
        earlier = {} if before is None else {each.node_id: _keys(each) for each in before.nodes}
        return {each.node_id for each in nodes.nodes if earlier.get(each.node_id) != _keys(each)}

    def _goes_on(self, node_id: int, link: PeerLink) -> bool:
        """Return whether a link stays; if not, it is made anew, as its key has changed."""
        return link.connected and self.fault_of_key(node_id, link.fingerprint) is None

    def _where(self, node: NodeDescriptor) -> str:
        moved = self._moved.get(node.node_id)
        return node.address if moved is None else moved[1]

    def met(self, store_id: bytes, address: str, fingerprint: bytes = b"") -> None:
        """Follow a node to ``address``, at which it has proved to be by its key.

        The record may not know it yet. It cannot be changed before a majority is connected, and
        nodes of the majority may have moved.
        """
        known = None if self._nodes is None else self._nodes.by_store(store_id)
        if known is None or self._where(known) == address or known.node_id == self._me.sender:
            return
        if self.fault_of_key(known.node_id, fingerprint) is not None:
            return
        _log.info("node %d is at %s now", known.node_id, shown(address))
        self._moved[known.node_id] = (known.address, address)
        self.follow(self._nodes)

    def close(self) -> None:
        """Close all streams."""
        self.follow(None)

    # --- keys

    def fault_of_key(self, node_id: int, fingerprint: bytes) -> str | None:
        """Return why the owner of a key is not the node; ``None``: it is, or there is no TLS."""
        known = None if self._nodes is None else self._nodes.by_id(node_id)
        if not fingerprint or known is None or known.may_show(fingerprint):
            return None
        return None if self._proved.get(node_id) == fingerprint else wrong_key(known, fingerprint)

    def check_key(self, said: Introduction, fingerprint: bytes) -> None:
        """Check that the opener of a stream has the key of the node that it says it is.

        Args:
            said: its introduction.
            fingerprint: the fingerprint of the key that it has shown; empty: there is no TLS.

        Raises:
            CallerRefused: it has another key.
        """
        known = None if self._nodes is None else self._nodes.by_id(said.sender)
        if not fingerprint or self._nodes is None:
            return
        if known is None:
            if self.secret() and not self._is_proved(said, fingerprint):
                raise CallerRefused(f"node {said.sender} is not known here yet", UNAVAILABLE)
            return
        fault = self.fault_of_key(said.sender, fingerprint)
        if fault is None:
            return
        if self.has_leader() or not self._is_proved(said, fingerprint):
            self._said.log(
                _log, (said.sender, fingerprint), self.monotonic(),
                "a stream from %s is refused: %s", said.address, fault,
            )  # fmt: skip
            raise CallerRefused(fault, DENIED)
        _log.info(
            "node %d has the state of the cluster, and a key that is not known here yet: %s",
            said.sender, short(fingerprint),
        )  # fmt: skip
        self._proved[said.sender] = fingerprint
        link = self._links.get(said.sender)
        if link is not None and not link.connected:
            link.close()
            self._links[said.sender] = PeerLink(self, said.sender, link.address)

    def may_prove(self) -> bool:
        """Return whether no node leads, and this one can prove that it has the cluster's state."""
        return bool(self.fingerprint and self.secret()) and not self.has_leader()

    def _is_proved(self, said: Introduction, fingerprint: bytes) -> bool:
        secret = self.secret()
        return bool(secret) and hmac.compare_digest(proof_of(secret, said, fingerprint), said.proof)

    def key_of(self, node: NodeDescriptor) -> bytes:
        """Return the key that a node has shown when it was called at its address; empty: none."""
        if node.node_id == self._me.sender:
            return self.fingerprint
        link = self._links.get(node.node_id)
        return b"" if link is None or link.address != node.address else link.fingerprint

    # --- the transport of consensus

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` over for delivery, once or not at all."""
        link = self._links.get(to)
        if link is not None:
            link.send(frame)

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Yield the frames that have arrived; those that are not taken stay."""
        return self.unread.take()

    def connected(self, node: NodeId) -> bool:
        """Return whether there is a stream to ``node``. A hint."""
        link = self._links.get(node)
        return link is not None and link.connected

    def connection_error(self, node: NodeId) -> str:
        """Return why there is no stream to ``node``; empty: there is one, or it is not known."""
        link = self._links.get(node)
        return "" if link is None else link.connection_error

    # --- incoming streams

    def sender_of(self, message: bytes) -> Introduction:
        """Return the introduction of a stream's opener. Its address has still to be proved.

        Raises:
            CallerRefused: it is not a node of this cluster, or means another one.
        """
        try:
            said = introductions.decode(message)
        except (msgspec.DecodeError, ValueError) as error:
            raise CallerRefused(f"the first message is malformed ({error})") from error
        if said.version != PROTOCOL_VERSION:
            raise CallerRefused(f"version {said.version} of the protocol, not {PROTOCOL_VERSION}")
        if said.cluster_id != self._me.cluster_id:
            raise CallerRefused("a node of another cluster")
        if said.receiver != self._me.sender:
            raise CallerRefused(f"it means node {said.receiver}, this is node {self._me.sender}")
        if said.sender == self._me.sender:
            raise CallerRefused(f"it says that it is node {said.sender}, which is this one")
        if self._nodes is not None:
            self._check_known(self._nodes, said)
        return said

    def _check_known(self, nodes: Nodes, said: Introduction) -> None:
        known = nodes.by_id(said.sender)
        if known is None:
            if said.sender < nodes.next_node_id:
                raise CallerRefused(
                    f"node {said.sender} has been removed from the cluster for good"
                )
            if self.has_leader():
                raise CallerRefused(f"node {said.sender} is not known here yet", UNAVAILABLE)
        elif known.store_id != said.store_id:
            raise CallerRefused(f"node {said.sender} has another disk")

    def enter(
        self,
        said: Introduction,
        end: Callable[[], None],
        read_on: Callable[[], None],
        fingerprint: bytes = b"",
    ) -> PeerArrival:
        """Take a stream of a node that was found to be ``said``.

        Args:
            said: its introduction.
            end: called if the stream is to end, because it stands still and there is a newer one.
            read_on: called when it may be read again.
            fingerprint: of the key that it has shown, which was checked; empty: there is no TLS.

        Raises:
            CallerRefused: the node has another stream, on which it is heard.
        """
        older = self._arrivals.get(said.sender)
        if older is not None:
            if self.monotonic() - older.heard_at < LIVE_SECONDS:
                raise CallerRefused(f"node {said.sender} has a stream already", UNAVAILABLE)
            older.close()
            older.end()
        arrival = PeerArrival(self, said.sender, end, read_on, fingerprint)
        self._arrivals[said.sender] = arrival
        self.met(said.store_id, said.address, fingerprint)
        return arrival

    def left(self, arrival: PeerArrival) -> None:
        """Forget a stream that has ended."""
        if self._arrivals.get(arrival.sender) is arrival:
            del self._arrivals[arrival.sender]

    def distrust(self, sender: NodeId) -> None:
        """Distrust ``sender``, which sent a malformed frame: its stream ends with the next one."""
        self._distrusted.add(sender)

    def take(self, arrival: PeerArrival, frame: bytes) -> bool:
        """Take a frame, and return whether more may be read.

        Raises:
            CallerRefused: an earlier frame was malformed.
        """
        sender = arrival.sender
        if sender in self._distrusted:
            self._distrusted.discard(sender)
            raise CallerRefused("a frame of it was malformed")
        self.unread.add(sender, frame)
        self.on_frame(sender, frame)
        return self.unread.has_room(sender, arrival.read_on)


def _keys(node: NodeDescriptor) -> tuple[bytes, bytes]:
    return node.fingerprint, node.next_fingerprint
