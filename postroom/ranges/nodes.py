"""The nodes of a cluster, as a replicated record: names, addresses, and which are to leave.

A node is one *store*: a number that is never given twice, bound for ever to the random store id
that was drawn when its disk was first used. A store that comes to a known address with another id
has lost its disk, and with it its votes and its log. It is a new node, and the one that it replaces
never comes back (Raft paper, section 5.1).

::

    AdmitNode ─▶ member ── RetireNode, or replaced at its address ─▶ retired ── ForgetNode ─▶ gone

A node is also one *key*, the public key of its certificate, of which the record has the SHA-256. It
is bound when the node is admitted. Then only the node itself, as long as it has the old key, or an
administrator gives it another one::

    none ── BindKey: what it shows ──▶ bound ── AdmitNode(next_fingerprint) ──▶ bound, next known
    (without TLS)                       ▲  ▲                                           │
                              RebindNode┘  └────── BindKey: it shows the next one ─────┘

The record says what is wanted. The leaseholder's membership service
(:mod:`postroom.server.membership`) changes the consensus group accordingly, one member at a time.

A store that was never part of a cluster (embedded) has no such record.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.limits import ADDRESS_CHARACTERS_MAX, DESCRIPTION_STEPS
from postroom.ranges.contract import Command, ConcernsNode, ConcernsRoot, Maintenance, Read, Role

NODES_RECORD: Final = "nodes"
SECRET_RECORD: Final = "nodes secret"
STORE_ID_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 32
SECRET_BYTES: Final = 32


class NodeDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """One node.

    Attributes:
        node_id: its number, which is never given to another store.
        address: the address at which the others reach it, ``host:port``.
        store_id: the id that is stored on its disk.
        retired: whether it is to leave the group for good.
        fingerprint: the SHA-256 of its public key; empty: none is bound to it, or there is no TLS.
        next_fingerprint: the SHA-256 of the key that it will change to, which counts as well.
    """

    node_id: int
    address: str
    store_id: bytes
    retired: bool = False
    fingerprint: bytes = b""
    next_fingerprint: bytes = b""

    def may_show(self, fingerprint: bytes) -> bool:
        """Return whether a key is one of this node's, or none is bound to it."""
        return not self.fingerprint or fingerprint in {self.fingerprint, self.next_fingerprint}


class Nodes(msgspec.Struct, frozen=True, array_like=True):
    """The record: the cluster's name, the next free number, and all nodes in order of numbers."""

    cluster_id: bytes
    next_node_id: int
    nodes: tuple[NodeDescriptor, ...]

    def by_store(self, store_id: bytes) -> NodeDescriptor | None:
        """Return the node of a store id, or ``None``."""
        return next((node for node in self.nodes if node.store_id == store_id), None)

    def by_id(self, node_id: int) -> NodeDescriptor | None:
        """Return the node of a number, or ``None``."""
        return next((node for node in self.nodes if node.node_id == node_id), None)


# --- requests -------------------------------------------------------------------------------------

StoreId = Annotated[bytes, msgspec.Meta(min_length=STORE_ID_BYTES, max_length=STORE_ID_BYTES)]
Fingerprint = Annotated[
    bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)
]
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=ADDRESS_CHARACTERS_MAX)]


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """The answer of ``AdmitNode``: the store's number, and all nodes."""

    node_id: int
    nodes: Nodes


class ReadNodes(ConcernsRoot, Read, frozen=True, tag="read_nodes"):
    """A request for the nodes of the cluster."""

    answer: ClassVar = Nodes
    since: ClassVar = 1
    is_served_in_restore: ClassVar = True


class AdmitNode(ConcernsRoot, Maintenance, frozen=True, tag="admit_node"):
    """A request to make a store a node of the cluster. Repeating it changes nothing.

    Attributes:
        node_id: the number of the store, if it has moved to another address; 0: it has none yet.
        fingerprint: the SHA-256 of the key with which it asks; empty: there is no TLS, and nothing
            is checked.
        next_fingerprint: the SHA-256 of the key that it will change to; empty: it stays.
        vouched: whether an administrator wants it to be a node.
    """

    answer: ClassVar = Admitted
    since: ClassVar = 1
    frees_room: ClassVar = True

    store_id: StoreId
    address: Address
    node_id: int = 0
    fingerprint: bytes = b""
    next_fingerprint: bytes = b""
    vouched: bool = False


class RetireNode(ConcernsRoot, Command, frozen=True, tag="retire_node"):
    """A request that a node leaves for good.

    Repeating it changes nothing, also when the node has left.
    """

    answer: ClassVar = Nodes
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN
    may_end_unknown: ClassVar = True
    frees_room: ClassVar = True

    node_id: int


class RebindNode(ConcernsRoot, Command, frozen=True, tag="rebind_node"):
    """A request to give a node another key.

    Attributes:
        fingerprint: SHA-256 of the new public key.
    """

    answer: ClassVar = Nodes
    since: ClassVar = 1
    role: ClassVar = Role.ADMIN
    may_end_unknown: ClassVar = True
    frees_room: ClassVar = True

    node_id: int
    fingerprint: Fingerprint


class BindKey(ConcernsRoot, Maintenance, frozen=True, tag="bind_key"):
    """A request of the leaseholder's node to bind a key that a node has shown.

    It is bound if the node has none, or has announced it as its next one. Otherwise nothing
    changes.

    Attributes:
        secret: becomes the cluster's, if it has none yet.
    """

    answer: ClassVar = Nodes
    since: ClassVar = 1
    frees_room: ClassVar = True

    node_id: int
    fingerprint: Fingerprint
    secret: bytes = b""


class ForgetNode(ConcernsRoot, Maintenance, frozen=True, tag="forget_node"):
    """A request of the membership service to remove a retired node that has left the group."""

    answer: ClassVar = None
    since: ClassVar = 1
    frees_room: ClassVar = True

    node_id: int


# --- the record ---------------------------------------------------------------------------------

_decoder = msgspec.msgpack.Decoder(Nodes)


def decode(stored: bytes | None) -> Nodes | None:
    """Decode the record; ``None`` if there is none."""
    return None if stored is None else _decoder.decode(stored)


def nodes_key(range_id: int) -> bytes:
    """Return the engine key of the record."""
    return keys.record_key(range_id, NODES_RECORD)


def secret_key(range_id: int) -> bytes:
    """Return the engine key of the cluster's secret, which proves that a node has its state."""
    return keys.record_key(range_id, SECRET_RECORD)


def founding_writes(range_id: int, nodes: Nodes, secret: bytes = b"") -> WriteSet:
    """Return what each founder stores before its replica is opened for the first time."""
    writes: WriteSet = {nodes_key(range_id): msgspec.msgpack.encode(nodes)}
    if secret:
        writes[secret_key(range_id)] = secret
    return writes


def short(fingerprint: bytes) -> str:
    """Return a fingerprint in the form that people compare."""
    return f"sha256:{fingerprint.hex()[:16]}..." if fingerprint else "no key"


def wrong_key(node: NodeDescriptor, fingerprint: bytes) -> str:
    """Return the message for a node that shows another key than its own."""
    return (
        f"node {node.node_id} has the key {short(node.fingerprint)}, not {short(fingerprint)}; "
        "nothing was done: give it back its old key, or, if this is its new one, run 'postroom "
        f"rebind-node {node.node_id}' as administrator"
    )


# --- what a node says of itself -------------------------------------------------------------------


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    """The state of a member, as far as the leader knows.

    Attributes:
        match_index: the last entry up to which their logs agree.
        silent_seconds: the time since it was heard last.
        installing: whether it is being sent a snapshot.
        link_error: the reason why there is no connection to it; empty: there is one, or no reason
            is known.
    """

    node_id: int
    match_index: int
    silent_seconds: float
    installing: bool
    link_error: str = ""


class ServiceStatus(msgspec.Struct, frozen=True, array_like=True):
    """The state of a service of the leaseholder.

    Attributes:
        name: dispatcher, executor, collector, feed or membership.
        running: whether it runs: not while it pauses after a failure, or its node does not serve.
        failures: the number of its failures under this lease, until it was sound for a minute.
        trouble: the reason of its last failure.
        note: a hint for people who look for the reason of a standstill.
    """

    name: str
    running: bool
    failures: int = 0
    trouble: str = ""
    note: str = ""


class StorageStatus(msgspec.Struct, frozen=True, array_like=True):
    """The files and the memory of a node's storage.

    Attributes:
        engine: ``leveldb``, ``rocksdb`` or ``memory``.
        tables: the number of table files.
        tables_open_max: the number of them that stay open; others are opened for each look-up.
        memory_bytes: the budget of memory.
        own_bytes: the process's own memory; 0: its system does not tell.
        mapped_bytes: the memory of files that are mapped into it, which the system can take back.
    """

    engine: str = "memory"
    tables: int = 0
    tables_open_max: int = 0
    memory_bytes: int = 0
    own_bytes: int = 0
    mapped_bytes: int = 0


class NodeStatus(msgspec.Struct, frozen=True, array_like=True):
    """The description of a node by itself, without asking another one.

    Attributes:
        role: ``leader``, ``follower``, ``learner`` (not a voter yet) or ``outsider`` (no member).
        leader: the number of the leader, as far as it knows; 0: there is none.
        serves: whether it holds the lease.
        peers: the states of the others, if it leads.
        clock_offset_seconds: the time by which its wall clock is ahead of most others.
        damage: the files on its disk that cannot be read; empty: it knows of none.
        services: the services of the leaseholder, if it is that.
        version: the version of Postroom.
        storage: the files and memory of its storage.
        certificate: a warning that one of its certificates expires soon, or has; empty: none does.
        refused: the reason why it refuses writes; empty: it does not.
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


class DescribeNode(ConcernsNode, Read, frozen=True, tag="describe_node"):
    """A request for a node's description of itself, by any node."""

    answer: ClassVar = NodeStatus
    since: ClassVar = 1
    steps: ClassVar = DESCRIPTION_STEPS


__all__: list[Any] = [
    "AdmitNode",
    "Admitted",
    "BindKey",
    "DescribeNode",
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
