"""Every proposal ends, exactly once, as what it was; nothing leaves before it is durable."""

from __future__ import annotations

import pytest

from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.memory import MemoryEngine, WriteFault
from postroom.raft.messages import Appended
from postroom.raft.outcome import Outcome
from tests.raft.cluster import GROUP_ID, Cluster, HistoryMachine
from tests.raft.puppet import NOOP_PAYLOAD, Puppets, command


def test_a_proposal_to_a_follower_is_superseded() -> None:
    puppets = Puppets()
    puppets.propose(b"x")
    assert puppets.outcomes == []
    puppets.turn()
    assert puppets.outcomes == [Outcome.SUPERSEDED]


def test_a_proposal_whose_place_is_taken_for_good_is_superseded() -> None:
    """pysyncobj never calls back for an entry that was overwritten and not followed."""
    puppets = Puppets()
    term = puppets.lead()
    for text in (b"x", b"y", b"z"):
        puppets.propose(text)
    puppets.turn()
    taken = (term + 1, NOOP_PAYLOAD)
    puppets.turn((2, puppets.append(term + 1, (0, 0), taken)))
    assert puppets.outcomes == []
    puppets.turn((2, puppets.append(term + 1, (1, term + 1), commit=1)))
    assert puppets.outcomes == [Outcome.SUPERSEDED] * 3


def test_a_proposal_that_was_cut_may_still_be_applied() -> None:
    """Figure 8: an entry removed here may live elsewhere, and be committed after all."""
    puppets = Puppets((1, 2, 3, 4, 5))
    assert puppets.lead() == 1
    puppets.propose(b"x", "context")
    puppets.turn()
    assert puppets.log() == [(1, 1), (2, 1)]
    puppets.turn((5, puppets.append(2, (1, 1), (2, NOOP_PAYLOAD))))
    assert puppets.log() == [(1, 1), (2, 2)]
    assert puppets.outcomes == []
    puppets.turn((4, puppets.append(3, (1, 1), (1, command(b"x")), (3, NOOP_PAYLOAD), commit=3)))
    assert puppets.outcomes == [Outcome.APPLIED]
    assert puppets.machine.contexts == ["context"]


def test_a_deposed_leader_gives_up_after_a_while() -> None:
    """A leader cut off for ever tells its callers that it does not know."""
    puppets = Puppets()
    puppets.lead()
    puppets.propose(b"x")
    puppets.turn()
    puppets.wait(1.1)
    assert puppets.outcomes == []
    deadline = puppets.consensus.next_deadline()
    assert deadline is not None
    puppets.wait(1.1)
    assert puppets.outcomes == [Outcome.UNKNOWN]


def test_contexts_are_given_only_for_what_was_proposed_here_and_waits() -> None:
    puppets = Puppets()
    term = puppets.lead()
    puppets.propose(b"mine", "mine")
    puppets.acknowledge(2)
    puppets.turn((2, Appended(term, True, 2)))
    assert puppets.machine.contexts == ["mine"]
    puppets.turn((3, puppets.append(term + 1, (2, term), (term + 1, command(b"theirs")), commit=3)))
    assert puppets.machine.contexts == ["mine"]


def test_closing_ends_what_is_under_way() -> None:
    puppets = Puppets()
    puppets.lead()
    puppets.propose(b"appended")
    puppets.turn()
    puppets.propose(b"queued")
    puppets.consensus.close(GROUP_ID)
    assert puppets.outcomes == [Outcome.UNKNOWN, Outcome.SUPERSEDED]
    puppets.propose(b"late")
    assert puppets.outcomes[2:] == [Outcome.SUPERSEDED]


def test_a_failed_write_ends_everything() -> None:
    puppets = Puppets((1,))
    puppets.engine.disk.write_faults[puppets.engine.disk.writes + 1] = WriteFault.THERE_WHOLE
    puppets.propose(b"staged")
    writes = puppets.stage()
    puppets.propose(b"queued")
    with pytest.raises(EngineFailed) as caught:
        puppets.engine.write(writes, sync=True)
    puppets.consensus.fail(caught.value)
    assert puppets.outcomes == [Outcome.UNKNOWN, Outcome.SUPERSEDED]
    assert puppets.group.stopped is caught.value
    with pytest.raises(RuntimeError, match="failed"):
        puppets.consensus.stage()
    puppets.propose(b"late")
    assert puppets.outcomes[2:] == [Outcome.SUPERSEDED]


def test_an_exception_while_applying_stops_the_replica_and_keeps_its_state() -> None:
    """pysyncobj tries the same entry again for ever; here the replica stops and others go on."""
    puppets = Puppets((1,))
    other = HistoryMachine(MemoryEngine())
    group = puppets.consensus.create(8, (1,), other)
    puppets.turn()
    puppets.propose(b"good")
    puppets.turn()
    before = dict(puppets.engine.iterate(b"", b"\xff"))
    puppets.machine.fails_on = b"bad"
    puppets.propose(b"before")
    puppets.propose(b"bad")
    group.propose(b"fine", None, puppets.outcomes.append)
    writes = puppets.stage()
    puppets.consensus.release()
    assert isinstance(puppets.group.stopped, ArithmeticError)
    assert not puppets.group.is_leader
    assert set(puppets.outcomes) == {Outcome.APPLIED, Outcome.UNKNOWN, Outcome.SUPERSEDED}
    assert all(b"bad" not in (value or b"") for value in writes.values())
    assert any(value == b"fine" for value in writes.values())
    puppets.propose(b"late")
    puppets.stage()
    puppets.consensus.release()
    assert len(puppets.outcomes) == 5
    assert dict(puppets.engine.iterate(b"", b"\xff")) == before
    assert puppets.consensus.next_deadline() is None


def test_a_stopped_follower_acknowledges_nothing() -> None:
    puppets = Puppets()
    puppets.machine.fails_on = b"bad"
    entry = (1, command(b"bad"))
    assert puppets.turn((2, puppets.append(1, (0, 0), entry, commit=1))) == []
    assert puppets.group.stopped is not None
    assert puppets.log()
    assert list(puppets.engine.iterate(b"\x02", b"\x05"))[1:] == []


def test_nobody_who_is_told_silences_the_others() -> None:
    puppets = Puppets((1,))

    def fail(outcome: Outcome) -> None:
        raise ValueError(outcome)

    puppets.group.propose(b"x", None, fail)
    puppets.propose(b"y")
    puppets.turn()
    assert puppets.outcomes == [Outcome.APPLIED]


def test_who_is_told_may_propose() -> None:
    puppets = Puppets((1,))
    puppets.group.propose(b"x", None, lambda _: puppets.propose(b"y"))
    puppets.turn()
    assert puppets.consensus.next_deadline() == puppets.now
    puppets.turn()
    assert puppets.outcomes == [Outcome.APPLIED]


def test_nothing_leaves_before_it_is_synced() -> None:
    """pysyncobj answers first, and its journal is never synced: acknowledged entries vanish."""
    puppets = Puppets()
    writes = puppets.stage((2, puppets.append(1, (0, 0), (1, command(b"x")))))
    assert any(command(b"x") in (value or b"") for value in writes.values())
    assert puppets.outbound == []
    puppets.engine.write(writes, sync=True)
    puppets.consensus.release()
    assert [what for _, what in puppets.outbound] == [Appended(1, True, 1)]


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


def test_what_was_acknowledged_survives_a_loss_of_power_everywhere() -> None:
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
