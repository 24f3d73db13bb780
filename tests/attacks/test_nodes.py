"""A node of the cluster that says what it likes: in its own name, in sound frames.

Its words may take effect, since a node is trusted with the state of the cluster. But it stops no
other node, and costs it no more than a turn, a frame and their memory.
"""

from __future__ import annotations

import functools
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.raft.membership import Members
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    Clocks,
    Message,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
    encode_frame,
)
from postroom.raft.stored_log import COMMAND, NOOP, membership_payload
from postroom.ranges.calls import LeasedWrites
from postroom.ranges.contract import ROOT_ID
from postroom.server.assembly import NodeOptions
from tests.attacks.hostile import TURN_STEPS, has_descriptors, memory_below, open_descriptors
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.metered import PAIR_SECONDS, MeteredEngine

MIB = 1024 * 1024
FRAMES = 150
LARGE = (1, 1000, 100_000)
"""The numbers of parts of a description."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a cluster whose rules of Raft are not checked: a liar may break them."""
    made = Cluster(1, [NodeOptions(disk_reserve_bytes=0)] * 3, [(1.0, 0.0, 0.0)] * 3)
    for name in ("acted", "written", "sends", "crashed"):
        monkeypatch.setattr(made.overseer, name, lambda *_: None)
    for machine in made.machines:
        assert machine.open()
    made.agenda.run(3.0)
    yield made
    made.abandon()


@functools.cache
def _command(count: int) -> bytes:
    """Make a command of a lease that nobody has: it takes time, and changes nothing."""
    writes: WriteSet = {keys.head_key(b"%d" % number): b"hostile" for number in range(count)}
    return COMMAND + msgspec.msgpack.encode(LeasedWrites(2**40, writes))


class Liar:
    """A liar, which says something to a machine as node 3."""

    def __init__(self, randomness: Random, machine: Machine) -> None:
        self.choose = randomness.choice
        self.machine = machine

    def _number(self) -> int:
        assert self.machine.node is not None
        group = self.machine.node.root.replica.group
        known = [group.term, group.term + 1, group.last_index, group.last_index + 1]
        return self.choose([*known, 0, 1, 2**20, 2**40, 2**63 - 1])

    def _payload(self) -> bytes:
        members = membership_payload(Members((1, 2, 3), (self.choose([9, 2**40]),)))
        return self.choose([NOOP, NOOP, members, _command(self.choose(LARGE))])

    def message(self) -> Message:
        number, choose, yes = self._number, self.choose, self.choose([False, True])
        term = number()
        entries = [(choose([0, term]), self._payload())] * choose([0, 1, 1, 20])
        if choose([False, False, True]):
            entries = [(term, NOOP)] * choose(LARGE)
        made = [
            PreVote(term, number(), number()), PreVoted(term, yes),
            Vote(term, number(), number(), yes), Voted(term, yes),
            Append(term, number(), number(), number(), number(), tuple(entries), yes),
            Append(term, number(), term, number(), number(), tuple(entries[:1])),
            Appended(term, yes, number(), choose([False, True]), choose([False, True])),
            Chunk(term, number(), number(), number(), Members((1, 2, 3)), choose([0, 1, 2**32 - 1]),
                  bytes(choose([0, 100, MIB])), yes),
            ChunkTaken(term, number(), number()), TimeoutNow(term),
        ]  # fmt: skip
        return choose(made)

    def frame(self) -> bytes:
        while True:
            said = [(self.choose([ROOT_ID, ROOT_ID, 77]), self.message())]
            said *= self.choose([1, 1, 1, 3, 1000])
            if sum(len(encode_frame([each])) for each in said[:1]) * len(said) < 16 * MIB:
                return encode_frame(said, Clocks(*(self._number() for _ in range(3))))


@pytest.mark.parametrize("seed", range(6))
def test_the_other_nodes_go_on_after_random_messages_of_one(cluster: Cluster, seed: int) -> None:
    """Repeat one with ``pytest tests/attacks/test_nodes.py -k 'go_on and [SEED]'``."""
    randomness, descriptors = Random(seed), open_descriptors()
    victim = cluster.machines[randomness.randrange(2)]
    node, longest = victim.node, 0.0
    assert node is not None
    state, prepare = node.engine.state, node.prepare
    assert isinstance(state, MeteredEngine)

    def looked() -> Any:
        nonlocal longest
        before = state._seconds
        staged = prepare()
        longest = max(longest, state._seconds - before)
        return staged

    node.prepare = looked  # type: ignore[method-assign]
    liar = Liar(randomness, victim)
    disks = [machine.disk for machine in cluster.machines]
    with memory_below(400 * MIB, lambda: sum(disk.content.bytes_stored for disk in disks)):
        for _ in range(FRAMES):
            victim.arrive(3, victim.node_id, liar.frame())
            cluster.agenda.run(randomness.choice([0.0, 0.001, 0.01, 0.3]))
            assert victim.node is node
            assert node.failed is None
            assert node.root.replica.group.stopped is None
    assert longest / PAIR_SECONDS <= TURN_STEPS
    assert node.root.replica.group.term < 2**40, "a term that nobody can have reached"
    victim.close()
    assert victim.open(), "and what it was told can be opened again"
    cluster.agenda.run(2.0)
    assert victim.node is not None
    assert victim.node.failed is None
    assert has_descriptors(descriptors)  # those of earlier tests may go meanwhile
