"""Entries leave before the leader's own sync, and applied state is written without one.

Dissertation, section 10.2.1: "The leader may even commit an entry before it has been written to its
own disk, if a majority of followers have written it".
"""

from __future__ import annotations

from postroom.kv.memory import MemoryEngine
from postroom.raft.membership import AddLearner, Promote, Remove
from postroom.raft.messages import Append, Appended, PreVoted, Vote, Voted
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import Cluster
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command


def test_a_leaders_entries_leave_before_its_write() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.propose(b"x")
    peers.stage()
    assert peers.outbound == []
    peers.consensus.send_early()
    early = [what.entries for to, what in peers.outbound if to == 2]  # type: ignore[union-attr]
    assert early == [((term, command(b"x")),)]


def test_a_message_that_follows_early_sends_leaves_afterwards() -> None:
    """A stale leader is told so in the turn that appends: its answer waits, and nothing twice."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.propose(b"x")
    writes = peers.stage((2, peers.append(term - 1, (0, 0))))
    peers.consensus.send_early()
    peers.engine.write(writes, sync=True)
    peers.consensus.release()
    to_two = [type(what) for to, what in peers.outbound if to == 2]
    assert to_two == [Append, Appended]


def test_votes_and_acknowledgements_never_leave_early() -> None:
    peers = ScriptedPeers()
    peers.stage((2, Vote(3, 0, 0)), (3, peers.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    peers.consensus.send_early()
    assert peers.outbound == []
    peers.consensus.release()
    assert {type(what) for _, what in peers.outbound} == {Voted, Appended}


def test_an_only_voter_sends_nothing_early() -> None:
    peers = ScriptedPeers((1,))
    told: list[ProposalOutcome] = []
    peers.group.change_members(AddLearner(2), told.append)
    peers.turn()
    peers.propose(b"w")
    peers.engine.write(peers.stage(), sync=True)
    peers.consensus.send_early()
    assert peers.outbound == [], "a learner does not count"
    peers.consensus.release()
    assert [to for to, _ in peers.outbound] == [2]
    peers.group.change_members(Promote(2), told.append)
    peers.turn()
    peers.acknowledge(2)
    peers.outbound.clear()
    assert told == [ProposalOutcome.APPLIED] * 2
    peers.group.change_members(Remove(2), told.append)
    peers.propose(b"x")
    peers.stage()
    peers.consensus.send_early()
    assert peers.outbound == []


def test_an_entry_is_not_committed_in_the_turn_that_appends_it() -> None:
    """The argument of send_early: whoever is counted for an entry has answered for it since."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.propose(b"x")
    peers.stage((2, Appended(term, True, 2)), (3, Appended(term, True, 2)))
    assert peers.core.commit_index == 1


def test_a_leader_that_dies_before_its_write_loses_nothing_that_counts() -> None:
    for seed in range(5):
        cluster = Cluster(3, seed)
        leader = cluster.elect()
        cluster.replicate(2)
        cluster.propose(leader)
        leader.consensus.stage()
        leader.consensus.send_early()
        cluster.crash(leader.node)
        cluster.replicate(2)
        cluster.start(leader.node)
        cluster.replicate(2)
        cluster.settle()
        cluster.check_state_machine_safety()
        cluster.check_log_matching()


def test_entries_terms_and_votes_need_a_sync() -> None:
    peers = ScriptedPeers()
    peers.stage((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    assert peers.consensus.needs_sync
    peers.consensus.release()
    peers.now += 1.2
    peers.stage((2, Vote(2, 9, 1)))
    assert peers.consensus.needs_sync


def test_applying_and_dropping_need_no_sync() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, command(b"x")))))
    writes = peers.stage((2, Append(1, 2, 1, 2, 2, ())))
    assert len(writes) > 3
    assert peers.group.applied_index == 2
    assert not peers.consensus.needs_sync


def test_an_entry_applied_and_dropped_in_its_first_turn_needs_a_sync() -> None:
    peers = ScriptedPeers()
    append = Append(1, 0, 0, 2, 2, ((1, NOOP_PAYLOAD), (1, command(b"x"))))
    peers.stage((2, append))
    assert peers.log() == []
    assert peers.consensus.needs_sync


def test_a_group_of_one_always_needs_a_sync() -> None:
    peers = ScriptedPeers((1,))
    peers.propose(b"x")
    peers.stage()
    assert peers.consensus.needs_sync
    peers.consensus.release()
    peers.stage()
    assert not peers.consensus.needs_sync, "nothing was staged"


def test_applied_state_that_is_lost_with_the_power_is_applied_again() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, command(b"x")))))
    for lost in (False, True):
        peers.engine.write(peers.stage((2, Append(1, 2, 1, 2, 2, ()))), sync=not lost)
        assert peers.group.applied_index == 2
        peers.engine.disk._unsynced.clear()
        peers.engine.disk.crash()
        peers = ScriptedPeers(engine=MemoryEngine(peers.engine.disk))
        if lost:
            break
        assert (peers.group.applied_index, peers.log()) == (2, [])
        peers.turn((2, peers.append(1, (2, 1), (1, command(b"y")), commit=2)))
    assert peers.machine.history()[2] == b"x"
    assert peers.group.stopped is None


def test_acknowledged_entries_survive_a_loss_of_power_with_unsynced_state() -> None:
    for seed in range(8):
        cluster = Cluster(3, seed)
        cluster.replicate(5)
        for node in (1, 2, 3):
            cluster.crash(node)
        for node in (1, 2, 3):
            cluster.start(node)
        cluster.replicate()
        cluster.settle()
        cluster.check_outcomes()


def test_a_new_leaders_first_entry_may_leave_early_because_its_term_is_durable() -> None:
    peers = ScriptedPeers()
    peers.wait(1.1)
    peers.turn((2, PreVoted(1, True)))
    peers.stage((2, Voted(1, True)))
    peers.consensus.send_early()
    assert {type(what) for _, what in peers.outbound} == {Append}
