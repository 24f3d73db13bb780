"""Section 7: a member too far behind gets the state, in chunks, put in place in steps."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)

import msgspec
import pytest

from postroom.errors import StoreCorrupted
from postroom.kv.keys import raft_log_prefix
from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import NetworkFaults, RaftOptions
from postroom.raft.membership import Members
from postroom.raft.messages import (
    Appended,
    Chunk,
    ChunkTaken,
    PreVote,
    TimeoutNow,
    Vote,
    Voted,
)
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import APPLIED, GROUP_ID, HISTORY, Cluster, Member
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command

SPOOL = raft_log_prefix(GROUP_ID) + b"s"
OPTIONS = RaftOptions(log_entries_max=5, log_catching_up_factor=1)


def chunk(ordinal: int, *, final: bool = False, transfer: int = 1, index: int = 9) -> Chunk:
    key, value = HISTORY + (ordinal + 1).to_bytes(8, "big"), b"state %d" % ordinal
    data = msgspec.msgpack.encode([(APPLIED, index.to_bytes(8, "big")), (key, value)])
    return Chunk(3, transfer, index, 2, Members((1, 2, 3)), ordinal, data, final)


def install(peers: ScriptedPeers) -> list:
    """Take turns until the snapshot is in place; return what was said meanwhile."""
    said: list = []
    while peers.group.is_installing:
        said += peers.turn()
    return said


def restarted(peers: ScriptedPeers, *, power: bool = True) -> ScriptedPeers:
    peers.engine.disk.crash(peers.consensus._random if power else None)
    return ScriptedPeers(engine=MemoryEngine(peers.engine.disk))


def spooled(peers: ScriptedPeers) -> int:
    return len(list(peers.engine.iterate(SPOOL, SPOOL + b"\xff" * 5)))


def behind(cluster: Cluster, commands: int = 30) -> Member:
    """Return a member that was away for too long, and is back."""
    cluster.replicate(3)
    away = cluster.followers()[0].node
    cluster.crash(away)
    cluster.replicate(commands)
    cluster.run(2.0)
    leader = cluster.elect()
    assert leader.group.core.journal.base_index > 10
    return cluster.start(away)


def test_a_member_far_behind_is_brought_up_by_a_snapshot() -> None:
    cluster = Cluster(3, options=OPTIONS)
    member = behind(cluster)
    leader = cluster.elect()
    cluster.settle()
    assert member.machine.history() == leader.machine.history()
    assert len(member.machine.applied_now) < 20
    assert [len(leader.machine.opened), leader.machine.closed] == [1, 1]
    cluster.replicate(3)
    cluster.settle()
    cluster.check_state_machine_safety()


def test_an_empty_member_is_brought_up_by_a_snapshot() -> None:
    cluster = Cluster(3, options=RaftOptions(log_entries_max=2, log_catching_up_factor=1))
    lost = cluster.followers()[0].node
    cluster.crash(lost)
    cluster.replicate(10)
    cluster.run(2.0)
    cluster.start(lost)
    cluster.settle()
    cluster.check_state_machine_safety()


# Receiving.


def test_receipt_of_the_last_chunk_and_the_logs_new_beginning_are_one_write() -> None:
    peers = ScriptedPeers()
    before = peers.machine.history()
    assert peers.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert peers.machine.history() == before
    writes = peers.stage((2, chunk(1, final=True)))
    assert peers.outbound == []
    assert peers.consensus.needs_sync
    assert {SPOOL, raft_log_prefix(GROUP_ID) + b"h"} <= set(writes)
    peers.engine.write(writes, sync=True)
    peers.consensus.release()
    said = [what for _, what in peers.outbound]
    assert said == [Appended(3, True, 9, installing=True)]
    assert peers.machine.history() == {}
    install(peers)
    assert peers.machine.history() == {1: b"state 0", 2: b"state 1"}
    assert (peers.group.applied_index, peers.group.last_index) == (9, 9)
    assert spooled(peers) == 0


def test_spooling_needs_no_sync() -> None:
    """The part of an incomplete spool that a loss of power takes is sent again."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0))))
    peers.stage((2, chunk(0)))
    assert not peers.consensus.needs_sync


def test_an_installed_snapshot_survives_a_restart() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0, final=True)))
    install(peers)
    again = restarted(peers)
    assert (again.group.applied_index, again.journal.term_at(9)) == (9, 2)
    assert again.ask(2, again.append(3, (9, 2), (3, command(b"x")))) == [Appended(3, True, 10)]


def test_doubled_and_overtaking_chunks_do_no_harm() -> None:
    peers = ScriptedPeers()
    assert peers.ask(2, chunk(1)) == [ChunkTaken(3, 1, 0)]
    assert peers.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert peers.ask(2, chunk(0)) == [ChunkTaken(3, 1, 1)]
    assert peers.ask(2, chunk(1)) == [ChunkTaken(3, 1, 2)]
    assert peers.ask(2, chunk(0, transfer=2)) == [ChunkTaken(3, 2, 1)]
    assert peers.ask(2, chunk(2, final=True)) == [ChunkTaken(3, 1, 0)]
    assert peers.ask(2, chunk(1, transfer=2, final=True)) == [Appended(3, True, 9, False, True)]


def test_a_newer_transfer_replaces_what_came_in_part() -> None:
    peers = ScriptedPeers()
    for ordinal in range(3):
        peers.turn((2, chunk(ordinal)))
    peers.turn((2, chunk(0, transfer=2)))
    assert spooled(peers) == 2, "its record and its first chunk"
    assert peers.ask(2, chunk(0)) == [ChunkTaken(3, 1, 0)], "an older one does not come back"


def test_chunks_of_another_snapshot_under_the_same_number_are_not_mixed() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    assert peers.ask(2, chunk(1, index=10, final=True)) == [ChunkTaken(3, 1, 0)]
    assert peers.group.applied_index == 0


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xc1", b"\x93\x01\x02\x03"])
def test_a_chunk_that_is_no_part_of_any_state_changes_nothing(data: bytes) -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0))))
    odd = msgspec.structs.replace(chunk(0, final=True), data=data)
    assert peers.stage((2, odd)) == {}
    assert peers.group.stopped is None


def test_entries_after_the_snapshot_are_kept() -> None:
    """Figure 13, step 6: "retain log entries following it and reply"."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0), *[(2, command(b"%d" % n)) for n in range(12)])))
    assert peers.ask(2, chunk(0, final=True)) == [Appended(3, True, 9)]
    assert peers.group.last_index == 12
    assert peers.group.applied_index == 9


def test_an_old_snapshot_changes_nothing() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0, final=True)))
    install(peers)
    history = peers.machine.history()
    assert peers.ask(2, chunk(0, transfer=2, final=True, index=5)) == [Appended(3, True, 5)]
    assert peers.machine.history() == history
    assert peers.group.applied_index == 9


def test_the_whole_log_is_replaced_when_it_conflicts() -> None:
    """Figure 13, step 7: "Discard the entire log"."""
    peers = ScriptedPeers()
    peers.turn((3, peers.append(1, (0, 0), *[(1, command(b"%d" % n)) for n in range(12)])))
    peers.turn((2, chunk(0, final=True)))
    assert peers.log() == []
    assert [key for key, _ in peers.engine.iterate(b"\x02", b"\x03") if key[9:10] == b"l"] == []


def test_a_partial_snapshot_is_dropped_when_the_log_has_passed_it() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    entries = [(3, command(b"%d" % n)) for n in range(9)]
    peers.turn((2, peers.append(3, (0, 0), *entries, commit=9)))
    assert spooled(peers) == 0


def test_proposals_that_a_snapshot_covers_end_as_unknown() -> None:
    peers = ScriptedPeers()
    peers.lead()
    peers.propose(b"x")
    peers.turn()
    peers.turn((2, chunk(0, final=True)))
    assert peers.outcomes == [ProposalOutcome.UNKNOWN]


# Breaks.


def test_a_follower_that_restarts_asks_for_the_chunk_that_it_lacks() -> None:
    peers = ScriptedPeers()
    for ordinal in range(3):
        peers.turn((2, chunk(ordinal)))
    again = restarted(peers)
    assert again.ask(2, chunk(5)) == [ChunkTaken(3, 1, 3)]
    assert again.ask(2, chunk(3, final=True)) == [Appended(3, True, 9, installing=True)]
    install(again)
    assert len(again.machine.history()) == 4


def test_a_spool_that_the_power_shortened_is_gone_on_with() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0))))
    for ordinal in range(5):
        peers.engine.write(peers.stage((2, chunk(ordinal))), sync=False)
        peers.consensus.release()
    for _ in range(2):
        peers.engine.disk._unsynced.pop()
    peers.engine.disk.crash()
    again = ScriptedPeers(engine=MemoryEngine(peers.engine.disk))
    assert again.ask(2, chunk(5)) == [ChunkTaken(3, 1, 3)]


def test_a_crash_at_any_step_of_an_installation_begins_it_again() -> None:
    """The keys in place may be the old ones, none, or a part of the new ones."""
    for steps in range(12):
        peers = ScriptedPeers()
        entries = [(1, NOOP_PAYLOAD), *[(1, command(b"%d" % n)) for n in range(3)]]
        peers.turn((3, peers.append(1, (0, 0), *entries, commit=4)))
        peers.turn((2, chunk(0)))
        peers.turn((2, chunk(1, final=True)))
        for _ in range(steps):
            peers.engine.write(peers.stage(), sync=False)
            peers.consensus.release()
        peers.engine.disk.crash(random.Random(steps))
        again = ScriptedPeers(engine=MemoryEngine(peers.engine.disk))
        assert (again.group.applied_index, again.group.last_index) == (9, 9)
        install(again)
        assert again.machine.history() == {1: b"state 0", 2: b"state 1"}
        assert again.machine.applied_index() == 9
        assert spooled(again) == 0
        again.turn((2, again.append(3, (9, 2), (3, command(b"x")), commit=10)))
        assert again.machine.history()[10] == b"x"


def test_an_installing_member_votes_and_acknowledges_but_does_not_apply() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.turn((2, chunk(1, final=True)))
    append = peers.append(3, (9, 2), (3, command(b"x")), commit=10)
    assert peers.ask(2, append) == [Appended(3, True, 10, installing=True)]
    assert peers.group.is_installing
    assert peers.log() == [(10, 3)]
    assert 10 not in peers.machine.history()
    peers.now += 1.2
    assert peers.ask(3, Vote(5, 10, 3)) == [Voted(5, True)]
    said = install(peers)
    assert said == []
    assert peers.machine.history()[10] == b"x"
    assert peers.group.applied_index == 10


def test_an_installing_member_neither_campaigns_nor_takes_over() -> None:
    """A leader needs its state: what it evaluates it evaluates against that."""
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.turn((2, chunk(1, final=True)))
    peers.now += 5.0
    assert peers.turn((2, TimeoutNow(3))) == []
    assert peers.group.is_installing
    assert install(peers) != [], "as soon as it can"
    assert peers.group.term == 3


def test_an_installing_member_takes_no_other_snapshot() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.turn((2, chunk(1, final=True)))
    assert peers.ask(2, chunk(0, transfer=2, index=20)) == [ChunkTaken(3, 2, 0)]
    install(peers)
    assert peers.ask(2, chunk(0, transfer=2, index=20)) == [ChunkTaken(3, 2, 1)]


def test_another_state_than_announced_stops_the_replica() -> None:
    peers = ScriptedPeers()
    data = msgspec.msgpack.encode([(APPLIED, (8).to_bytes(8, "big"))])
    peers.turn((2, msgspec.structs.replace(chunk(0, final=True), data=data)))
    while peers.group.is_installing and peers.group.stopped is None:
        peers.turn()
    assert isinstance(peers.group.stopped, StoreCorrupted)


def test_a_damaged_spool_is_refused() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.turn((2, chunk(1, final=True)))
    engine = peers.engine
    for damage, message in [
        ({SPOOL + b"\0\0\0\1": None}, "chunk 1 is missing"),
        ({SPOOL: b"\xc1"}, "unreadable"),
    ]:
        engine.write(damage, sync=True)  # type: ignore[arg-type]
        with pytest.raises(StoreCorrupted, match=message):
            ScriptedPeers(engine=engine)


def test_an_erased_group_leaves_no_spool() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.engine.write(peers.consensus.close(GROUP_ID, erase=True), sync=True)
    assert list(peers.engine.iterate(b"\x02", b"\x03")) == []


def test_transfers_survive_everything() -> None:
    """Crashes of either side at any moment, a bad network, other leaders: it catches up."""
    for seed in range(25):
        cluster = Cluster(3, seed, OPTIONS)
        member = behind(cluster)
        cluster.network.faults = NetworkFaults(0.1, 0.1, 0.001, 0.05)
        for _ in range(6):
            cluster.run(cluster.random.choice([0.003, 0.02, 0.2]))
            victim = cluster.random.choice([member.node, member.node, *cluster.members])
            cluster.crash(victim, power=cluster.random.random() < 0.5)
            cluster.run(0.01)
            again = cluster.start(victim)
            member = again if victim == member.node else member
            cluster.check_state_machine_safety()
        cluster.network.faults = NetworkFaults()
        cluster.replicate(2)
        cluster.settle()
        histories = [each.machine.history() for each in cluster.members.values()]
        assert histories[0] == histories[1] == histories[2]
        cluster.check_state_machine_safety()


def test_proposals_go_on_while_a_snapshot_is_sent_and_installed() -> None:
    cluster = Cluster(3, options=OPTIONS)
    member = behind(cluster, 300)
    latest = 0.0
    while not (member.group.applied_index > 300 and not member.group.is_installing):
        before = cluster.now
        cluster.replicate()
        latest = max(latest, cluster.now - before)
    assert latest < 0.02


def test_a_straw_poll_is_answered_while_installing() -> None:
    peers = ScriptedPeers()
    peers.turn((2, chunk(0)))
    peers.turn((2, chunk(1, final=True)))
    peers.now += 1.2
    assert [what.granted for what in peers.ask(3, PreVote(4, 9, 2))] == [True]  # type: ignore[union-attr]
