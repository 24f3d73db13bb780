"""Random schedules, in which the invariants always hold.

They have crashes, partitions, losses, proposals, transfers and changes of the members, with
snapshots and quiet times in between.

A failing seed repeats with ``pytest "tests/raft/test_random_schedules.py::test_safety[SEED]"``.
"""

from __future__ import annotations

import random  # noqa: TID251 (seeded)

import pytest

from postroom.raft.interface import NetworkFaults, RaftOptions
from postroom.raft.membership import AddLearner, Change, Promote, Remove, Replace
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import Cluster, Member

ACTIONS = 60


class Schedule:
    """A cluster, and somebody who disturbs it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice([1, 2, 3, 3, 3, 5])
        options = RaftOptions(
            log_entries_max=self.random.choice([3, 8, 4096]),
            append_bytes_max=self.random.choice([1, 100, 1 << 20]),
            append_messages_in_flight_max=self.random.choice([1, 2, 8]),
            append_bytes_in_flight_max=self.random.choice([1, 1 << 20]),
            log_catching_up_factor=self.random.choice([1, 4]),
            snapshot_chunks_in_flight_max=self.random.choice([1, 4]),
            snapshot_bytes_per_turn_max=self.random.choice([1, 1 << 20]),
            quiet_after_seconds=self.random.choice([0.05, 0.5, None]),
        )
        self.cluster = Cluster(size, seed, options, self._faults())
        self.cluster.pairs_per_chunk = self.random.choice([1, 3, 100])
        self.actions = [self.propose] * 12 + [self.wait] * 8 + [self.change_members] * 3 + [
            self.transfer,
            self.transfer,
            self.depose,
            self.crash,
            self.crash_in_the_middle,
            self.start,
            self.start,
            self.start,
            self.partition,
            self.cluster.network.heal,
            self.worsen,
        ]  # fmt: skip

    def run(self) -> None:
        for _ in range(ACTIONS):
            self.random.choice(self.actions)()
            self.cluster.check_state_machine_safety()
            self.cluster.check_log_matching()
            self.check_that_nobody_stopped()
        self.recover()

    def check_that_nobody_stopped(self) -> None:
        for member in self.cluster.members.values():
            assert member.group.stopped is None, f"member {member.node} stopped"

    def recover(self) -> None:
        """Check that with a sound network and everybody up all ends, and well."""
        cluster = self.cluster
        cluster.network.heal()
        cluster.network.faults = NetworkFaults()
        for node in list(cluster.down):
            cluster.start(node)
        assert cluster.replicate()[0].outcome in set(ProposalOutcome)
        cluster.settle()
        cluster.run_until(lambda: all(each.outcomes for each in self.told()))
        histories = [each.machine.history() for each in cluster.current()]
        assert all(history == histories[0] for history in histories)
        cluster.check_state_machine_safety()
        cluster.check_outcomes()

    def told(self) -> list:
        """Return the proposals of members that did not crash since: the others were not told."""
        return [each for each in self.cluster.proposed if each.command not in self.orphaned]

    # Events.

    orphaned: frozenset[bytes] = frozenset()

    def propose(self) -> None:
        member = self._somebody()
        for _ in range(self.random.randint(1, 4)):
            if member is not None:
                self.cluster.propose(member)

    def wait(self) -> None:
        self.cluster.run(self.random.choice([0.002, 0.02, 0.3, 1.5, 4.0]))

    def transfer(self) -> None:
        member = self._somebody()
        if member is not None:
            member.group.transfer_leadership(self.random.choice([None, 1, 2, 3]))

    def change_members(self) -> None:
        """Add, promote, replace or remove any member, the leader too.

        A member may be promoted before it has caught up.
        """
        member = self._somebody()
        if member is not None:
            member.group.change_members(self._change(), lambda outcome: None)

    def _change(self) -> Change:
        node = self.random.randint(1, len(self.cluster.first_members) + 2)
        known = {*self.cluster.members, *self.cluster.down}
        if node not in known:
            self.cluster.members[node] = Member(self.cluster, node)
        kind = self.random.choice([AddLearner, AddLearner, Promote, Remove, Replace, Replace])
        return (
            Replace(self.random.choice(self.cluster.first_members), node)
            if (kind is Replace)
            else kind(node)
        )

    def crash(self) -> None:
        member = self._anybody()
        if member is not None:
            self._crash(member, power=self.random.random() < 0.7)

    def crash_in_the_middle(self) -> None:
        """Let the power fail after the write was staged, written or synced, but not released."""
        member = self._somebody()
        if member is not None:
            writes = member.consensus.stage()
            member.consensus.send_early()
            progress = self.random.randint(0, 2)
            if progress:
                member.engine.write(writes, sync=progress == 2 and member.consensus.needs_sync)
            self._crash(member, power=True)

    def start(self) -> None:
        if self.cluster.down:
            self.cluster.start(self.random.choice(sorted(self.cluster.down)))

    def partition(self) -> None:
        nodes = sorted({*self.cluster.members, *self.cluster.down})
        self.random.shuffle(nodes)
        cut = self.random.randint(0, len(nodes))
        self.cluster.network.partition(nodes[:cut], nodes[cut:])

    def depose(self) -> None:
        """Cut the leader off and propose to it: what it appends may be overwritten."""
        leader = self.cluster.leader
        if leader is not None:
            self.cluster.network.partition(
                [leader.node], [each for each in self.cluster.members if each != leader.node]
            )
            for _ in range(self.random.randint(1, 4)):
                self.cluster.propose(leader)
            self.cluster.run(self.random.choice([0.01, 0.4, 1.5]))
            self.propose()

    def worsen(self) -> None:
        self.cluster.network.faults = self._faults()

    def _faults(self) -> NetworkFaults:
        choose = self.random.choice
        return NetworkFaults(
            choose([0, 0.1, 0.3]), choose([0, 0.2]), 0.001, choose([0.001, 0.05, 0.4])
        )

    def _crash(self, member: Member, *, power: bool) -> None:
        lost = [each.command for each in self.cluster.proposed if each.node == member.node]
        self.orphaned = self.orphaned | set(lost)
        self.cluster.crash(member.node, power=power)

    def _somebody(self) -> Member | None:
        """Choose a member, mostly one that leads or thinks so: the others merely refuse."""
        leaders = [each for each in self.cluster.members.values() if each.group.is_leader]
        if leaders and self.random.random() < 0.8:
            return self.random.choice(leaders)
        return self._anybody()

    def _anybody(self) -> Member | None:
        members = [each for _, each in sorted(self.cluster.members.items())]
        return self.random.choice(members) if members else None


@pytest.mark.parametrize("seed", range(60))
def test_safety(seed: int) -> None:
    Schedule(seed).run()


def test_a_schedule_repeats_from_its_seed() -> None:
    def trace() -> list:
        schedule = Schedule(4)
        schedule.run()
        return [(each.command, each.outcomes) for each in schedule.cluster.proposed]

    assert trace() == trace()
