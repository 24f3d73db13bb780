"""The way of a fresh disk to a node: it founds a cluster with others, or joins one that exists.

Every node is started with the same list of the first nodes' addresses. A disk that belongs to no
cluster yet asks all of them who they are, again and again, until one of three conditions holds:

::

    a node is in a cluster that knows this very disk ──────────▶ become that node
    a node is in a cluster that does not ──────────────────────▶ ask to be admitted, then as above
    all are fresh, give the same list, and this is the least
    address on it ─────────────────────────────────────────────▶ found, and tell all that ask

A cluster is *founded* on one disk alone: the founder's, which has the record of the nodes and the
first state, durably, before another node hears of it. The others have nothing until the founder
leads and sends them a snapshot. There is thus one first state, which is made only once.

Invariants:

* A disk is known by the ``store_id`` that was drawn when it was first used, not by its address.
  A node that comes back with another one has lost its disk and is a new node
  (:mod:`postroom.ranges.nodes`).
* A disk becomes one node, once: the record of its id is written before it acts as that node.
* A crash at any moment of this is harmless: a durable step is asked for, or told, again.

This is plain synchronous code: :mod:`.serving`, or a simulation, sends the questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Engine, WriteSet
from postroom.kv.marker import FORMAT_VERSION
from postroom.limits import JOIN_ADDRESSES_MAX, VOTERS_MAX
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import (
    NodeDescriptor,
    Nodes,
    StoreId,
    decode,
    founding_writes,
    nodes_key,
    secret_key,
)
from postroom.ranges.state import APPLIED_RECORD, AppliedRecord
from postroom.server.opening import STORE_KEY, StoreRecord, read_store

IDENTITY_KEY: Final = keys.store_key("identity")
KNOWN_NODES_KEY: Final = keys.store_key("known nodes")
"""The key of the other nodes when this disk became a node, until its first snapshot tells."""

FIRST_INDEX: Final = 1
"""The entry that the founder's state counts as: other members can only get it by a snapshot."""

Address = Annotated[str, msgspec.Meta(max_length=255)]


class DiskIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a disk."""

    store_id: bytes


class SelfDescription(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a node about itself.

    Attributes:
        store_id: its disk's.
        first_addresses: the list that it was started with, sorted; while it is fresh.
        nodes: the cluster that it is in; ``None``: it is fresh.
    """

    store_id: StoreId
    first_addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=JOIN_ADDRESSES_MAX)]
    nodes: Nodes | None


# --- decisions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitDecision:
    """The decision to wait, for a ``reason`` that is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The decision to make a new cluster of ``nodes``, as its first one."""

    nodes: Nodes


@dataclass(frozen=True, slots=True)
class Become:
    """The decision to be ``node_id`` of the cluster ``nodes``."""

    node_id: int
    nodes: Nodes


@dataclass(frozen=True, slots=True)
class Join:
    """The decision to ask the nodes at ``addresses``, one after the other, to be admitted."""

    addresses: tuple[str, ...]


Decision: TypeAlias = WaitDecision | FoundCluster | Become | Join


def decide(
    address: str,
    store_id: bytes,
    first_addresses: Sequence[str],
    heard: Mapping[str, SelfDescription],
    cluster_id: bytes,
    connection_errors: Mapping[str, str] | None = None,
) -> Decision:
    """Return the next step of a fresh disk.

    Args:
        address: the address at which this node is reached.
        store_id: its disk's.
        first_addresses: the list that it was started with.
        heard: the latest answers of the nodes at other addresses.
        cluster_id: the name of a new cluster, if this node founds one; 16 random bytes.
        connection_errors: why others have not answered, for people.
    """
    clusters = [hello.nodes for hello in heard.values() if hello.nodes is not None]
    if clusters:
        return _existing(address, store_id, clusters)
    expected = tuple(sorted(set(first_addresses)))
    if address not in expected:
        return WaitDecision(
            _why_not_joined(address, store_id, expected, heard, connection_errors or {})
        )
    reason = _why_not_found(address, expected, heard, connection_errors or {})
    if reason:
        return WaitDecision(reason)
    others = [each for each in expected if each != address]
    stores = {**{each: heard[each].store_id for each in others}, address: store_id}
    if len(set(stores.values())) < len(stores):
        return WaitDecision("two of the first addresses lead to the same node")
    founders = [
        NodeDescriptor(number, each, stores[each]) for number, each in enumerate(expected, 1)
    ]
    return FoundCluster(Nodes(cluster_id, len(founders) + 1, tuple(founders)))


def _why_not_joined(
    address: str,
    store_id: bytes,
    expected: tuple[str, ...],
    heard: Mapping[str, SelfDescription],
    connection_errors: Mapping[str, str],
) -> str:
    """Return why this node, which is not to found a cluster, has found none at ``expected``."""
    for each in expected:
        if each in heard and heard[each].store_id == store_id:
            return (
                f"{each} leads to this node itself, whose address {address} is not in its --join "
                f"list: start it with --advertise {each}"
            )
    fresh = dict.fromkeys(heard, "in no cluster yet")
    asked = _with_words(expected, {**connection_errors, **fresh})
    return (
        f"no cluster found at {asked}; this node's address "
        f"{address} is not in its --join list: if it is one of them, say so with --advertise"
    )


def _with_words(addresses: Iterable[str], words: Mapping[str, str]) -> str:
    return ", ".join(f"{a} ({words[a]})" if a in words else a for a in addresses)


def _why_not_found(
    address: str,
    expected: tuple[str, ...],
    heard: Mapping[str, SelfDescription],
    connection_errors: Mapping[str, str],
) -> str | None:
    """Return why this node cannot found a cluster with those at ``expected``, or ``None``."""
    others = [each for each in expected if each != address]
    silent = [each for each in others if each not in heard]
    if silent:
        waited_for = _with_words(silent, connection_errors)
        return f"waiting for {waited_for} to be started with the same --join list"
    for each in others:
        theirs = heard[each].first_addresses
        if theirs != expected:
            return (
                f"{each} was started with --join {','.join(theirs)}, this node with "
                f"{','.join(expected)}: start the first nodes with the same list"
            )
    return None if address == expected[0] else f"waiting for {expected[0]} to found the cluster"


def _existing(address: str, store_id: bytes, clusters: list[Nodes]) -> Decision:
    names = {nodes.cluster_id for nodes in clusters}
    if len(names) > 1:
        raise Invalid(
            "the addresses given by --join lead to nodes of different clusters; nothing was "
            "changed: name nodes of one of them"
        )
    newest = max(clusters, key=lambda nodes: nodes.next_node_id)
    for nodes in clusters:
        mine = nodes.by_store(store_id)
        if mine is not None and mine.address == address and not mine.retired:
            return Become(mine.node_id, nodes)
    return Join(tuple(node.address for node in newest.nodes if not node.retired))


# --- the records of a disk ------------------------------------------------------------------------

_identity = msgspec.msgpack.Decoder(DiskIdentity)
_encode = msgspec.msgpack.encode


def read_identity(engine: Engine) -> DiskIdentity | None:
    """Return the identity of the disk; ``None``: it was never used for a cluster."""
    stored = engine.get(IDENTITY_KEY)
    return None if stored is None else _identity.decode(stored)


def identity_writes(store_id: bytes) -> WriteSet:
    """Return the writes that prepare a disk for a cluster."""
    return {IDENTITY_KEY: _encode(DiskIdentity(store_id))}


def become_writes(node_id: int, nodes: Nodes) -> WriteSet:
    """Return the writes that make a fresh disk a node, which has nothing yet.

    A founding that was cut short may have left the state of another cluster, which they remove. The
    state is written before the record that makes it count.
    """
    applied_key = keys.record_key(ROOT_ID, APPLIED_RECORD)
    return {
        **dict.fromkeys((nodes_key(ROOT_ID), secret_key(ROOT_ID), applied_key)),
        STORE_KEY: _encode(StoreRecord(FORMAT_VERSION, nodes.cluster_id, node_id)),
        KNOWN_NODES_KEY: _encode(nodes),
    }


def with_keys(nodes: Nodes, fingerprints: Mapping[str, bytes]) -> Nodes:
    """Return the founders, each with the key that was shown at its address.

    The address stands in the list of the first nodes, and a certificate for it
    was shown there. No later message is better evidence, and until then any other key could come
    first.
    """
    founders = tuple(
        msgspec.structs.replace(node, fingerprint=fingerprints.get(node.address, b""))
        for node in nodes.nodes
    )
    return msgspec.structs.replace(nodes, nodes=founders)


def found_writes(nodes: Nodes, secret: bytes = b"", settings: WriteSet | None = None) -> WriteSet:
    """Return the writes that make a fresh disk the first node of a new cluster, with its state.

    Args:
        nodes: the founders.
        secret: the secret of the cluster; empty: there is no TLS.
        settings: the record of its settings; ``None``: it has none.
    """
    return {
        **(settings or {}),
        **become_writes(nodes.nodes[0].node_id, nodes),
        **founding_writes(ROOT_ID, nodes, secret),
        keys.record_key(ROOT_ID, APPLIED_RECORD): _encode(AppliedRecord(FIRST_INDEX)),
    }


def adopt_writes(
    record: StoreRecord,
    address: str,
    store_id: bytes,
    fingerprint: bytes = b"",
    secret: bytes = b"",
) -> WriteSet:
    """Return the writes that make an embedded store, a group of one, a cluster's first node."""
    own = NodeDescriptor(record.node_id, address, store_id, fingerprint=fingerprint)
    nodes = Nodes(record.cluster_id, record.node_id + 1, (own,))
    return {**identity_writes(store_id), **founding_writes(ROOT_ID, nodes, secret)}


def known_nodes(engine: Engine) -> Nodes | None:
    """Return the cluster as this disk knows it."""
    return decode(engine.get(nodes_key(ROOT_ID)) or engine.get(KNOWN_NODES_KEY))


def node_alone(engine: Engine) -> int | None:
    """Return the node id of a disk that is to be opened embedded; ``None``: it has none yet.

    Raises:
        Invalid: it belongs to a cluster with other nodes.
        StoreCorrupted, VersionMismatch: the store cannot be opened.
    """
    record, nodes = read_store(engine), known_nodes(engine)
    if record is None:
        if read_identity(engine) is None:
            return None
        raise Invalid(
            "the folder waits for its place in a cluster; nothing was changed: go on with "
            "'postroom serve', or give another folder"
        )
    others = [] if nodes is None else [n for n in nodes.nodes if n.node_id != record.node_id]
    if others:
        raise Invalid(
            f"the folder is that of node {record.node_id} of a cluster; nothing was changed: run "
            "the node with 'postroom serve', and use it with "
            f"postroom.connect({','.join(node.address for node in others)!r})"
        )
    return record.node_id


def first_members(engine: Engine) -> tuple[int, ...]:
    """Return the members of a group with a new log: the founders on the founder's disk, else none.

    If there are many founders, the first ones vote; the others become learners later.
    """
    nodes = decode(engine.get(nodes_key(ROOT_ID)))
    return () if nodes is None else tuple(node.node_id for node in nodes.nodes[:VOTERS_MAX])
