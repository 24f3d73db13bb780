"""Members change one at a time, by entries of the log (dissertation, section 4.1)."""

from __future__ import annotations

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.limits import MEMBERS_MAX
from postroom.raft.interface import RaftOptions
from postroom.raft.membership import (
    AddLearner,
    Change,
    FinishReplacement,
    Members,
    Promote,
    Remove,
    Replace,
    changed,
)
from postroom.raft.messages import Append, Appended, TimeoutNow, Vote, Voted
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.stored_log import membership_payload
from tests.raft.cluster import Cluster, Member
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers


def change(cluster: Cluster, *changes: Change) -> None:
    for each in changes:
        told: list[ProposalOutcome] = []
        cluster.replicate()
        cluster.elect().group.change_members(each, told.append)
        cluster.run_until(lambda told=told: told)  # type: ignore[misc]
        assert told == [ProposalOutcome.APPLIED]


def join(cluster: Cluster, node: int) -> Member:
    """Add a node that knows the first members, and is none of them."""
    cluster.members[node] = Member(cluster, node)
    return cluster.members[node]


def test_a_group_of_one_grows_to_three_and_shrinks_again() -> None:
    cluster = Cluster(1)
    cluster.replicate(3)
    for node in (2, 3):
        join(cluster, node)
        change(cluster, AddLearner(node), Promote(node))
    cluster.replicate(3)
    cluster.settle()
    cluster.check_state_machine_safety()
    assert [each.group.members for each in cluster.members.values()] == [(1, 2, 3)] * 3
    cluster.crash(1)
    cluster.replicate(2)
    cluster.start(1)
    cluster.settle()
    for leaves in (3, 2):
        change(cluster, Remove(leaves))
        cluster.crash(leaves)
    cluster.replicate(2)
    assert cluster.elect().node == 1
    cluster.check_outcomes()


def test_members_survive_a_restart_and_truncation() -> None:
    cluster = Cluster(1)
    join(cluster, 2)
    change(cluster, AddLearner(2), Promote(2))
    cluster.replicate(5)
    cluster.settle()
    cluster.run(1.0)
    for node in (1, 2):
        cluster.crash(node)
    for node in (1, 2):
        assert cluster.start(node).group.members == (1, 2)
    cluster.replicate(1)


def test_one_change_at_a_time() -> None:
    """Section 6 of the paper; dissertation, section 4.1: a majority of old and new must overlap."""
    peers = ScriptedPeers((1, 2, 3))
    peers.lead()
    told: list[ProposalOutcome] = []
    peers.group.change_members(AddLearner(4), told.append)
    peers.turn()
    assert told == [ProposalOutcome.SUPERSEDED], "before an entry of its own term is committed"
    peers.acknowledge(2)
    peers.group.change_members(AddLearner(4), told.append)
    peers.group.change_members(AddLearner(5), told.append)
    peers.turn()
    assert told == [ProposalOutcome.SUPERSEDED] * 2, "while another one is under way"
    peers.acknowledge(2)
    assert told[2:] == [ProposalOutcome.APPLIED], "two of three voters"
    peers.group.change_members(Promote(4), told.append)
    peers.turn()
    peers.acknowledge(2)
    assert told[3:] == [], "two of four are no majority"
    peers.acknowledge(3)
    assert told[3:] == [ProposalOutcome.APPLIED]


def test_a_follower_does_not_change_members() -> None:
    peers = ScriptedPeers()
    told: list[ProposalOutcome] = []
    peers.group.change_members(Remove(3), told.append)
    peers.turn()
    assert told == [ProposalOutcome.SUPERSEDED]


def test_members_count_as_soon_as_they_are_in_the_log_and_go_with_the_entry() -> None:
    """Section 6: "a server always uses the latest configuration in its log"."""
    peers = ScriptedPeers()
    peers.turn(
        (
            2,
            peers.append(
                1, (0, 0), (1, NOOP_PAYLOAD), (1, membership_payload(Members((1, 2, 3, 4))))
            ),
        )
    )
    assert peers.group.members == (1, 2, 3, 4)
    assert peers.core.voter_sets == [{1, 2, 3, 4}]
    peers.turn((3, peers.append(2, (1, 1), (2, NOOP_PAYLOAD))))
    assert peers.group.members == (1, 2, 3)
    assert peers.core.voter_sets == [{1, 2, 3}]


def test_a_leader_that_is_removed_leads_until_that_is_committed() -> None:
    """Section 6: "the leader steps down ... once it has committed"."""
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(2)
    told: list[ProposalOutcome] = []
    peers.group.change_members(Remove(1), told.append)
    peers.turn()
    peers.acknowledge(2)
    assert peers.group.is_leader
    said = peers.acknowledge(3)
    assert told == [ProposalOutcome.APPLIED]
    assert not peers.group.is_leader
    assert (2, TimeoutNow(1)) in said, "another one takes over at once"
    assert peers.wait(5.0) == []


def test_a_node_that_is_no_member_does_not_campaign() -> None:
    peers = ScriptedPeers((2, 3), MemoryEngine())
    assert peers.wait(10.0) == []


def test_a_change_is_told_of_from_the_request_until_it_is_applied() -> None:
    peers = ScriptedPeers((1, 2, 3))
    peers.lead()
    peers.acknowledge(2)
    assert not peers.group.is_changing
    peers.group.change_members(Remove(3), peers.outcomes.append)
    assert peers.group.is_changing
    peers.turn()
    assert (peers.group.members, peers.group.is_changing) == ((1, 2), True)
    peers.acknowledge(2)
    assert (peers.group.members, peers.group.is_changing) == ((1, 2), False)


# Learners.


def with_learner(*, options: RaftOptions | None = None) -> ScriptedPeers:
    """Let member 1 lead voters 1 and 2, and learner 3; all is committed."""
    peers = ScriptedPeers((1, 2), options=options)
    peers.lead()
    peers.acknowledge(2)
    peers.group.change_members(AddLearner(3), peers.outcomes.append)
    peers.turn()
    peers.acknowledge(2)
    assert peers.outcomes.pop() is ProposalOutcome.APPLIED
    assert (peers.group.members, peers.group.learners) == ((1, 2), (3,))
    return peers


def test_a_learner_is_fed_and_not_counted() -> None:
    """Dissertation, section 4.2.1: "not yet counted towards majorities"."""
    peers = with_learner()
    peers.acknowledge(3)
    peers.propose(b"x")
    sent = [(to, what.entries) for to, what in peers.turn() if isinstance(what, Append)]
    assert [to for to, entries in sent if entries] == [2, 3]
    peers.acknowledge(3)
    assert peers.outcomes == [], "a learner's copy commits nothing"
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_a_learner_is_not_asked_for_votes_and_its_vote_is_not_counted() -> None:
    peers = with_learner()
    asked = peers.wait(1.2) + peers.wait(1.2)
    assert not peers.group.is_leader
    assert {to for to, what in asked if type(what).__name__ == "PreVote"} == {2}
    peers.core.journal.begin({})
    peers.core.become_candidate()
    peers.turn((3, Voted(peers.group.term, True)))
    assert not peers.group.is_leader


def test_a_learner_does_not_keep_a_leader_that_hears_no_majority() -> None:
    peers = with_learner()
    for _ in range(12):
        peers.now += 0.1
        peers.acknowledge(3)
    assert not peers.group.is_leader


def test_a_learner_does_not_campaign() -> None:
    peers = ScriptedPeers((2, 3), MemoryEngine())
    members = membership_payload(Members((2, 3), (1,)))
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, members), commit=2)))
    assert peers.group.learners == (1,)
    assert peers.wait(10.0) == []
    assert peers.ask(2, TimeoutNow(1)) == []


def test_a_learner_answers_a_candidate_that_knows_of_its_promotion() -> None:
    """Without that, a group whose leader dies right after a promotion may be stuck for ever."""
    peers = ScriptedPeers((2, 3), MemoryEngine())
    assert peers.ask(2, Vote(4, 9, 3)) == [Voted(4, True)]


def test_a_group_of_one_with_a_learner_commits_alone() -> None:
    peers = ScriptedPeers((1,))
    peers.group.change_members(AddLearner(2), peers.outcomes.append)
    peers.turn()
    peers.propose(b"x")
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.APPLIED] * 2
    peers.wait(20.0)
    assert peers.group.is_leader
    peers.group.change_members(Remove(2), peers.outcomes.append)
    peers.turn()
    assert peers.core.is_sole


def test_a_group_of_one_with_a_learner_restarts_alone() -> None:
    peers = ScriptedPeers((1,))
    peers.group.change_members(AddLearner(2), peers.outcomes.append)
    peers.turn()
    peers.engine.disk.crash(peers.consensus._random)
    again = ScriptedPeers((1,), MemoryEngine(peers.engine.disk))
    assert (again.group.is_leader, again.group.learners) == (True, (2,))


def test_a_promoted_learner_keeps_its_progress() -> None:
    """pysyncobj begins a new peer at the end of the log, having nothing."""
    peers = with_learner()
    peers.acknowledge(3)
    before = peers.group.progress()[3].match_index
    peers.group.change_members(Promote(3), peers.outcomes.append)
    peers.turn()
    assert peers.group.members == (1, 2, 3)
    assert peers.group.progress()[3].match_index == before == peers.group.last_index - 1
    peers.acknowledge(3)
    assert peers.outcomes == [ProposalOutcome.APPLIED], "and counts for its own promotion"


def test_a_learner_far_behind_holds_nobody_up_and_gets_a_snapshot() -> None:
    cluster = Cluster(3, options=RaftOptions(log_entries_max=5))
    cluster.replicate(20)
    member = join(cluster, 4)
    change(cluster, AddLearner(4))
    cluster.replicate(20)
    cluster.settle()
    assert member.machine.history() == cluster.elect().machine.history()
    change(cluster, Promote(4))
    cluster.settle()
    cluster.check_outcomes()


def test_a_removed_member_does_not_disturb() -> None:
    """Dissertation, section 4.2.3: it is not told, times out, and asks for votes for ever."""
    cluster = Cluster(3)
    leader = cluster.elect()
    gone = cluster.followers()[0]
    change(cluster, Remove(gone.node))
    cluster.run(20.0)
    assert cluster.leader is leader
    assert list(cluster.leaders) == [leader.group.term]
    cluster.replicate(3)


def test_a_member_left_alone_during_a_large_entry_applies_it() -> None:
    cluster = Cluster(2)
    leader = cluster.elect()
    cluster.settle()
    left = cluster.followers()[0]
    turns = 3

    def prepare(index: int, term: int, command: memoryview) -> bool:
        nonlocal turns
        if len(command) > 1000 and left.group.is_leader:
            turns -= 1
        return len(command) <= 1000 or turns < 0

    left.machine.prepare = prepare  # type: ignore[method-assign]
    large = cluster.propose(leader, bytes(2000))
    cluster.run_until(lambda: large.outcome)
    leader.group.change_members(Remove(leader.node), lambda outcome: None)
    cluster.run_until(lambda: left.group.is_leader)
    assert left.group.members == (left.node,)
    assert left.group.applied_index < left.group.last_index
    cluster.crash(leader.node)
    cluster.run_until(lambda: left.group.applied_index == left.group.last_index)
    assert bytes(2000) in left.machine.history().values()


def test_a_leader_removes_itself_under_load() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.replicate(2)
    told: list[ProposalOutcome] = []
    before = cluster.now
    leader.group.change_members(Remove(leader.node), told.append)
    proposed = [cluster.propose(leader) for _ in range(3)]
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    assert told == [ProposalOutcome.APPLIED]
    assert cluster.now - before < 0.1, "its successor did not wait for a time-out"
    assert [each.outcome for each in proposed] == [ProposalOutcome.APPLIED] * 3
    cluster.crash(leader.node)
    cluster.replicate(2)
    cluster.settle()
    cluster.check_outcomes()


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (Members((1,)), AddLearner(2), Members((1,), (2,))),
        (Members((1,), (2,)), Promote(2), Members((1, 2))),
        (Members((1, 2), (3,)), Remove(3), Members((1, 2))),
        (Members((1, 2), (3,)), Remove(1), Members((2,), (3,))),
        (Members((1,), (2,)), AddLearner(2), None),
        (Members((1,)), AddLearner(1), None),
        (Members((1, 2)), Promote(2), None),
        (Members((1,)), Promote(3), None),
        (Members((1,), (2,)), Remove(1), None),
        (Members((1, 2)), Remove(3), None),
        (Members(tuple(range(MEMBERS_MAX))), AddLearner(99), None),
        (Members((1, 2, 3), (4,)), Replace(2, 4), Members((1, 4, 3), (), (1, 2, 3))),
        (Members((1, 2, 3), (4, 5)), Replace(1, 5), Members((5, 2, 3), (4,), (1, 2, 3))),
        (Members((1,), (2,)), Replace(1, 2), Members((2,), (), (1,))),
        (Members((1, 2), (3,)), Replace(3, 3), None),
        (Members((1, 2), (3,)), Replace(1, 2), None),
        (Members((1, 2), (3,)), FinishReplacement(), None),
        (Members((1, 4), (5,), (1, 2)), FinishReplacement(), Members((1, 4), (5,))),
        (Members((1, 4), (5,), (1, 2)), Promote(5), None),
        (Members((1, 4), (5,), (1, 2)), Replace(1, 5), None),
    ],
)
def test_changes(before: Members, change: Change, after: Members | None) -> None:
    assert changed(before, change) == after


def test_a_member_says_that_it_is_back() -> None:
    """The leader learns from where it wants to be fed, without waiting for a time-out."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD), commit=1)))
    peers.engine.disk.crash(peers.consensus._random)
    peers.engine = MemoryEngine(peers.engine.disk)
    said: list = []
    again = ScriptedPeers.__new__(ScriptedPeers)
    again.send = lambda to, frame: said.append(to)  # type: ignore[method-assign]
    ScriptedPeers.__init__(again, engine=peers.engine)
    assert said == [2, 3]
    leader = ScriptedPeers()
    term = leader.lead()
    for _ in range(3):
        leader.propose(b"x")
        leader.turn()
    leader.acknowledge(2)
    sent = leader.turn((3, Appended(term, False, 1)))
    assert [len(what.entries) for to, what in sent if to == 3 and isinstance(what, Append)] == [3]


def test_a_member_that_removed_itself_campaigns_until_that_is_committed() -> None:
    """Dissertation, section 4.2.2 and figure 4.6: else these two never elect a leader again."""
    cluster = Cluster(2)
    leader = cluster.elect()
    cluster.replicate(2)
    cluster.settle()
    other = cluster.followers()[0]
    leader.group.change_members(Remove(leader.node), lambda outcome: None)
    cluster.network.partition([leader.node], [other.node])
    leader.turn()
    cluster.crash(leader.node)
    cluster.network.heal()
    cluster.run(3.0)
    assert other.group.members == (1, 2), "it has not heard of it"
    again = cluster.start(leader.node)
    assert again.group.members == (other.node,)
    cluster.run_until(lambda: other.group.is_leader and other.group.members == (other.node,))
    cluster.run(5.0)
    assert cluster.leader is other


def test_a_new_leader_does_not_take_the_dead_for_living() -> None:
    """It has heard nobody in its term yet. A client must not remove one of the living."""
    cluster = Cluster(3)
    cluster.replicate(3)
    cluster.settle()
    old = cluster.elect().node
    dead, new = sorted({1, 2, 3} - {old})
    cluster.crash(dead)
    cluster.run(5.0)
    cluster.members[old].group.transfer_leadership(new)
    cluster.run_until(lambda: cluster.members[new].group.is_leader)
    progress = cluster.members[new].group.progress()
    assert progress[dead].silent_seconds > 4.0
    assert progress[dead].match_index == 0
    assert progress[old].silent_seconds < 1.0
