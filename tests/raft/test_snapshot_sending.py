"""The leader sends a state in chunks: some at a time, again if need be, and anew."""

from __future__ import annotations

from postroom.raft.interface import RaftOptions
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
)
from tests.raft.scripted import ScriptedPeers


def feeding(options: RaftOptions | None = None, entries: int = 12) -> ScriptedPeers:
    """Let member 1 lead; 2 has everything, and 3 is so far behind that it needs the state."""
    peers = ScriptedPeers(
        options=options or RaftOptions(log_entries_max=4, log_catching_up_factor=1)
    )
    peers.machine.pairs_per_chunk = 1
    peers.lead()
    peers.acknowledge(2)
    for _ in range(entries):
        peers.propose(b"x")
        peers.turn()
        peers.acknowledge(2)
    assert peers.journal.base_index > 1
    for _ in range(103):
        # A snapshot that was opened for a silent member is closed again.
        peers.now += 0.1
        peers.acknowledge(2)
    peers.machine.opened, peers.machine.closed = [], 0
    return peers


def taken(peers: ScriptedPeers, next_ordinal: int) -> tuple[int, ChunkTaken]:
    """Let member 3 have the chunks before that one."""
    transfer = peers.group._feeding.snapshots._opened
    return 3, ChunkTaken(peers.group.term, transfer, next_ordinal)


def chunks_to(node: int, said: list) -> list[int]:
    return [what.ordinal for to, what in said if to == node and isinstance(what, Chunk)]


def refuse(peers: ScriptedPeers) -> list:
    return peers.turn((3, Appended(peers.group.term, False, 0)))


def test_a_few_chunks_are_under_way_at_a_time() -> None:
    peers = feeding()
    assert chunks_to(3, refuse(peers)) == [0, 1, 2, 3]
    assert peers.group.progress()[3].snapshot_under_way
    assert chunks_to(3, peers.turn()) == []
    assert chunks_to(3, peers.turn(taken(peers, 2))) == [4, 5]
    assert chunks_to(3, peers.turn(taken(peers, 2))) == []


def test_a_transfer_takes_no_more_than_its_share_of_a_turn() -> None:
    options = RaftOptions(
        log_entries_max=4, log_catching_up_factor=1, snapshot_bytes_per_turn_max=38
    )
    peers = feeding(options)
    assert chunks_to(3, refuse(peers)) == [0, 1]
    assert chunks_to(3, peers.turn((2, Appended(peers.group.term, True, 1)))) == [2, 3]


def test_a_chunk_that_is_not_answered_is_sent_again_and_then_the_rest() -> None:
    peers = feeding()
    refuse(peers)
    said: list = []
    for _ in range(11):
        peers.now += 0.1
        said += peers.acknowledge(2)
    assert chunks_to(3, said) == [0]
    assert any(to == 3 and isinstance(what, Append) for to, what in said), "heartbeats go on"
    again = peers.turn(taken(peers, 1))
    assert chunks_to(3, again) == [1, 2, 3, 4]


def test_a_follower_that_lost_what_it_had_gets_a_new_snapshot() -> None:
    peers = feeding()
    refuse(peers)
    term = peers.group.term
    peers.turn(taken(peers, 3))
    peers.turn(taken(peers, 1))
    peers.turn(taken(peers, 3))
    assert len(peers.machine.opened) == 1, "an answer that was overtaken"
    peers.turn(taken(peers, 0))
    peers.now += 0.3
    peers.turn(taken(peers, 0), (2, Appended(term, True, 1)))
    assert [len(peers.machine.opened), peers.machine.closed] == [2, 1]


def test_the_snapshot_of_a_silent_follower_is_closed_and_another_one_opened_when_it_is_back() -> (
    None
):
    peers = feeding()
    refuse(peers)
    said: list = []
    for _ in range(103):
        peers.now += 0.1
        said = peers.acknowledge(2)
    assert peers.machine.closed == 1
    assert not peers.group.progress()[3].snapshot_under_way
    assert [type(what) for to, what in said if to == 3] == [Append], "to hear from it"
    assert chunks_to(3, refuse(peers)) == [0, 1, 2, 3]
    assert len(peers.machine.opened) == 2


def test_entries_after_the_snapshot_are_kept_for_whoever_is_being_sent_it() -> None:
    """Without them, it would need another snapshot at the end of each."""
    peers = feeding(RaftOptions(log_entries_max=4, log_catching_up_factor=4), entries=40)
    for _ in range(2):
        peers.propose(b"x")
        peers.turn()
        peers.acknowledge(2)
    assert len(peers.journal) == 2, "kept for the silent one"
    refuse(peers)
    index = peers.machine.opened[0].index
    assert peers.journal.base_index == index, "what the snapshot includes is not kept for it"
    for _ in range(10):
        peers.propose(b"x")
        peers.turn(taken(peers, 0))
        peers.acknowledge(2)
    assert peers.journal.base_index == index
    for _ in range(10):
        peers.propose(b"x")
        peers.turn(taken(peers, 0))
        peers.acknowledge(2)
    assert peers.journal.base_index > index, "but not for ever"


def test_a_deposed_leader_closes_its_snapshots() -> None:
    peers = feeding()
    refuse(peers)
    peers.turn((2, Appended(peers.group.term + 1, False, 0)))
    assert peers.machine.closed == 1


def test_the_state_that_is_sent_is_that_of_the_engine_not_of_the_turn() -> None:
    """The writes of a turn are staged, and are not in a snapshot that is opened in that turn."""
    peers = feeding()
    peers.propose(b"staged")
    peers.turn()
    term = peers.group.term
    has_all = (2, Appended(term, True, peers.group.last_index))
    peers.stage(has_all, (3, Appended(term, False, 0)))
    opened = peers.machine.opened[0]
    assert opened.index == peers.group.applied_index - 1
