"""The evaluators of the requests about the nodes of a cluster (:mod:`postroom.ranges.nodes`).

A new store is let in if an administrator vouches for it. It is also let in if it has the key of the
node at its address, which has then lost its disk. Without TLS nobody can prove anything, and all
are let in.
"""

from __future__ import annotations

import msgspec

from postroom.errors import AccessDenied, Invalid
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.nodes import (
    FINGERPRINT_BYTES,
    AdmitNode,
    Admitted,
    BindKey,
    ForgetNode,
    NodeDescriptor,
    Nodes,
    ReadNodes,
    RebindNode,
    RetireNode,
    decode,
    nodes_key,
    secret_key,
    short,
    wrong_key,
)
from postroom.ranges.registry import Registry


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
