"""The nodes of a cluster, as a replicated record: who they are, where they are, who is to go.

A node is one *store*: a number that is never given twice, bound for ever to the random store id
that was drawn when its disk was first used. A store that comes to a known address with another id
has lost its disk, and with it its votes and its log; it is a new node, and the one that it replaces
will never come back (Raft paper, section 5.1: what a member must not forget).

::

    AdmitNode ─▶ member ── RetireNode, or replaced at its address ─▶ retired ── ForgetNode ─▶ gone

A node is also one *key*, the public key of its certificate, of which the record has the SHA-256. It
is bound when the node is admitted. Then only the node itself, as long as it has the old key, or an
administrator gives it another one::

    none ── BindKey: what it shows ──▶ bound ── AdmitNode(next_fingerprint) ──▶ bound, next known
    (found without TLS)                 ▲  ▲                                           │
                              RebindNode┘  └────── BindKey: it shows the next one ─────┘

The record says what is wanted. Making the consensus group so is the affair of the leaseholder's
membership service (:mod:`postroom.server.membership`), one member at a time.

A store that was never part of a cluster (embedded) has no such record.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.limits import ADDRESS_CHARACTERS_MAX
from postroom.ranges.requests import Request

NODES_RECORD: Final = "nodes"
SECRET_RECORD: Final = "nodes secret"
STORE_ID_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 32
SECRET_BYTES: Final = 32


class NodeDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """One node.

    Attributes:
        node_id: never given to another store.
        address: where the others reach it, ``host:port``.
        store_id: what its disk knows itself by.
        retired: it is to leave the group for good.
        fingerprint: SHA-256 of its public key; empty: none is bound to it, or there is no TLS.
        next_fingerprint: of the key that it will change to, which counts as well.
    """

    node_id: int
    address: str
    store_id: bytes
    retired: bool = False
    fingerprint: bytes = b""
    next_fingerprint: bytes = b""

    def may_show(self, fingerprint: bytes) -> bool:
        """Whether a key is one of this node's, or none is bound to it."""
        return not self.fingerprint or fingerprint in {self.fingerprint, self.next_fingerprint}


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
Fingerprint = Annotated[
    bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)
]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=ADDRESS_CHARACTERS_MAX)]


class ReadNodes(Request, frozen=True, array_like=True, tag="read_nodes", gc=False):
    """The nodes of the cluster; answers ``Nodes``."""


class AdmitNode(Request, frozen=True, array_like=True, tag="admit_node", gc=False):
    """Makes a store a node of the cluster; answers ``Admitted``. Repeating it changes nothing.

    Attributes:
        node_id: which node the store is, if it has moved to another address; 0: none yet.
        fingerprint: of the key with which it asks; empty: there is no TLS, and nothing is checked.
        next_fingerprint: of the key that it will change to; empty: as before.
        vouched: an administrator wants it to be a node.
    """

    frees_room: ClassVar[bool] = True

    store_id: StoreId
    address: Address
    node_id: int = 0
    fingerprint: bytes = b""
    next_fingerprint: bytes = b""
    vouched: bool = False


class RetireNode(Request, frozen=True, array_like=True, tag="retire_node", gc=False):
    """Has a node leave for good; answers ``Nodes``. Repeating it changes nothing, also when the
    node has left.
    """

    frees_room: ClassVar[bool] = True

    node_id: int


class RebindNode(Request, frozen=True, array_like=True, tag="rebind_node", gc=False):
    """Gives a node another key; answers ``Nodes``.

    Attributes:
        fingerprint: SHA-256 of the new public key.
    """

    frees_room: ClassVar[bool] = True

    node_id: int
    fingerprint: Fingerprint


class BindKey(Request, frozen=True, array_like=True, tag="bind_key", gc=False):
    """A node has shown a key; answers ``Nodes``. For the leaseholder's node.

    It is bound if the node has none, or has announced it as its next one; else nothing changes.

    Attributes:
        secret: becomes the cluster's, if it has none yet.
    """

    frees_room: ClassVar[bool] = True

    node_id: int
    fingerprint: Fingerprint
    secret: bytes = b""


class ForgetNode(Request, frozen=True, array_like=True, tag="forget_node", gc=False):
    """A retired node has left the group: its descriptor goes. For the membership service."""

    frees_room: ClassVar[bool] = True

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


def secret_key(range_id: int) -> bytes:
    """Where the cluster's secret is: who knows it has been given the state of the cluster."""
    return keys.record_key(range_id, SECRET_RECORD)


def founding_writes(range_id: int, nodes: Nodes, secret: bytes = b"") -> WriteSet:
    """What each founder stores before its replica is opened for the first time."""
    writes: WriteSet = {nodes_key(range_id): msgspec.msgpack.encode(nodes)}
    if secret:
        writes[secret_key(range_id)] = secret
    return writes


def short(fingerprint: bytes) -> str:
    """A fingerprint, as people compare it."""
    return f"sha256:{fingerprint.hex()[:16]}..." if fingerprint else "no key"


def wrong_key(node: NodeDescriptor, fingerprint: bytes) -> str:
    """What is said of who shows another key than the node that it wants to be."""
    return (
        f"node {node.node_id} has the key {short(node.fingerprint)}, not {short(fingerprint)}; "
        "nothing was done: give it back its old key, or, if this is its new one, run 'postroom "
        f"rebind-node {node.node_id}' as administrator"
    )


# --- what a node says of itself -------------------------------------------------------------------


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a leader knows of a member.

    Attributes:
        match_index: up to which entry their logs agree.
        silent_seconds: since when nothing was heard of it.
        installing: whether it is being sent a snapshot.
        link_error: why there is no connection to it, for people; empty: there is one, or none is
            known.
    """

    node_id: int
    match_index: int
    silent_seconds: float
    installing: bool
    link_error: str = ""


class ServiceStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a service of the leaseholder is doing.

    Attributes:
        name: dispatcher, executor, collector, feed or membership.
        running: false while it pauses after a failure; and on a node that does not serve.
        failures: how often it has failed under this lease, until it was sound for a minute.
        trouble: why it failed last.
        note: what somebody should know who looks for what stands still.
    """

    name: str
    running: bool
    failures: int = 0
    trouble: str = ""
    note: str = ""


class StorageStatus(msgspec.Struct, frozen=True, array_like=True):
    """What a node's storage takes: files, and memory.

    Attributes:
        engine: ``leveldb``, ``rocksdb`` or ``memory``.
        tables: how many table files there are.
        tables_open_max: so many stay open; any further ones are opened anew for each look-up.
        memory_bytes: the budget of memory.
        own_bytes: the process's own memory; 0: its system does not tell.
        mapped_bytes: that of files that are mapped into it, which nobody misses.
    """

    engine: str = "memory"
    tables: int = 0
    tables_open_max: int = 0
    memory_bytes: int = 0
    own_bytes: int = 0
    mapped_bytes: int = 0


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
        version: of Postroom.
        storage: what its storage takes.
        certificate: that one of its certificates expires soon, or has; empty: none does.
        refused: why it refuses writes: its device has hardly any room; empty: it does not.
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
    version: str = ""
    storage: StorageStatus = StorageStatus()
    certificate: str = ""
    refused: str = ""


__all__: list[Any] = [
    "AdmitNode",
    "Admitted",
    "BindKey",
    "ForgetNode",
    "NodeDescriptor",
    "NodeStatus",
    "Nodes",
    "PeerStatus",
    "ReadNodes",
    "RebindNode",
    "RetireNode",
    "ServiceStatus",
    "StorageStatus",
    "decode",
    "founding_writes",
    "nodes_key",
    "secret_key",
    "short",
    "wrong_key",
]  # fmt: skip
