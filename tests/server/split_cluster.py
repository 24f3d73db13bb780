"""Three nodes on disks in memory, whose only range is split by hand: an entry says so.

The entry writes both descriptors and the right half's applied record, and its application begins
the right half, as a split does. Frames may be kept from a node, all of them or those of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Engine, WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.raft.interface import MemoryNetwork, NodeId, RaftOptions
from postroom.raft.messages import decode_frame, encode_frame
from postroom.raft.stored_log import BEGINNING
from postroom.ranges.calls import LeasedWrites
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import CommitTransaction, Put
from postroom.ranges.split.records import LAST_ID_RECORD
from postroom.ranges.state import APPLIED_RECORD, AppliedRecord, RangeState, encode_applied
from postroom.server.assembly import NodeOptions
from postroom.server.call_frames import CALL_FRAME
from postroom.server.hosted_range import HostedRange
from postroom.server.node import Node
from tests.client.hand_driver import HandClock
from tests.messaging.one_range import Asked
from tests.sim.disks import open_storage
from tests.sim.turn import PowerFailure, ProcessDied

MEMBERS: Final = (1, 2, 3)
LAST_ID: Final = 200_000
"""The last range id that was given out."""
TURN_SECONDS: Final = 0.005
SHORT_LOG: Final = RaftOptions(log_entries_max=4, log_catching_up_factor=2)

_SPLIT: Final = "split by hand"
_packed: Final = msgspec.msgpack.Decoder(tuple[RangeDescriptor, tuple[int, ...]])


@contextmanager
def splits_by_hand() -> Iterator[None]:
    """Have the application of an entry that says so begin the right half."""
    stage = RangeState._stage

    def stage_and_begin(state: RangeState, decided: LeasedWrites, staged: WriteSet) -> None:
        stage(state, decided, staged)
        told = decided.writes.get(keys.record_key(state._range_id, _SPLIT))
        if told is not None:
            node: Node = state._owner._replica.host._node  # type: ignore[attr-defined]
            node.begin_range(state._range_id, *_packed.decode(told), staged)

    RangeState._stage = stage_and_begin  # type: ignore[method-assign]
    try:
        yield
    finally:
        RangeState._stage = stage  # type: ignore[method-assign]


class _Transport:
    """An end of the network that leaves out what ``blocks`` says."""

    def __init__(self, cluster: SplitCluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._inner = cluster.network.attach(node_id)
        self.connected = self._inner.connected
        self.receive = self._inner.receive

    def send(self, to: NodeId, frame: bytes) -> None:
        if frame[:1] == CALL_FRAME:
            self._inner.send(to, frame)
            return
        decoded, _ = decode_frame(frame)
        assert decoded is not None
        passing = [
            each for each in decoded.envelopes
            if not any(blocks(self._node_id, to, *each) for blocks in self._cluster.blocking)
        ]  # fmt: skip
        if len(passing) < len(decoded.envelopes):
            frame = encode_frame(passing, decoded.clocks)
        self._inner.send(to, frame)


class SplitCluster:
    """Three nodes; their clock is moved by hand.

    Attributes:
        nodes: the nodes that are up, by id.
        blocking: functions of sender, receiver, group and message that tell what is left out.
    """

    def __init__(
        self,
        options: RaftOptions | None = None,
        *,
        seed: int = 1,
        has_log: bool = False,
        members: tuple[int, ...] = MEMBERS,
    ) -> None:
        self.clock = HandClock()
        self.random = Random(seed)
        self.network = MemoryNetwork(self.random, self.clock.monotonic)
        self.members = members
        self.blocking: list[Callable[..., bool]] = []
        self.disks = {node_id: MemoryDisk() for node_id in members}
        self.nodes: dict[int, Node] = {}
        self._has_log = has_log
        self._options = RaftOptions() if options is None else options
        self._commits = 0
        for node_id in members:
            self.start(node_id)
        self.lead(ROOT_ID, 1)
        given_out = {keys.record_key(ROOT_ID, LAST_ID_RECORD): keys.u64(LAST_ID)}
        self._propose(self.nodes[1].root, given_out)
        self.until(lambda: self.is_level(ROOT_ID))

    # --- nodes

    def start(self, node_id: int) -> Node:
        """Start a node; one that is not of the first members waits until it is added."""
        disk = self.disks.setdefault(node_id, MemoryDisk())
        engine: Engine = open_storage(disk, self.random) if self._has_log else MemoryEngine(disk)
        options = NodeOptions(
            node_id=node_id, members=self.members if node_id in self.members else (),
            lease_seconds=1.0, raft=self._options, disk_reserve_bytes=0,
        )  # fmt: skip
        transport = _Transport(self, node_id)
        node = Node(engine, self.clock, Random(node_id), transport, options)
        node.start()
        self.nodes[node_id] = node
        return node

    def crash(self, node_id: int, *, power: bool = True) -> None:
        """End a node in the middle of things; what was not synced may be lost."""
        self.network.detach(node_id)
        self.nodes.pop(node_id, None)
        self.disks[node_id].crash(self.random if power else None)

    def crash_at(self, node_id: int, number: int, *, power: bool) -> None:
        """Have a node end before a write, counted from now."""
        disk = self.disks[node_id]
        first = disk.writes

        def fail(write: int) -> None:
            if write == first + number:
                raise PowerFailure if power else ProcessDied

        disk.at_write = fail

    def turn(self) -> None:
        """Let each node take a turn; one whose write is to fail crashes, and starts again."""
        self.clock.seconds += TURN_SECONDS
        for node_id, node in list(self.nodes.items()):
            try:
                node.turn()
                node.next_deadline()  # drivers do so: deadlines are noted then
            except (PowerFailure, ProcessDied) as end:
                self.disks[node_id].at_write = None
                self.crash(node_id, power=isinstance(end, PowerFailure))
                self.start(node_id)

    def is_gone(self, node: Node) -> bool:
        return node.failed is not None or self.nodes.get(node.node_id) is not node

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        end = self.clock.seconds + seconds
        while not condition():
            assert self.clock.seconds < end, "it does not happen"
            self.turn()

    def run(self, seconds: float) -> None:
        end = self.clock.seconds + seconds
        self.until(lambda: self.clock.seconds >= end, seconds + 1)

    # --- ranges

    def hosted(self, node_id: int, range_id: int) -> HostedRange | None:
        node = self.nodes.get(node_id)
        return None if node is None else node.replicas.hosted.get(range_id)

    def leader(self, range_id: int) -> int | None:
        """Return the node that leads a range, and has begun to; its lease may have lapsed."""
        found = [
            (hosted.group.term, node_id) for node_id in self.nodes
            if (hosted := self.hosted(node_id, range_id)) and hosted.group.has_applied_own_term
            and hosted.replica.lease.holder == node_id
        ]  # fmt: skip
        return max(found)[1] if found else None

    def awaited_leader(self, range_id: int) -> int:
        self.until(lambda: self.leader(range_id))
        return self.leader(range_id) or 0

    def lead(self, range_id: int, node_id: int) -> None:
        def leads() -> bool:
            leader = self.leader(range_id)
            if leader not in (None, node_id):
                self.nodes[leader or 0].replicas.hosted[range_id].hand_over(node_id)
            return leader == node_id

        self.until(leads)

    def put(self, key: bytes, value: bytes = b"value") -> None:
        """Write a key, wherever its range is led, again until that is done."""
        self._commits += 1
        identity = self._commits.to_bytes(16, "big")

        def is_done() -> bool:
            for node in list(self.nodes.values()):
                owner = node.replicas.by_key(key)
                if owner is None or self.leader(owner.range_id) != node.node_id:
                    continue
                began = node.clock.reading()
                commit = CommitTransaction(identity, began, 60.0, 0, key, [], [], [Put(key, value)])
                asked = Asked(commit)
                node.replicas.submit(asked)
                self.until(lambda asked=asked, node=node: asked.answers or self.is_gone(node))  # type: ignore[misc]
                return bool(asked.answers) and asked.answers[0][1] is None
            self.turn()
            return False

        self.until(is_done, 60.0)

    def split(self, key: bytes, right_id: int = 2, range_id: int = ROOT_ID) -> None:
        """Have a range split off the keys from ``key`` on, with an entry of its log."""
        hosted = self.hosted(self.awaited_leader(range_id), range_id)
        assert hosted is not None
        before = hosted.replica.bounds.descriptor
        generation = before.generation + 1
        left = RangeDescriptor(range_id, before.start, key, generation)
        right = RangeDescriptor(right_id, key, before.end, generation)
        told = msgspec.msgpack.encode((right, self.members))
        writes: WriteSet = {
            descriptor_key(range_id): encode_descriptor(left),
            descriptor_key(right_id): encode_descriptor(right),
            keys.record_key(right_id, APPLIED_RECORD): encode_applied(
                AppliedRecord(*BEGINNING, hosted.replica.last_commit)
            ),
            keys.record_key(range_id, _SPLIT): told,
        }
        self._propose(hosted, writes)

    def _propose(self, hosted: HostedRange, writes: WriteSet) -> None:
        node, outcomes = self.nodes[hosted.node_id], list[object]()
        command = LeasedWrites(hosted.replica.lease.sequence, writes)
        hosted.group.propose(command, None, outcomes.append)
        self.until(lambda: outcomes or self.is_gone(node))

    # --- checks

    def state_of(self, node_id: int, range_id: int) -> dict[bytes, bytes]:
        """Return what a node has of a range that is open there."""
        node, hosted = self.nodes[node_id], self.hosted(node_id, range_id)
        assert hosted is not None
        prefix = keys.range_prefix(range_id)
        spans = [(prefix, keys.after_prefix(prefix)), *hosted.replica.bounds.spans]
        return {key: value for span in spans for key, value in node.engine.iterate(*span)}

    def check(self) -> None:
        """Check that no node has data that belongs to none of its ranges."""
        for node in self.nodes.values():
            owned = [
                hosted.replica.bounds for hosted in node.replicas.hosted.values()
                if not hosted.group.is_installing
            ]  # fmt: skip
            for key, _ in node.engine.iterate(keys.TRANSACTION, keys.DATA_END):
                owners = [bounds for bounds in owned if bounds.contains_engine_key(key)]
                assert len(owners) == 1, (node.node_id, key, len(owners))
            for key, _ in node.engine.iterate(keys.RANGE, keys.TRANSACTION):
                assert int.from_bytes(key[1:9], "big") in node.replicas.hosted, key

    def is_level(self, *range_ids: int) -> bool:
        """Return whether all nodes that are up have the same of these ranges."""
        for range_id in range_ids:
            hosted = [self.hosted(node_id, range_id) for node_id in self.nodes]
            if any(each is None or each.group.is_installing for each in hosted):
                return False
            if len({each.group.applied_index for each in hosted if each is not None}) > 1:
                return False
        return True

    def settle(self, *range_ids: int) -> None:
        """Wait until all nodes have the same of these ranges, and nothing else."""
        self.until(lambda: self.is_level(*range_ids))
        for disk in self.disks.values():
            disk.at_write = None  # looking writes what is gathered
        self.check()
        for range_id in range_ids:
            first, *others = (self.state_of(node_id, range_id) for node_id in self.nodes)
            assert all(other == first for other in others)

    def close(self) -> None:
        for node in self.nodes.values():
            if node.failed is None:
                node.close()
