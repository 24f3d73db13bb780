"""One voter takes the place of another one in one change (joint consensus, dissertation, 4.3)."""

from __future__ import annotations

import msgspec
import pytest

from postroom.kv.memory import MemoryEngine
from postroom.raft import messages
from postroom.raft.interface import RaftOptions
from postroom.raft.membership import AddLearner, Members, Promote, Remove, Replace
from postroom.raft.messages import Append, PreVote, PreVoted, Vote, Voted
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.stored_log import (
    ENTRIES_VERSION,
    KIND_VERSIONS,
    MEMBERSHIP,
    is_payload,
    members_in,
    membership_payload,
)
from tests.raft.cluster import Cluster, Member
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers

JOINT_MEMBERS = Members((1, 2, 4), (), (1, 2, 3))


def with_learner(*, caught_up: bool = True) -> ScriptedPeers:
    """Let member 1 lead voters 1, 2 and 3, and learner 4; all is committed."""
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(2)
    peers.group.change_members(AddLearner(4), peers.outcomes.append)
    peers.turn()
    peers.acknowledge(2)
    assert peers.outcomes.pop() is ProposalOutcome.APPLIED
    if caught_up:
        peers.acknowledge(4)
    peers.acknowledge(3)
    return peers


def replacing() -> ScriptedPeers:
    """Return peers with the joint members in the log of member 1, who leads."""
    peers = with_learner()
    peers.group.change_members(Replace(3, 4), peers.outcomes.append)
    peers.turn()
    assert peers.group.is_joint
    assert peers.group.members == (1, 2, 4, 3), "everybody who counts"
    return peers


@pytest.mark.parametrize("alone", [3, 4])
def test_a_decision_during_a_replacement_needs_both_majorities(alone: int) -> None:
    peers = replacing()
    peers.acknowledge(alone)
    assert peers.outcomes == [], "a majority of one set of voters only"
    peers.acknowledge(7 - alone)
    assert peers.outcomes == [ProposalOutcome.APPLIED], (
        "1 and 3 of the former, 1 and 4 of the new ones"
    )


def test_one_that_is_of_both_sets_is_enough_for_both() -> None:
    peers = replacing()
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_the_leader_ends_it_by_itself() -> None:
    peers = replacing()
    said = peers.acknowledge(2)
    payloads = [
        payload for _, each in said if isinstance(each, Append) for _, payload in each.entries
    ]
    assert membership_payload(Members((1, 2, 4))) in payloads
    assert peers.group.members == (1, 2, 4)
    assert not peers.group.is_joint
    index = peers.group.last_index
    peers.acknowledge(3)
    assert peers.group.applied_index < index, "who has left is not counted"
    peers.acknowledge(4)
    assert peers.group.applied_index == index


def test_a_change_of_members_during_a_replacement_is_refused() -> None:
    peers = with_learner()
    peers.group.change_members(Replace(3, 4), peers.outcomes.append)
    peers.group.change_members(AddLearner(5), peers.outcomes.append)
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.SUPERSEDED]


def test_a_candidate_needs_both_majorities() -> None:
    peers = ScriptedPeers()
    joint = membership_payload(JOINT_MEMBERS)
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, joint), commit=1)))
    asked = {to for to, what in peers.wait(2.0) if isinstance(what, PreVote)}
    assert asked == {2, 3, 4}
    peers.turn((4, PreVoted(2, granted=True)))
    assert peers.group.term == 1, "one of the new voters, none of the former"
    said = peers.turn((3, PreVoted(2, granted=True)))
    assert {to for to, what in said if isinstance(what, Vote)} == {2, 3, 4}
    peers.turn((3, Voted(2, granted=True)))
    assert not peers.group.is_leader
    peers.turn((4, Voted(2, granted=True)))
    assert peers.group.is_leader


def test_a_leader_that_hears_one_majority_only_steps_down() -> None:
    peers = replacing()
    for _ in range(20):
        peers.now += 0.1
        peers.acknowledge(4)
    assert not peers.group.is_leader


def test_joint_members_outlast_a_restart_and_the_end_of_their_entry() -> None:
    engine = MemoryEngine()
    peers = ScriptedPeers(engine=engine)
    joint = membership_payload(JOINT_MEMBERS)
    entries = [(1, NOOP_PAYLOAD), (1, joint), *[(1, NOOP_PAYLOAD)] * 3]
    peers.turn((2, peers.append(1, (0, 0), *entries, commit=5)))
    peers.turn((2, Append(1, 5, 1, 5, 5, ())))
    assert peers.journal.base_index >= 2, "the entry is not kept any more"
    engine.disk.crash(peers.consensus._random)
    again = ScriptedPeers(engine=MemoryEngine(engine.disk))
    assert again.core.members == JOINT_MEMBERS
    assert again.core.voter_sets == [{1, 2, 4}, {1, 2, 3}]


def test_joint_members_are_read_as_they_were_written() -> None:
    payload = membership_payload(JOINT_MEMBERS)
    assert members_in(payload) == JOINT_MEMBERS
    twice = MEMBERSHIP + msgspec.msgpack.encode(((1, 2), (), (2, 2)))
    learns = MEMBERSHIP + msgspec.msgpack.encode(((1, 2), (3,), (1, 3)))
    assert not is_payload(twice)
    assert not is_payload(learns), "a voter of one set is no learner"


def test_an_entry_of_a_newer_kind_waits_for_members_that_cannot_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = with_learner()
    monkeypatch.setitem(KIND_VERSIONS, MEMBERSHIP, ENTRIES_VERSION + 1)

    def is_refused() -> bool:
        peers.outcomes.clear()
        peers.group.change_members(Remove(4), peers.outcomes.append)
        peers.turn()
        return peers.outcomes == [ProposalOutcome.SUPERSEDED]

    assert is_refused()
    monkeypatch.setattr(messages, "ENTRIES_VERSION", ENTRIES_VERSION + 1)
    for node in (2, 3):
        assert is_refused(), "not all members are upgraded"
        peers.acknowledge(node)
    peers.acknowledge(4)
    assert not is_refused()
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_a_silent_member_of_an_earlier_version_does_not_stop_an_entry_of_a_newer_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = with_learner()
    monkeypatch.setitem(KIND_VERSIONS, MEMBERSHIP, ENTRIES_VERSION + 1)
    monkeypatch.setattr(messages, "ENTRIES_VERSION", ENTRIES_VERSION + 1)
    for _ in range(20):
        peers.now += 0.1
        for node in (2, 4):
            peers.acknowledge(node)
    peers.group.change_members(Replace(3, 4), peers.outcomes.append)
    peers.turn()
    assert peers.group.is_joint


# In a cluster.


def joined(cluster: Cluster, node: int) -> Member:
    member = cluster.members[node] = Member(cluster, node)
    told: list[ProposalOutcome] = []
    cluster.replicate()
    cluster.elect().group.change_members(AddLearner(node), told.append)
    cluster.run_until(lambda: told)
    cluster.settle()
    return member


def leader_for(cluster: Cluster, *others: int) -> Member:
    """Return the leader, which is none of ``others``."""
    cluster.run_until(lambda: cluster.leader is not None)
    if cluster.elect().node in others:
        cluster.elect().group.transfer_leadership(
            next(each for each in cluster.members if each not in others)
        )
        cluster.run_until(lambda: cluster.leader and cluster.leader.node not in others)
        cluster.replicate()
    return cluster.elect()


def test_a_voter_is_replaced_under_load() -> None:
    cluster = Cluster(3)
    joined(cluster, 4)
    leader = leader_for(cluster, 3, 4)
    told: list[ProposalOutcome] = []
    leader.group.change_members(Replace(3, 4), told.append)
    proposed = [cluster.propose(leader) for _ in range(3)]
    cluster.run_until(lambda: told and not leader.group.is_joint)
    cluster.settle()
    assert told == [ProposalOutcome.APPLIED]
    assert [each.outcome for each in proposed] == [ProposalOutcome.APPLIED] * 3
    assert set(leader.group.members) == {1, 2, 4}
    cluster.check_state_machine_safety()
    cluster.check_outcomes()


def test_one_voter_of_each_set_may_die_during_a_replacement() -> None:
    """Promoted first, there would be four voters, and three of them had to live."""
    cluster = Cluster(3)
    joined(cluster, 4)
    leader = leader_for(cluster, 3, 4)
    leader.group.change_members(Replace(3, 4), lambda outcome: None)
    leader.turn()
    assert leader.group.is_joint
    for node in (3, 4):
        cluster.crash(node)
    cluster.run_until(lambda: not leader.group.is_joint)
    cluster.replicate(3)
    cluster.settle()
    cluster.check_outcomes()


def test_the_next_leader_ends_a_replacement() -> None:
    cluster = Cluster(3)
    joined(cluster, 4)
    leader = leader_for(cluster, 3, 4)
    leader.group.change_members(Replace(3, 4), lambda outcome: None)
    leader.turn()
    cluster.run_until(
        lambda: any(each.group.is_joint for each in cluster.members.values() if each is not leader)
    )
    cluster.crash(leader.node)
    cluster.run_until(
        lambda: cluster.leader is not None and set(cluster.leader.group.members) == {1, 2, 4}
    )
    cluster.start(leader.node)
    cluster.replicate(3)
    cluster.settle()
    cluster.check_state_machine_safety()
    assert not any(each.group.is_joint for each in cluster.current())


def test_a_leader_that_replaces_itself_hands_over() -> None:
    cluster = Cluster(3)
    joined(cluster, 4)
    leader = cluster.elect()
    told: list[ProposalOutcome] = []
    leader.group.change_members(Replace(leader.node, 4), told.append)
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    assert told == [ProposalOutcome.APPLIED]
    assert leader.node not in cluster.elect().group.members
    cluster.replicate(3)
    cluster.settle()
    cluster.check_outcomes()


def test_a_group_of_one_moves_to_another_node() -> None:
    cluster = Cluster(1, options=RaftOptions())
    joined(cluster, 2)
    leader = cluster.elect()
    leader.group.change_members(Replace(1, 2), lambda outcome: None)
    cluster.run_until(lambda: cluster.members[2].group.is_leader)
    cluster.crash(1)
    cluster.replicate(3)
    assert cluster.elect().group.members == (2,)
    told: list[ProposalOutcome] = []
    cluster.elect().group.change_members(Promote(1), told.append)
    cluster.run_until(lambda: told)
    assert told == [ProposalOutcome.SUPERSEDED]
