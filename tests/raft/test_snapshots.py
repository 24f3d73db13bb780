"""Section 7: a member too far behind gets the state, in chunks, installed whole or not at all."""

from __future__ import annotations

import msgspec

from postroom.kv.memory import MemoryEngine
from postroom.raft.membership import Members
from postroom.raft.messages import Appended, Chunk, ChunkTaken
from postroom.raft.options import RaftOptions
from postroom.raft.outcome import Outcome
from tests.raft.cluster import Cluster
from tests.raft.puppet import Puppets, command


def chunk(ordinal: int, *, final: bool = False, transfer: int = 1, index: int = 9) -> Chunk:
    data = msgspec.msgpack.encode((ordinal + 1, b"state %d" % ordinal))
    return Chunk(3, transfer, index, 2, Members((1, 2, 3)), ordinal, data, final)


def test_a_member_far_behind_is_brought_up_by_a_snapshot() -> None:
    cluster = Cluster(3, options=RaftOptions(log_entries_max=5))
    cluster.replicate(3)
    away = cluster.followers()[0].node
    cluster.crash(away)
    cluster.replicate(20)
    cluster.run(2.0)
    leader = cluster.elect()
    assert leader.group.core.journal.base_index > 10
    member = cluster.start(away)
    cluster.settle()
    assert member.machine.history() == leader.machine.history()
    assert len(member.machine.applied_now) < 20
    cluster.replicate(3)
    cluster.settle()
    cluster.check_state_machine_safety()


def test_an_empty_member_is_brought_up_by_a_snapshot() -> None:
    cluster = Cluster(3, options=RaftOptions(log_entries_max=2))
    lost = cluster.followers()[0].node
    cluster.crash(lost)
    cluster.replicate(10)
    cluster.run(2.0)
    cluster.start(lost)
    cluster.settle()
    cluster.check_state_machine_safety()


def test_a_snapshot_is_installed_at_its_end_in_one_write() -> None:
    puppets = Puppets()
    before = puppets.machine.history()
    assert puppets.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert puppets.machine.history() == before
    writes = puppets.stage((2, chunk(1, final=True)))
    assert puppets.outbound == []
    puppets.engine.write(writes, sync=True)
    puppets.consensus.release()
    assert [what for _, what in puppets.outbound] == [Appended(3, True, 9)]
    assert puppets.machine.history() == {1: b"state 0", 2: b"state 1"}
    assert (puppets.group.applied_index, puppets.group.last_index) == (9, 9)


def test_an_installed_snapshot_survives_a_restart() -> None:
    puppets = Puppets()
    puppets.turn((2, chunk(0, final=True)))
    puppets.engine.disk.crash(puppets.consensus._random)
    again = Puppets(engine=MemoryEngine(puppets.engine.disk))
    assert (again.group.applied_index, again.journal.term_at(9)) == (9, 2)
    assert again.ask(2, again.append(3, (9, 2), (3, command(b"x")))) == [Appended(3, True, 10)]


def test_doubled_and_overtaking_chunks_do_no_harm() -> None:
    puppets = Puppets()
    assert puppets.ask(2, chunk(1)) == [ChunkTaken(3, 1, 0)]
    assert puppets.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert puppets.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert puppets.ask(2, chunk(1)) == [ChunkTaken(3, 1, 2)]
    assert puppets.ask(2, chunk(0, transfer=2)) == [ChunkTaken(3, 2, 1)]
    assert puppets.ask(2, chunk(2, final=True)) == [ChunkTaken(3, 1, 0)]
    assert puppets.ask(2, chunk(1, transfer=2, final=True)) == [Appended(3, True, 9)]


def test_entries_after_the_snapshot_are_kept() -> None:
    """Figure 13, step 6: "retain log entries following it and reply"."""
    puppets = Puppets()
    puppets.turn((2, puppets.append(3, (0, 0), *[(2, command(b"%d" % n)) for n in range(12)])))
    assert puppets.ask(2, chunk(0, final=True)) == [Appended(3, True, 9)]
    assert puppets.group.last_index == 12
    assert puppets.group.applied_index == 9


def test_an_old_snapshot_changes_nothing() -> None:
    puppets = Puppets()
    puppets.turn((2, chunk(0, final=True)))
    history = puppets.machine.history()
    assert puppets.ask(2, chunk(0, transfer=2, final=True, index=5)) == [Appended(3, True, 5)]
    assert puppets.machine.history() == history
    assert puppets.group.applied_index == 9


def test_the_whole_log_is_replaced_when_it_conflicts() -> None:
    """Figure 13, step 7: "Discard the entire log"."""
    puppets = Puppets()
    puppets.turn((3, puppets.append(1, (0, 0), *[(1, command(b"%d" % n)) for n in range(12)])))
    puppets.turn((2, chunk(0, final=True)))
    assert puppets.log() == []
    assert [key for key, _ in puppets.engine.iterate(b"\x02", b"\x03") if key[9:10] == b"l"] == []


def test_a_lost_chunk_is_sent_again_with_the_next_heartbeat() -> None:
    puppets = Puppets(options=RaftOptions(log_entries_max=4))
    term = puppets.lead()
    puppets.acknowledge(2)
    said = []
    for _ in range(6):
        puppets.propose(b"x")
        said += puppets.turn()
        said += puppets.acknowledge(2)
    said += puppets.turn((3, Appended(term, False, 0)))
    assert puppets.journal.base_index > 1
    sent = [what for to, what in said if to == 3 and isinstance(what, Chunk)]
    assert [what.ordinal for what in sent] == [0]
    assert [what for to, what in puppets.turn() if to == 3] == []
    again = [what for to, what in puppets.wait(0.11) if to == 3]
    assert again == sent
    following = puppets.turn((3, ChunkTaken(term, sent[0].transfer, 1)))
    assert [what.ordinal for to, what in following if isinstance(what, Chunk)] == [1]


def test_proposals_that_a_snapshot_covers_end_as_unknown() -> None:
    puppets = Puppets()
    puppets.lead()
    puppets.propose(b"x")
    puppets.turn()
    puppets.turn((2, chunk(0, final=True)))
    assert puppets.outcomes == [Outcome.UNKNOWN]
