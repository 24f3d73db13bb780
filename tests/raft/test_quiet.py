"""Groups with nothing to do are quiet: no timers, no messages of theirs, and no deadlock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from postroom.raft.interface import CommittedEntry, NetworkFaults, RaftOptions
from postroom.raft.membership import AddLearner
from postroom.raft.messages import Append, Appended, Clocks, PreVote, PreVoted, Vote, encode_frame
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import GROUP_ID, Cluster, Member
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers


def quiet_cluster(size: int = 3, seed: int = 1) -> tuple[Cluster, Member]:
    cluster = Cluster(size, seed)
    cluster.replicate(2)
    cluster.run_until(all_are_quiet(cluster))
    leader = cluster.leader
    assert leader is not None
    return cluster, leader


def all_are_quiet(cluster: Cluster) -> Callable[[], bool]:
    return lambda: all(each.group.is_quiet for each in cluster.members.values())


def quiet_leader() -> ScriptedPeers:
    """Let member 1 lead; everybody has everything and is quiet."""
    peers = ScriptedPeers()
    term = peers.lead()
    for node in (2, 3):
        peers.acknowledge(node)
    for _ in range(12):
        peers.now += 0.1
        last = peers.group.last_index
        peers.turn(*[(node, Appended(term, True, last, quiet=True)) for node in (2, 3)])
    assert peers.group.is_quiet
    return peers


def quiet_follower() -> ScriptedPeers:
    peers = ScriptedPeers()
    entry = (1, NOOP_PAYLOAD)
    peers.turn((2, peers.append(1, (0, 0), entry, commit=1)))
    assert peers.ask(2, Append(1, 1, 1, 1, 0, (), quiet=True)) == [Appended(1, True, 1, True)]
    assert peers.group.is_quiet
    return peers


def test_an_idle_group_goes_quiet_and_stays_led() -> None:
    cluster, leader = quiet_cluster()
    term = leader.group.term
    cluster.run(60.0)
    assert all_are_quiet(cluster)()
    assert (cluster.leader, leader.group.term) == (leader, term)
    assert [each.group.deadline() for each in cluster.members.values()] == [None] * 3
    assert cluster.replicate()[0].outcome is ProposalOutcome.APPLIED
    cluster.settle()
    cluster.run_until(all_are_quiet(cluster))


def test_a_group_goes_quiet_within_half_a_second_of_its_last_entry() -> None:
    cluster, _ = quiet_cluster()
    for pause_seconds in (1.0, 7.0):
        cluster.run(pause_seconds)
        cluster.replicate()
        assert not any(each.group.is_quiet for each in cluster.members.values())
        cluster.run(0.5)
        assert all_are_quiet(cluster)()


def test_a_group_is_not_quiet_while_somebody_lacks_something() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    for _ in range(30):
        peers.now += 0.1
        peers.turn((2, Appended(term, True, 1, quiet=True)), (3, Appended(term, False, 0)))
    assert not peers.group.is_quiet


def test_a_leader_waits_until_all_say_that_they_are_quiet() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    for node in (2, 3):
        peers.acknowledge(node)
    said: list = []
    for _ in range(30):
        peers.now += 0.1
        said = peers.turn((2, Appended(term, True, 1, quiet=True)), (3, Appended(term, True, 1)))
    assert not peers.group.is_quiet
    assert [what.quiet for _, what in said if isinstance(what, Append)] == [True, True]


def test_a_follower_that_lacks_something_does_not_fall_quiet() -> None:
    peers = ScriptedPeers()
    entries = [(1, NOOP_PAYLOAD), (1, b"\0x")]
    peers.turn((2, peers.append(1, (0, 0), *entries, commit=1)))
    assert peers.ask(2, Append(1, 1, 1, 1, 0, (), quiet=True)) == [Appended(1, True, 1)]
    assert peers.ask(2, Append(1, 2, 1, 1, 0, (), quiet=True)) == [Appended(1, True, 2)]
    assert peers.ask(2, Append(1, 3, 1, 3, 0, (), quiet=True)) == [Appended(1, False, 2)]
    assert not peers.group.is_quiet


def test_any_other_append_wakes_a_follower() -> None:
    peers = quiet_follower()
    peers.turn((2, peers.append(1, (1, 1), commit=1)))
    assert not peers.group.is_quiet
    assert peers.group.deadline() is not None


def test_a_proposal_wakes_the_leader_and_it_the_others() -> None:
    peers = quiet_leader()
    peers.propose(b"x")
    sent = [what for _, what in peers.turn() if isinstance(what, Append)]
    assert [(len(what.entries), what.quiet) for what in sent] == [(1, False)] * 2
    assert not peers.group.is_quiet


def test_a_request_for_votes_wakes_the_leader() -> None:
    for asking in (PreVote(9, 0, 0), Vote(9, 0, 0), Appended(1, False, 0), Appended(0, True, 0)):
        peers = quiet_leader()
        sent = [to for to, what in peers.turn((3, asking)) if isinstance(what, Append)]
        assert sorted(sent) == [2, 3]
        assert peers.group.is_leader


def test_a_stranger_wakes_nobody() -> None:
    for peers in (quiet_leader(), quiet_follower()):
        peers.turn((9, PreVote(9, 0, 0)), (9, Vote(9, 0, 0)), (9, Appended(0, False, 0)))
        assert peers.group.is_quiet


def test_a_quiet_follower_does_not_vote_while_its_leaders_node_is_heard() -> None:
    peers = quiet_follower()
    for _ in range(20):
        peers.now += 0.1
        peers.inbound.append((2, encode_frame([])))
        peers.turn()
    assert peers.group.is_quiet
    assert peers.ask(3, Vote(9, 9, 9)) == []
    assert peers.group.term == 1


def test_a_leader_that_asks_for_votes_does_not_lead() -> None:
    """It was started again so quickly that nobody noticed."""
    peers = quiet_follower()
    assert peers.ask(2, PreVote(2, 1, 1)) == [PreVoted(2, True)]
    assert not peers.group.is_quiet
    assert peers.group.leader is None


def test_a_late_straw_poll_of_the_leader_unseats_nobody() -> None:
    """From before it led: a leader never asks for a later term than its own."""
    peers = quiet_follower()
    assert peers.ask(2, PreVote(1, 1, 1)) == [PreVoted(1, False)]
    assert peers.group.leader == 2


def test_a_quiet_group_whose_leader_dies_elects_another_in_time() -> None:
    for seed in range(10):
        cluster, leader = quiet_cluster(seed=seed)
        cluster.run(5.0)
        before = cluster.now
        cluster.crash(leader.node)
        cluster.replicate()
        assert cluster.now - before < 2.5
        cluster.settle()


def test_a_leader_that_is_started_again_at_once() -> None:
    for seed in range(10):
        cluster, leader = quiet_cluster(seed=seed)
        cluster.crash(leader.node)
        cluster.run(0.01)
        cluster.start(leader.node)
        before = cluster.now
        cluster.replicate()
        assert cluster.now - before < 2.5
        cluster.settle()
        cluster.run_until(all_are_quiet(cluster))


def test_everybody_is_started_again_at_once() -> None:
    cluster, _ = quiet_cluster()
    for node in (1, 2, 3):
        cluster.crash(node)
        cluster.start(node)
    cluster.replicate()
    cluster.run_until(all_are_quiet(cluster))


def test_a_follower_that_is_started_again_is_fed_at_once() -> None:
    """With the loss of applied state that was not synced: nobody proposes, yet it applies."""
    cluster, leader = quiet_cluster()
    away = cluster.followers()[0].node
    cluster.crash(away)
    member = cluster.start(away)
    cluster.run(0.05)
    assert member.group.applied_index == leader.group.last_index
    assert cluster.leader is leader
    cluster.run_until(all_are_quiet(cluster))


def test_a_group_goes_quiet_without_a_node_that_is_down_and_feeds_it_when_it_is_back() -> None:
    cluster, leader = quiet_cluster()
    away = cluster.followers()[0].node
    cluster.crash(away)
    cluster.replicate(3)
    cluster.run(5.0)
    assert all_are_quiet(cluster)()
    member = cluster.start(away)
    cluster.run(0.05)
    assert member.group.applied_index == leader.group.last_index
    assert cluster.leader is leader


def test_a_learner_that_was_cut_off_is_fed_when_it_is_heard_again() -> None:
    """It does not campaign, so nothing but its node's heartbeat tells the leader."""
    cluster, leader = quiet_cluster()
    member = cluster.members[4] = Member(cluster, 4)
    told: list[ProposalOutcome] = []
    leader.group.change_members(AddLearner(4), told.append)
    cluster.run_until(lambda: told)
    cluster.settle()
    cluster.run_until(all_are_quiet(cluster))
    cluster.network.partition([1, 2, 3], [4])
    cluster.run(1.0)
    cluster.replicate(3)
    cluster.run(5.0)
    assert leader.group.is_quiet
    cluster.network.heal()
    cluster.run(0.5)
    assert member.group.applied_index == leader.group.last_index


def test_a_partition_while_quiet() -> None:
    for seed in range(10):
        cluster, leader = quiet_cluster(5, seed)
        others = [node for node in cluster.members if node != leader.node]
        cluster.network.partition([leader.node], others)
        cluster.run(1.8)
        assert not leader.group.is_leader, "no majority of nodes is heard"
        cluster.replicate(2)
        cluster.network.heal()
        cluster.settle()
        cluster.run_until(all_are_quiet(cluster))
        cluster.check_state_machine_safety()


def test_a_minority_that_is_cut_off_while_quiet_comes_back_quietly() -> None:
    cluster, leader = quiet_cluster()
    away = cluster.followers()[0]
    cluster.network.partition([away.node], [n for n in cluster.members if n != away.node])
    cluster.run(10.0)
    cluster.network.heal()
    cluster.run(3.0)
    assert cluster.leader is leader
    assert len(cluster.leaders) == 1
    assert all_are_quiet(cluster)()


def test_a_leader_whose_replica_stopped_while_its_node_lives_is_replaced() -> None:
    """The node's heartbeat vouches for the node only: whoever asks for votes wakes the rest."""
    cluster, leader = quiet_cluster()
    leader.group.stop(RuntimeError("broken"))
    follower = next(each for each in cluster.members.values() if each is not leader)
    follower.group._elections.wake(cluster.now)
    follower.consensus._wake(follower.group)
    cluster.run_until(lambda: cluster.leader not in (None, leader), 5.0)


@pytest.mark.parametrize("lost_share", [0.0, 0.7])
def test_a_leader_that_stops_in_the_turn_that_wakes_it_is_missed(lost_share: float) -> None:
    """Its followers are quiet, and its node lives: nobody would ever ask."""
    for seed in range(5):
        cluster, leader = quiet_cluster(seed=seed)
        cluster.network.faults = NetworkFaults(lost_share=lost_share)
        leader.group.propose(object(), None, lambda outcome: None)  # type: ignore[arg-type]
        leader.turn()
        assert leader.group.stopped is not None
        cluster.run(0.2)
        cluster.network.faults = NetworkFaults()
        cluster.run_until(lambda: cluster.leader is not None, 3.0)  # noqa: B023  # called here
        cluster.replicate()


def test_a_stopped_member_keeps_nothing_that_it_is_sent() -> None:
    peers = quiet_follower()
    peers.group.stop(RuntimeError("broken"))
    peers.turn((2, peers.append(1, (1, 1))))
    assert peers.group._incoming.waiting == []
    assert peers.group.deadline() is None


def test_a_bad_network_never_deadlocks_a_group_that_comes_and_goes() -> None:
    for seed in range(20):
        cluster = Cluster(3, seed, RaftOptions(quiet_after_seconds=0.1))
        cluster.network.faults = NetworkFaults(0.2, 0.2, 0.001, 0.3)
        for _ in range(10):
            cluster.run(cluster.random.choice([0.1, 1.0, 3.0]))
            leader = cluster.leader
            if leader is not None:
                cluster.propose(leader)
        cluster.network.faults = NetworkFaults()
        cluster.replicate()
        cluster.settle()
        cluster.run_until(all_are_quiet(cluster))
        cluster.check_state_machine_safety()


def test_quiet_can_be_turned_off() -> None:
    cluster = Cluster(3, options=RaftOptions(quiet_after_seconds=None))
    cluster.replicate()
    cluster.run(20.0)
    assert not any(each.group.is_quiet for each in cluster.members.values())


def test_heartbeats_between_nodes_carry_the_wall_clocks() -> None:
    cluster, leader = quiet_cluster()
    heard: list[tuple] = []
    for member in cluster.members.values():
        member.consensus._clocks_for = lambda to, own=member.node: Clocks(own, to, 3)  # type: ignore[misc]
    leader.consensus._on_peer_clocks = lambda peer, clock: heard.append((peer, clock))
    cluster.run(1.05)
    others = sorted(each.node for each in cluster.members.values() if each is not leader)
    assert set(heard) == {(node, Clocks(node, leader.node, 3)) for node in others}
    assert 18 <= len(heard) <= 22, "one frame of each node and heartbeat"
    at = leader.consensus.heard_at(others[0])
    assert at is not None
    assert cluster.now - at < 0.15
    assert leader.consensus.heard_at(99) is None


IDLE_GROUPS = 1000
IDLE_SECONDS = 30.0


def test_a_thousand_idle_groups_take_no_turns() -> None:
    """The counted costs are turns of groups, messages, and frames."""
    cluster = Cluster(3)
    for number in range(1, IDLE_GROUPS):
        for member in cluster.members.values():
            member.consensus.create(GROUP_ID + number, (1, 2, 3), _Nothing())
    cluster.run(8.0)
    groups = [group for member in cluster.members.values()
              for group in member.consensus.groups.values()]  # fmt: skip
    assert len(groups) == 3 * IDLE_GROUPS
    assert all(group.is_quiet for group in groups)
    turns: list[int] = []
    for group in groups:
        group._turn = lambda writes, group=group: turns.append(group.group_id)  # type: ignore
    before = cluster.network._sent
    cluster.run(IDLE_SECONDS)
    # Alarms that were set before a group fell quiet ring once.
    assert len(turns) <= len(groups)
    frames = cluster.network._sent - before
    assert frames <= 6 * IDLE_SECONDS / cluster.options.heartbeat_seconds + 6


class _Nothing:
    """A state that is only an applied index, in memory."""

    applied = term = 0

    def applied_index(self) -> int:
        return self.applied

    def applied_term(self) -> int:
        return self.term

    def apply(self, entries: Iterable[CommittedEntry], staged: object) -> None:
        for self.applied, self.term, _, _ in entries:
            pass
