"""The recovery of a cluster that has lost its majority: one node's folder becomes a cluster of one.

A majority that is lost may have had entries that this node lacks. They are lost with it, and only
a person can decide that. :func:`survey` therefore tells what is known before anything is done.

::

    folder ── 1. log: a new store id, and this node the only member of each group
                      (one synced record: from here on the other nodes are strangers)
           ── 2. the node is opened alone, and applies all entries that it has; again
                 for the ranges that these have split off
           ── 3. state: the record of the nodes, with this one

Killed anywhere, it is run again and goes on. A node refuses to be served between the steps.

All entries of the log are kept, those included of which this node never heard that they are
committed: an answer may have said so. An entry that was never acknowledged may take effect.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.kv.clock import SystemClock, Timestamp
from postroom.kv.engine import Engine, WriteSet
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId, NoPeers
from postroom.raft.journal import Journal
from postroom.raft.membership import Members
from postroom.raft.stored_log import AppliedState, membership_payload
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import SECRET_BYTES, NodeDescriptor, Nodes, nodes_key, secret_key
from postroom.ranges.state import AppliedRecord, read_applied
from postroom.server.assembly import NodeOptions, held_ranges
from postroom.server.cluster.formation import KNOWN_NODES_KEY, known_nodes
from postroom.server.node import Node
from postroom.server.opening import STORE_KEY, open_storage, read_store
from postroom.server.thread_driver import ThreadDriver

_ID_BYTES: Final = 16
_ROUNDS: Final = 64
"""The rounds at most: each applies the splits of the ranges that the one before has made."""
_APPLIED_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True)
class RangeSurvey:
    """The log of one range, as a node has it.

    Attributes:
        range_id: the id of the range.
        last_index, last_term: the last entry of the log.
        applied_index: the last entry whose writes are in the state.
        last_commit: a timestamp that no commit in the state is above.
        voters: the nodes that vote.
    """

    range_id: int
    last_index: int
    last_term: int
    applied_index: int
    last_commit: Timestamp
    voters: tuple[NodeId, ...]

    def is_ready(self, node: NodeDescriptor) -> bool:
        """Return whether a node is the only member, and has applied all entries."""
        return self.voters == (node.node_id,) and not self.unapplied

    @property
    def unapplied(self) -> int:
        """Return the number of entries that are not applied yet."""
        return self.last_index - self.applied_index


@dataclass(frozen=True)
class NodeSurvey:
    """The folder of a node of a cluster, as it is before a recovery.

    Attributes:
        node: the node.
        others: the other nodes of the cluster.
        store_id: the id of the store.
        ranges: the ranges of which it has a replica.
        interrupted: whether a recovery of this folder was begun and not ended.
    """

    node: NodeDescriptor
    others: tuple[NodeDescriptor, ...]
    store_id: bytes
    ranges: tuple[RangeSurvey, ...]
    interrupted: bool


def survey(path: Path) -> NodeSurvey:
    """Return what a node's folder has; nothing is changed.

    Raises:
        Invalid: it is no node of a cluster with others, or lacks a part of a range.
        StoreLocked: the node runs.
        StoreCorrupted, VersionMismatch: it cannot be opened.
    """
    with _opened(path) as (engine, _):
        return _surveyed(engine, path)


def recover(path: Path) -> bytes:
    """Make a node's folder a cluster of one; return the id of the new store.

    Raises:
        Invalid, StoreLocked: as :func:`survey`; nothing was changed.
        Unavailable: not all entries were applied in time; run it again.
    """
    for _ in range(_ROUNDS):
        with _opened(path) as (engine, randomness):
            found = _surveyed(engine, path)
            if found.interrupted and all(each.is_ready(found.node) for each in found.ranges):
                writes = _record_writes(engine, found, randomness)
                engine.write(writes, sync=True)
                return found.store_id
            engine.write(_alone_writes(engine, found, randomness), sync=True)
        _apply_all(path, found.node.node_id)
    raise _too_slow()


@contextmanager
def _opened(path: Path) -> Generator[tuple[Engine, random.Random]]:
    randomness = random.Random(random.SystemRandom().randbytes(32))
    engine = open_storage(path, randomness, create=False)
    try:
        yield engine, randomness
    finally:
        engine.close()


# --- the survey -----------------------------------------------------------------------------------


def _surveyed(engine: Engine, path: Path) -> NodeSurvey:
    record, nodes = read_store(engine), known_nodes(engine)
    mine = None if record is None or nodes is None else nodes.by_id(record.node_id)
    if record is None or nodes is None or mine is None:
        raise Invalid(
            f"{path} is no node of a cluster; nothing was changed: give the data folder of a node"
        )
    others = tuple(node for node in nodes.nodes if node.node_id != mine.node_id)
    interrupted = nodes.cluster_id != record.cluster_id
    if not others:
        raise Invalid(
            f"node {mine.node_id} is alone in its cluster; nothing was changed: start it with "
            "'postroom serve'"
        )
    ranges = tuple(_range(engine, each, path) for each in held_ranges(engine, engine))
    return NodeSurvey(mine, others, record.cluster_id, ranges, interrupted)


def _range(engine: Engine, range_id: int, path: Path) -> RangeSurvey:
    journal, applied = _journal(engine, range_id)
    arriving = engine.get(keys.raft_log_prefix(range_id) + b"s") is not None
    if journal.holds_nothing or arriving or not journal.last_index:
        raise Invalid(
            f"{path} has range {range_id} only in part: the node was being fed; nothing was "
            "changed: recover another node"
        )
    return RangeSurvey(
        range_id, journal.last_index, journal.last_term, applied.index,
        Timestamp(applied.last_commit), journal.members.counted,
    )  # fmt: skip


def _journal(engine: Engine, range_id: int) -> tuple[Journal, AppliedRecord]:
    applied = read_applied(engine, range_id)
    prefix = keys.raft_log_prefix(range_id)
    state = AppliedState(applied.index, applied.term)
    return Journal.open(engine, prefix, Members(()), state), applied


# --- the steps ------------------------------------------------------------------------------------


def _alone_writes(engine: Engine, found: NodeSurvey, randomness: random.Random) -> WriteSet:
    """Return the writes that make this node the only member of each group, under a new id."""
    record = read_store(engine)
    assert record is not None, "surveyed"
    store = found.store_id if found.interrupted else randomness.randbytes(_ID_BYTES)
    changed = msgspec.structs.replace(record, cluster_id=store)
    writes: WriteSet = {STORE_KEY: msgspec.msgpack.encode(changed)}
    alone = membership_payload(Members((record.node_id,)))
    for each in found.ranges:
        journal, _ = _journal(engine, each.range_id)
        term = journal.term + 1
        journal.begin(writes)
        journal.set_term(term, None)
        journal.add(alone, journal.last_index + 1, term)
        journal.end()
    return writes


def _apply_all(path: Path, node_id: int) -> None:
    """Let the node apply all entries, without its services, which would seek the other nodes."""
    randomness = random.Random(random.SystemRandom().randbytes(32))
    engine = open_storage(path, randomness, create=False)
    try:
        options = NodeOptions(node_id=node_id, members=())
        node = Node(engine, SystemClock(), randomness, NoPeers(), options)
    except BaseException:
        engine.close()
        raise
    node.tasks.stop()
    driver = ThreadDriver(node, randomness)
    driver.start()
    try:
        driver.run(_applied(driver))
    finally:
        driver.run(driver.close())


async def _applied(driver: ThreadDriver) -> None:
    """Wait until all groups of this node alone have applied their logs."""
    node = driver.node
    until = node.monotonic() + _APPLIED_SECONDS
    while any(_lags(hosted.group) for hosted in list(node.replicas.hosted.values())):
        if node.monotonic() > until:
            raise _too_slow()
        await driver.sleep(_LOOK_SECONDS)


def _lags(group: RaftGroup) -> bool:
    """Return whether a group has yet to apply its log.

    An entry may split a range. The new one has all members of that time, and its turn comes next.
    """
    return len(group.members) == 1 and not group.has_applied_own_term


def _too_slow() -> Unavailable:
    return Unavailable(
        f"the entries of the log were not applied in {_APPLIED_SECONDS:g} s; the recovery is not "
        "complete: run it again"
    )


def _record_writes(engine: Engine, found: NodeSurvey, randomness: random.Random) -> WriteSet:
    """Return the record of the nodes, with this one alone; and a new secret, if there was one."""
    known = known_nodes(engine)
    assert known is not None, "surveyed"
    alone = msgspec.structs.replace(found.node, retired=False)
    nodes = Nodes(found.store_id, known.next_node_id, (alone,))
    packed = msgspec.msgpack.encode(nodes)
    writes: WriteSet = {nodes_key(ROOT_ID): packed, KNOWN_NODES_KEY: packed}
    if engine.get(secret_key(ROOT_ID)) is not None:
        writes[secret_key(ROOT_ID)] = randomness.randbytes(SECRET_BYTES)
    return writes
