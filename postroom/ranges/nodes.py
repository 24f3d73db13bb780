"""The nodes of a cluster, as a replicated record: who they are, where they are, who is to go.

A node is one *store*: a number that is never given twice, bound for ever to the random store id
that was drawn when its disk was first used. Whoever comes to a known address with another store id
has lost its disk, and with it its votes and its log; it is a new node, and the one that it replaces
will never come back (Raft paper, section 5.1: what a member must not forget).

::

    AdmitNode ─▶ member ── RetireNode, or replaced at its address ─▶ retired ── ForgetNode ─▶ gone

The record says what is wanted. Making the consensus group so is the affair of the leaseholder's
membership service (:mod:`postroom.server.membership`), one member at a time.

A store that was never part of a cluster (embedded) has no such record.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.registry import Registry
from postroom.ranges.requests import Request

NODES_RECORD: Final = "nodes"
STORE_ID_BYTES: Final = 16
ADDRESS_CHARACTERS_MAX: Final = 255


class NodeDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """One node.

    Attributes:
        node_id: never given to another store.
        address: where the others reach it, ``host:port``.
        store_id: what its disk knows itself by.
        retired: it is to leave the group for good.
    """

    node_id: int
    address: str
    store_id: bytes
    retired: bool = False


class Nodes(msgspec.Struct, frozen=True, array_like=True):
    """The record: the cluster's name, the next free number, and all nodes in order of numbers."""

    cluster_id: bytes
    next_node_id: int
    nodes: tuple[NodeDescriptor, ...]

    def by_store(self, store_id: bytes) -> NodeDescriptor | None:
        """The node that a disk is."""
        return next((node for node in self.nodes if node.store_id == store_id), None)

    def by_id(self, node_id: int) -> NodeDescriptor | None:
        """The node of a number."""
        return next((node for node in self.nodes if node.node_id == node_id), None)


# --- requests -------------------------------------------------------------------------------------

StoreId = Annotated[bytes, msgspec.Meta(min_length=STORE_ID_BYTES, max_length=STORE_ID_BYTES)]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=ADDRESS_CHARACTERS_MAX)]


class ReadNodes(Request, frozen=True, array_like=True, tag="read_nodes", gc=False):
    """The nodes of the cluster; answers ``Nodes``."""


class AdmitNode(Request, frozen=True, array_like=True, tag="admit_node", gc=False):
    """Makes a store a node of the cluster; answers ``Admitted``. Repeating it changes nothing.

    Attributes:
        node_id: which node the store is, if it has moved to another address; 0: none yet.
    """

    store_id: StoreId
    address: Address
    node_id: int = 0


class RetireNode(Request, frozen=True, array_like=True, tag="retire_node", gc=False):
    """Has a node leave for good; answers ``Nodes``."""

    node_id: int


class ForgetNode(Request, frozen=True, array_like=True, tag="forget_node", gc=False):
    """A retired node has left the group: its descriptor goes. For the membership service."""

    node_id: int


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """Answers ``AdmitNode``: who the store is from now on, and who the others are."""

    node_id: int
    nodes: Nodes


# --- the record ---------------------------------------------------------------------------------

_decoder = msgspec.msgpack.Decoder(Nodes)


def decode(stored: bytes | None) -> Nodes | None:
    """From the record; ``None`` if there is none."""
    return None if stored is None else _decoder.decode(stored)


def nodes_key(range_id: int) -> bytes:
    """Where the record is."""
    return keys.record_key(range_id, NODES_RECORD)


def founding_writes(range_id: int, nodes: Nodes) -> WriteSet:
    """What each founder stores before its replica is opened for the first time."""
    return {nodes_key(range_id): msgspec.msgpack.encode(nodes)}


class NodeRecords:
    """Evaluates the requests."""

    def __init__(self, range_id: int) -> None:
        self._key = nodes_key(range_id)

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.reads[ReadNodes] = self._read
        registry.commands[AdmitNode] = self._admit
        registry.commands[RetireNode] = self._retire
        registry.commands[ForgetNode] = self._forget

    def _read(self, view: View, _: ReadNodes) -> Nodes:
        return _present(decode(view.get(self._key)))

    def _admit(self, ctx: Evaluation, request: AdmitNode) -> Admitted:
        nodes = _present(decode(ctx.get(self._key)))
        known = nodes.by_store(request.store_id)
        # Who is retired, and still in the record, may have to be found: for its vote.
        if known is None and request.node_id:
            raise Invalid(
                f"node {request.node_id} has been removed for good; nothing was changed: wipe its "
                "data folder to let it join as a new node"
            )
        others = [node for node in nodes.nodes if node is not known]
        if known is None:
            known = NodeDescriptor(nodes.next_node_id, request.address, request.store_id)
            others = [_without_address(node, request.address) for node in others]
        elif known.address == request.address:
            return Admitted(known.node_id, nodes)
        moved = msgspec.structs.replace(known, address=request.address)
        nodes = Nodes(
            nodes.cluster_id,
            max(nodes.next_node_id, known.node_id + 1),
            tuple(sorted((*others, moved), key=lambda node: node.node_id)),
        )
        self._write(ctx, nodes)
        return Admitted(known.node_id, nodes)

    def _retire(self, ctx: Evaluation, request: RetireNode) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        leaving = nodes.by_id(request.node_id)
        if leaving is None:
            known = ", ".join(str(node.node_id) for node in nodes.nodes)
            raise Invalid(
                f"there is no node {request.node_id}; nothing was changed: the nodes are {known}"
            )
        staying = [n for n in nodes.nodes if not n.retired and n.node_id != request.node_id]
        if not staying:
            raise Invalid(
                f"node {request.node_id} is the last one; nothing was changed: a cluster needs one"
            )
        changed = tuple(
            msgspec.structs.replace(node, retired=True) if node is leaving else node
            for node in nodes.nodes
        )
        nodes = msgspec.structs.replace(nodes, nodes=changed)
        self._write(ctx, nodes)
        return nodes

    def _forget(self, ctx: Evaluation, request: ForgetNode) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        staying = tuple(
            node for node in nodes.nodes if node.node_id != request.node_id or not node.retired
        )
        nodes = msgspec.structs.replace(nodes, nodes=staying)
        self._write(ctx, nodes)
        return nodes

    def _write(self, ctx: Evaluation, nodes: Nodes) -> None:
        ctx.writes[self._key] = msgspec.msgpack.encode(nodes)


def _without_address(node: NodeDescriptor, taken: str) -> NodeDescriptor:
    """Who had the address that a new store has now has lost its disk, and is to go."""
    return msgspec.structs.replace(node, retired=True) if node.address == taken else node


def _present(nodes: Nodes | None) -> Nodes:
    if nodes is None:
        raise Invalid("this store is not part of a cluster; nothing was changed")
    return nodes


# --- what a node says of itself -------------------------------------------------------------------


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a leader knows of a member.

    Attributes:
        match_index: up to which entry their logs agree.
        silent_seconds: since when nothing was heard of it.
        installing: whether it is being sent a snapshot.
    """

    node_id: int
    match_index: int
    silent_seconds: float
    installing: bool


class ServiceStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a service of the leaseholder is doing.

    Attributes:
        name: dispatcher, executor, collector, feed or membership.
        running: false while it pauses after a failure; and on a node that does not serve.
        failures: how often it has failed under this lease, until it was sound for a minute.
        trouble: why it failed last.
    """

    name: str
    running: bool
    failures: int = 0
    trouble: str = ""


class NodeStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself, without asking anybody.

    Attributes:
        role: ``leader``, ``follower``, ``learner`` (not a voter yet) or ``outsider`` (no member).
        leader: who leads, as far as it knows; 0: nobody.
        serves: whether it holds the lease.
        peers: what it knows of the others, if it leads.
        clock_offset_seconds: how far its wall clock is ahead of those of most others.
        damage: what cannot be read on its disk; empty: nothing that it knows of.
        services: those of the leaseholder, if it is that.
    """

    node_id: int
    address: str
    role: str
    leader: int
    term: int
    applied_index: int
    last_index: int
    serves: bool
    peers: tuple[PeerStatus, ...]
    disk_bytes: int
    free_bytes: int
    clock_offset_seconds: float
    damage: str = ""
    services: tuple[ServiceStatus, ...] = ()


__all__: list[Any] = [
    "AdmitNode",
    "Admitted",
    "ForgetNode",
    "NodeDescriptor",
    "NodeRecords",
    "NodeStatus",
    "Nodes",
    "PeerStatus",
    "ReadNodes",
    "RetireNode",
    "ServiceStatus",
    "decode",
    "founding_writes",
    "nodes_key",
]  # fmt: skip
