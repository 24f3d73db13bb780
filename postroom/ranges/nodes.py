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

A new store is let in if an administrator vouches for it. It is also let in if it has the key of the
node at its address, which has then lost its disk. Without TLS nobody can prove anything, and all
are let in.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from postroom.errors import AccessDenied, Invalid
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.limits import ADDRESS_CHARACTERS_MAX, DESCRIPTION_STEPS
from postroom.ranges.contract import Command, ConcernsNode, ConcernsRoot, Maintenance, Read, Role
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.rights import Verb

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
    verbs: ClassVar = (Verb.READ,)
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
    verbs: ClassVar = (Verb.ADMIN,)
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
    verbs: ClassVar = (Verb.ADMIN,)
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


# --- the facts that a node tells ------------------------------------------------------------------


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
        ranges: the number of ranges of which it has a replica.
        led_ranges: the number of those that it leads.
        store_id: the id of the store: that of its cluster, which all nodes have alike.
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
    ranges: int = 1
    led_ranges: int = 0
    store_id: bytes = b""


class DescribeNode(ConcernsNode, Read, frozen=True, tag="describe_node"):
    """A request for a node's description of itself, by any node."""

    answer: ClassVar = NodeStatus
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    steps: ClassVar = DESCRIPTION_STEPS


class NodeRecords:
    """The evaluators of the requests about nodes."""

    def __init__(self, range_id: int) -> None:
        self._key = nodes_key(range_id)
        self._secret_key = secret_key(range_id)

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.reads[ReadNodes] = self._read
        registry.commands[AdmitNode] = self._admit
        registry.commands[RetireNode] = self._retire
        registry.commands[RebindNode] = self._rebind
        registry.commands[BindKey] = self._bind
        registry.commands[ForgetNode] = self._forget

    def _read(self, view: View, _: ReadNodes) -> Nodes:
        return _present(decode(view.get(self._key)))

    def _admit(self, ctx: Evaluation, request: AdmitNode) -> Admitted:
        nodes = _present(decode(ctx.get(self._key)))
        known = nodes.by_store(request.store_id)
        # A node that is retired, and still in the record, may have to be found for its vote.
        if known is None and request.node_id:
            raise Invalid(
                f"node {request.node_id} has been removed for good; nothing was changed: wipe its "
                "data folder to let it join as a new node"
            )
        others = [node for node in nodes.nodes if node is not known]
        if known is None:
            _check_vouched(others, request)
            wanted = NodeDescriptor(
                nodes.next_node_id, request.address, request.store_id,
                fingerprint=request.fingerprint,
            )  # fmt: skip
            others = [_without_address(node, request.address) for node in others]
        else:
            wanted = _told(known, request)
            if wanted == known:
                return Admitted(known.node_id, nodes)
        nodes = Nodes(
            nodes.cluster_id,
            max(nodes.next_node_id, wanted.node_id + 1),
            tuple(sorted((*others, wanted), key=lambda node: node.node_id)),
        )
        self._write(ctx, nodes)
        return Admitted(wanted.node_id, nodes)

    def _retire(self, ctx: Evaluation, request: RetireNode) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        if 0 < request.node_id < nodes.next_node_id and nodes.by_id(request.node_id) is None:
            return nodes  # it has left: the request is repeated, or somebody else was faster
        leaving = _named(nodes, request.node_id)
        if leaving.retired:
            return nodes  # the request is repeated until the node is gone: no entry each time
        staying = [n for n in nodes.nodes if not n.retired and n.node_id != request.node_id]
        if not staying:
            raise Invalid(
                f"node {request.node_id} is the last one; nothing was changed: a cluster needs one"
            )
        return self._replace(ctx, nodes, msgspec.structs.replace(leaving, retired=True))

    def _rebind(self, ctx: Evaluation, request: RebindNode) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        node = _named(nodes, request.node_id)
        bound = msgspec.structs.replace(node, fingerprint=request.fingerprint, next_fingerprint=b"")
        return self._replace(ctx, nodes, bound)

    def _bind(self, ctx: Evaluation, request: BindKey) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        if request.secret and ctx.get(self._secret_key) is None:
            ctx.writes[self._secret_key] = request.secret
        node = nodes.by_id(request.node_id)
        if node is None or (node.fingerprint and request.fingerprint != node.next_fingerprint):
            return nodes
        bound = msgspec.structs.replace(node, fingerprint=request.fingerprint, next_fingerprint=b"")
        return self._replace(ctx, nodes, bound)

    def _forget(self, ctx: Evaluation, request: ForgetNode) -> Nodes:
        nodes = _present(decode(ctx.get(self._key)))
        staying = tuple(
            node for node in nodes.nodes if node.node_id != request.node_id or not node.retired
        )
        nodes = msgspec.structs.replace(nodes, nodes=staying)
        self._write(ctx, nodes)
        return nodes

    def _replace(self, ctx: Evaluation, nodes: Nodes, changed: NodeDescriptor) -> Nodes:
        """Put ``changed`` in the place of the node of its number."""
        all_nodes = tuple(
            changed if node.node_id == changed.node_id else node for node in nodes.nodes
        )
        nodes = msgspec.structs.replace(nodes, nodes=all_nodes)
        self._write(ctx, nodes)
        return nodes

    def _write(self, ctx: Evaluation, nodes: Nodes) -> None:
        ctx.writes[self._key] = msgspec.msgpack.encode(nodes)


def _check_vouched(others: list[NodeDescriptor], request: AdmitNode) -> None:
    """Refuse a new store, unless somebody wants it who may want that."""
    if not request.fingerprint or request.vouched:
        return
    for node in others:
        # Unbound, it proves nothing; retired, an administrator has sent it away.
        is_it = node.address == request.address and node.fingerprint and not node.retired
        if is_it and node.may_show(request.fingerprint):
            return
    raise AccessDenied(
        f"the store at {request.address}, with the key {short(request.fingerprint)}, is no node of "
        'this cluster; nothing was changed: an administrator must vouch for it, with an "admin" '
        "token in its --token-file, or with its certificate's common name as admin in the "
        "--role-file of the nodes"
    )


def _told(known: NodeDescriptor, request: AdmitNode) -> NodeDescriptor:
    """Return a known node as it is after what it says of itself."""
    told = msgspec.structs.replace(known, address=request.address)
    shown, following = request.fingerprint, request.next_fingerprint
    if not shown:
        return told
    if not known.may_show(shown):
        raise AccessDenied(wrong_key(known, shown))
    if shown != known.fingerprint:  # the first one, or the next
        told = msgspec.structs.replace(told, fingerprint=shown, next_fingerprint=b"")
    if len(following) == FINGERPRINT_BYTES:
        following = b"" if following == shown else following  # it stays as it is
        told = msgspec.structs.replace(told, next_fingerprint=following)
    return told


def _without_address(node: NodeDescriptor, taken: str) -> NodeDescriptor:
    """Retire the node that had the address of a new store: it has lost its disk."""
    return msgspec.structs.replace(node, retired=True) if node.address == taken else node


def _present(nodes: Nodes | None) -> Nodes:
    if nodes is None:
        raise Invalid("this store is not part of a cluster; nothing was changed")
    return nodes


def _named(nodes: Nodes, node_id: int) -> NodeDescriptor:
    node = nodes.by_id(node_id)
    if node is None:
        known = ", ".join(str(each.node_id) for each in nodes.nodes)
        raise Invalid(f"there is no node {node_id}; nothing was changed: the nodes are {known}")
    return node
