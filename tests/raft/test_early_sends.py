"""Entries leave before the leader's own sync, and applied state is written without one.

Dissertation, section 10.2.1: "The leader may even commit an entry before it has been written to its
own disk, if a majority of followers have written it".
"""

from __future__ import annotations

from postroom.kv.memory import MemoryEngine
from postroom.raft.membership import AddLearner, Promote, Remove
from postroom.raft.messages import Append, Appended, PreVoted, Vote, Voted
from postroom.raft.outcome import Outcome
from tests.raft.cluster import Cluster
from tests.raft.puppet import NOOP_PAYLOAD, Puppets, command


def test_a_leaders_entries_leave_before_its_write() -> None:
    puppets = Puppets()
    term = puppets.lead()
    puppets.acknowledge(2)
    puppets.propose(b"x")
    puppets.stage()
    assert puppets.outbound == []
    puppets.consensus.send_early()
    early = [what.entries for to, what in puppets.outbound if to == 2]  # type: ignore[union-attr]
    assert early == [((term, command(b"x")),)]


def test_what_follows_in_the_turn_leaves_afterwards() -> None:
    """A stale leader is told so in the turn that appends: its answer waits, and nothing twice."""
    puppets = Puppets()
    term = puppets.lead()
    puppets.acknowledge(2)
    puppets.propose(b"x")
    writes = puppets.stage((2, puppets.append(term - 1, (0, 0))))
    puppets.consensus.send_early()
    puppets.engine.write(writes, sync=True)
    puppets.consensus.release()
    to_two = [type(what) for to, what in puppets.outbound if to == 2]
    assert to_two == [Append, Appended]


def test_votes_and_acknowledgements_never_leave_early() -> None:
    puppets = Puppets()
    puppets.stage((2, Vote(3, 0, 0)), (3, puppets.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    puppets.consensus.send_early()
    assert puppets.outbound == []
    puppets.consensus.release()
    assert {type(what) for _, what in puppets.outbound} == {Voted, Appended}


def test_an_only_voter_sends_nothing_early() -> None:
    puppets = Puppets((1,))
    told: list[Outcome] = []
    puppets.group.change_members(AddLearner(2), told.append)
    puppets.turn()
    puppets.propose(b"w")
    puppets.engine.write(puppets.stage(), sync=True)
    puppets.consensus.send_early()
    assert puppets.outbound == [], "a learner does not count"
    puppets.consensus.release()
    assert [to for to, _ in puppets.outbound] == [2]
    puppets.group.change_members(Promote(2), told.append)
    puppets.turn()
    puppets.acknowledge(2)
    puppets.outbound.clear()
    assert told == [Outcome.APPLIED] * 2
    puppets.group.change_members(Remove(2), told.append)
    puppets.propose(b"x")
    puppets.stage()
    puppets.consensus.send_early()
    assert puppets.outbound == []


def test_an_entry_is_not_committed_in_the_turn_that_appends_it() -> None:
    """The argument of send_early: whoever is counted for an entry has answered for it since."""
    puppets = Puppets()
    term = puppets.lead()
    puppets.acknowledge(2)
    puppets.propose(b"x")
    puppets.stage((2, Appended(term, True, 2)), (3, Appended(term, True, 2)))
    assert puppets.core.commit_index == 1


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
    puppets = Puppets()
    puppets.stage((2, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    assert puppets.consensus.needs_sync
    puppets.consensus.release()
    puppets.now += 1.2
    puppets.stage((2, Vote(2, 9, 1)))
    assert puppets.consensus.needs_sync


def test_applying_and_dropping_need_no_sync() -> None:
    puppets = Puppets()
    puppets.turn((2, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, command(b"x")))))
    writes = puppets.stage((2, Append(1, 2, 1, 2, 2, ())))
    assert len(writes) > 3
    assert puppets.group.applied_index == 2
    assert not puppets.consensus.needs_sync


def test_an_entry_applied_and_dropped_in_its_first_turn_needs_a_sync() -> None:
    puppets = Puppets()
    append = Append(1, 0, 0, 2, 2, ((1, NOOP_PAYLOAD), (1, command(b"x"))))
    puppets.stage((2, append))
    assert puppets.log() == []
    assert puppets.consensus.needs_sync


def test_a_group_of_one_always_needs_a_sync() -> None:
    puppets = Puppets((1,))
    puppets.propose(b"x")
    puppets.stage()
    assert puppets.consensus.needs_sync
    puppets.consensus.release()
    puppets.stage()
    assert not puppets.consensus.needs_sync, "nothing was staged"


def test_applied_state_that_is_lost_with_the_power_is_applied_again() -> None:
    puppets = Puppets()
    puppets.turn((2, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, command(b"x")))))
    for lost in (False, True):
        puppets.engine.write(puppets.stage((2, Append(1, 2, 1, 2, 2, ()))), sync=not lost)
        assert puppets.group.applied_index == 2
        puppets.engine.disk._unsynced.clear()
        puppets.engine.disk.crash()
        puppets = Puppets(engine=MemoryEngine(puppets.engine.disk))
        if lost:
            break
        assert (puppets.group.applied_index, puppets.log()) == (2, [])
        puppets.turn((2, puppets.append(1, (2, 1), (1, command(b"y")), commit=2)))
    assert puppets.machine.history()[2] == b"x"
    assert puppets.group.stopped is None


def test_nothing_acknowledged_is_lost_when_all_lose_power_with_applied_state_unsynced() -> None:
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
    puppets = Puppets()
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(1, True)))
    puppets.stage((2, Voted(1, True)))
    puppets.consensus.send_early()
    assert {type(what) for _, what in puppets.outbound} == {Append}
