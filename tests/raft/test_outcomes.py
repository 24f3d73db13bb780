"""Every proposal ends, exactly once, as what it was; nothing leaves before it is durable."""

from __future__ import annotations

import pytest

from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import MemoryEngine
from postroom.raft.messages import Appended, PreVote, PreVoted, Voted
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import GROUP_ID, Cluster, HistoryMachine
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command


def test_a_proposal_to_a_follower_is_superseded() -> None:
    peers = ScriptedPeers()
    peers.propose(b"x")
    assert peers.outcomes == []
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.SUPERSEDED]


def test_a_proposal_whose_place_is_taken_for_good_is_superseded() -> None:
    """pysyncobj never calls back for an entry that was overwritten and not followed."""
    peers = ScriptedPeers()
    term = peers.lead()
    for text in (b"x", b"y", b"z"):
        peers.propose(text)
    peers.turn()
    taken = (term + 1, NOOP_PAYLOAD)
    peers.turn((2, peers.append(term + 1, (0, 0), taken)))
    assert peers.outcomes == []
    peers.turn((2, peers.append(term + 1, (1, term + 1), commit=1)))
    assert peers.outcomes == [ProposalOutcome.SUPERSEDED] * 3


def test_a_proposal_that_was_cut_may_still_be_applied() -> None:
    """Figure 8: an entry removed here may live elsewhere, and be committed after all."""
    peers = ScriptedPeers((1, 2, 3, 4, 5))
    assert peers.lead() == 1
    peers.propose(b"x", "context")
    peers.turn()
    assert peers.log() == [(1, 1), (2, 1)]
    peers.turn((5, peers.append(2, (1, 1), (2, NOOP_PAYLOAD))))
    assert peers.log() == [(1, 1), (2, 2)]
    assert peers.outcomes == []
    peers.turn((4, peers.append(3, (1, 1), (1, command(b"x")), (3, NOOP_PAYLOAD), commit=3)))
    assert peers.outcomes == [ProposalOutcome.APPLIED]
    assert peers.machine.contexts == ["context"]


def test_a_deposed_leader_gives_up_after_a_while() -> None:
    """A leader cut off for ever tells its callers that it does not know."""
    peers = ScriptedPeers()
    peers.lead()
    peers.propose(b"x")
    peers.turn()
    peers.wait(1.1)
    assert peers.outcomes == []
    deadline = peers.consensus.next_deadline()
    assert deadline is not None
    peers.wait(1.1)
    assert peers.outcomes == [ProposalOutcome.UNKNOWN]


def test_a_leader_that_leads_again_gives_nothing_up() -> None:
    """Its proposals from now on are no orphans of the term in which it was deposed."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.propose(b"before")
    peers.turn()
    peers.turn((2, Voted(term + 1, granted=False)))
    assert not peers.group.is_leader
    seconds = peers.core.options.orphan_seconds
    peers.now += seconds - 0.01
    peers.core.election_deadline = peers.now
    peers.consensus.groups[GROUP_ID].deliver(2, PreVoted(0, granted=False))
    asked = [each.term for _, each in peers.turn() if isinstance(each, PreVote)]
    peers.turn((2, PreVoted(asked[0], granted=True)))
    peers.turn((2, Voted(asked[0], granted=True)))
    assert peers.group.is_leader
    peers.propose(b"after", "context")
    peers.turn()
    peers.wait(0.02)
    assert peers.outcomes == []
    peers.acknowledge()
    assert peers.outcomes == [ProposalOutcome.APPLIED] * 2
    assert peers.machine.contexts == ["context"]


def test_contexts_are_given_only_for_what_was_proposed_here_and_waits() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    peers.propose(b"mine", "mine")
    peers.acknowledge(2)
    peers.turn((2, Appended(term, True, 2)))
    assert peers.machine.contexts == ["mine"]
    peers.turn((3, peers.append(term + 1, (2, term), (term + 1, command(b"theirs")), commit=3)))
    assert peers.machine.contexts == ["mine"]


def test_closing_ends_what_is_under_way() -> None:
    peers = ScriptedPeers()
    peers.lead()
    peers.propose(b"appended")
    peers.turn()
    peers.propose(b"queued")
    peers.consensus.close(GROUP_ID)
    assert peers.outcomes == [ProposalOutcome.UNKNOWN, ProposalOutcome.SUPERSEDED]
    peers.propose(b"late")
    assert peers.outcomes[2:] == [ProposalOutcome.SUPERSEDED]


def test_a_failed_write_ends_everything() -> None:
    peers = ScriptedPeers((1,))
    peers.engine.disk.write_faults[peers.engine.disk.writes + 1] = WriteFault.THERE_WHOLE
    peers.propose(b"staged")
    writes = peers.stage()
    peers.propose(b"queued")
    with pytest.raises(EngineFailed) as caught:
        peers.engine.write(writes, sync=True)
    peers.consensus.fail(caught.value)
    assert peers.outcomes == [ProposalOutcome.UNKNOWN, ProposalOutcome.SUPERSEDED]
    assert peers.group.stopped is caught.value
    with pytest.raises(RuntimeError, match="failed"):
        peers.consensus.stage()
    peers.propose(b"late")
    assert peers.outcomes[2:] == [ProposalOutcome.SUPERSEDED]


def test_an_exception_while_applying_stops_the_replica_and_keeps_its_state() -> None:
    """pysyncobj tries the same entry again for ever; here the replica stops and others go on."""
    peers = ScriptedPeers((1,))
    other = HistoryMachine(MemoryEngine())
    group = peers.consensus.create(8, (1,), other)
    peers.turn()
    peers.propose(b"good")
    peers.turn()
    before = dict(peers.engine.iterate(b"", b"\xff"))
    peers.machine.fails_on = b"bad"
    peers.propose(b"before")
    peers.propose(b"bad")
    group.propose(b"fine", None, peers.outcomes.append)
    writes = peers.stage()
    peers.consensus.release()
    assert isinstance(peers.group.stopped, ArithmeticError)
    assert not peers.group.is_leader
    assert set(peers.outcomes) == {
        ProposalOutcome.APPLIED,
        ProposalOutcome.UNKNOWN,
        ProposalOutcome.SUPERSEDED,
    }
    assert all(b"bad" not in (value or b"") for value in writes.values())
    assert any(value == b"fine" for value in writes.values())
    peers.propose(b"late")
    peers.stage()
    peers.consensus.release()
    assert len(peers.outcomes) == 5
    assert dict(peers.engine.iterate(b"", b"\xff")) == before
    assert peers.consensus.next_deadline() is None


def test_a_stopped_follower_acknowledges_nothing() -> None:
    peers = ScriptedPeers()
    peers.machine.fails_on = b"bad"
    entry = (1, command(b"bad"))
    assert peers.turn((2, peers.append(1, (0, 0), entry, commit=1))) == []
    assert peers.group.stopped is not None
    assert peers.log()
    assert list(peers.engine.iterate(b"\x02", b"\x05"))[1:] == []


def test_a_failing_listener_does_not_silence_the_others() -> None:
    peers = ScriptedPeers((1,))

    def fail(outcome: ProposalOutcome) -> None:
        raise ValueError(outcome)

    peers.group.propose(b"x", None, fail)
    peers.propose(b"y")
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_a_listener_may_propose() -> None:
    peers = ScriptedPeers((1,))
    peers.group.propose(b"x", None, lambda _: peers.propose(b"y"))
    peers.turn()
    assert peers.consensus.next_deadline() == peers.now
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_an_answer_leaves_after_its_entry_is_synced() -> None:
    """pysyncobj answers first, and its journal is never synced: acknowledged entries vanish."""
    peers = ScriptedPeers()
    writes = peers.stage((2, peers.append(1, (0, 0), (1, command(b"x")))))
    assert any(command(b"x") in (value or b"") for value in writes.values())
    assert peers.outbound == []
    peers.engine.write(writes, sync=True)
    peers.consensus.release()
    assert [what for _, what in peers.outbound] == [Appended(1, True, 1)]


def test_an_entry_that_a_follower_lost_with_the_power_was_not_acknowledged() -> None:
    """The power goes after the follower staged the entry, before its write was synced."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.replicate()
    cluster.settle()
    follower, other = cluster.followers()
    cluster.crash(other.node)
    proposed = cluster.propose(leader)
    staged: WriteSet = {}
    while not any(proposed.command in (value or b"") for value in staged.values()):
        leader.turn()
        staged = follower.consensus.stage()
        if not any(proposed.command in (value or b"") for value in staged.values()):
            follower.engine.write(staged, sync=True)
            follower.consensus.release()
            cluster.now += 0.001
    cluster.crash(follower.node)
    cluster.run(0.4)
    assert proposed.outcome is None


def test_acknowledged_entries_survive_a_loss_of_power_everywhere() -> None:
    """The engine drops all that was not synced when a member crashes."""
    for seed in range(5):
        cluster = Cluster(3, seed)
        proposed = [cluster.propose(cluster.elect()) for _ in range(3)]
        cluster.run_until(lambda proposed=proposed: all(each.outcomes for each in proposed))
        for node in (1, 2, 3):
            cluster.crash(node)
        for node in (1, 2, 3):
            cluster.start(node)
        cluster.replicate()
        cluster.settle()
        cluster.check_outcomes()
