"""A member that was removed and destroyed comes back to its group, as the model M5 has it.

It has forgotten what it had acknowledged. Two rules keep it from electing a leader that lacks that:
it takes only snapshots from the index of its removal on, and votes for nobody before.
"""

from __future__ import annotations

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv.engine import WriteSet
from postroom.kv.keys import RAFT_LOG, RANGE, raft_log_prefix
from postroom.kv.memory import MemoryEngine
from postroom.raft.membership import Members
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
)
from postroom.raft.stored_log import BEGINNING, membership_payload
from postroom.raft.tombstones import Tombstone, read_tombstone
from tests.raft.cluster import APPLIED, GROUP_ID, HistoryMachine
from tests.raft.scripted import ScriptedPeers, command
from tests.raft.test_fuzz import chunk

PREFIX = raft_log_prefix(GROUP_ID)
LEAST_INDEX = 9
TERM = 2


class Returning(ScriptedPeers):
    """Member 1, which was a voter, and holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.turn((2, Vote(TERM, 5, 1)))
        entries = [(1, command(b"%d" % number)) for number in range(5)]
        self.turn((2, self.append(TERM, (0, 0), *entries, commit=5)))
        self.engine.write(self.consensus.destroy(GROUP_ID, LEAST_INDEX, ()), sync=True)
        state = self.engine.iterate(RANGE, b"\xff")
        self.engine.write(dict.fromkeys(key for key, _ in state), sync=True)
        self.open()

    def open(self) -> None:
        """Open the replica, as after a restart."""
        self.machine = HistoryMachine(self.engine)
        self.group = self.consensus.create(GROUP_ID, (), self.machine, is_provisional=True)
        self.core = self.group.core
        self.journal = self.core.journal
        self.turn()

    def reopen(self) -> None:
        self.consensus.close(GROUP_ID)
        self.open()

    def stored(self) -> dict[bytes, bytes]:
        return dict(self.engine.iterate(RAFT_LOG, RANGE))

    def takes(self, snapshot: Chunk) -> bool:
        """Return whether a snapshot is taken, and put in place."""
        self.turn((2, snapshot))
        while self.group.is_installing:
            self.turn()
        return self.group.applied_index == snapshot.index


def test_a_tombstone_is_all_that_is_left() -> None:
    peers = Returning()
    assert read_tombstone(peers.engine, PREFIX) == Tombstone(LEAST_INDEX, TERM, 2)
    assert list(peers.stored()) == [PREFIX + b"t"]
    assert peers.group.holds_nothing


def test_a_member_that_comes_back_votes_for_nobody_until_it_has_what_was_committed() -> None:
    peers = Returning()
    for asking in (PreVote(9, 99, 8), Vote(9, 99, 8), Vote(9, 99, 8, True)):
        assert peers.ask(3, asking) == []
    assert peers.takes(chunk(0, index=LEAST_INDEX, final=True))
    peers.now += 1.0
    assert Voted(9, granted=True) in peers.ask(3, Vote(9, 99, 8))


def test_a_member_that_comes_back_does_not_vote_with_a_part_of_the_log() -> None:
    """Entries may be fed to it, too, from the first one on."""
    peers = Returning()
    entries = [(1, command(b"%d" % number)) for number in range(LEAST_INDEX)]
    said = peers.ask(2, peers.append(TERM, (0, 0), *entries[:-1], commit=LEAST_INDEX - 1))
    assert said == [Appended(TERM, True, LEAST_INDEX - 1)]
    peers.now += 1.0
    assert peers.ask(3, Vote(9, 99, 8)) == []
    peers.ask(2, peers.append(TERM, (8, 1), entries[-1], commit=LEAST_INDEX))
    peers.now += 1.0
    assert Voted(9, granted=True) in peers.ask(3, Vote(9, 99, 8))


def test_a_member_that_comes_back_does_not_campaign() -> None:
    peers = Returning()
    voters = membership_payload(Members((1, 2, 3)))
    peers.turn((2, peers.append(TERM, (0, 0), (1, voters), commit=1)))
    assert peers.core.is_voter
    assert peers.turn((2, TimeoutNow(TERM))) == []
    assert not [each for _, each in peers.wait(5.0) if isinstance(each, PreVote | Vote)]


def test_a_snapshot_of_before_the_removal_is_refused() -> None:
    peers = Returning()
    old = chunk(0, index=LEAST_INDEX - 1, final=True)
    assert peers.ask(2, old) == [ChunkTaken(TERM, old.transfer, 0)]
    assert not peers.takes(old)
    assert peers.group.holds_nothing
    assert peers.takes(chunk(0, index=LEAST_INDEX, final=True))


def test_term_and_vote_outlast_the_removal() -> None:
    peers = Returning()
    assert (peers.group.term, peers.core.vote) == (TERM, 2)
    assert peers.takes(chunk(0, index=LEAST_INDEX, final=True))
    peers.now += 1.0
    assert Voted(TERM, granted=False) in peers.ask(3, Vote(TERM, 99, TERM))


def test_the_least_index_holds_after_the_return() -> None:
    peers = Returning()
    assert peers.takes(chunk(0, index=LEAST_INDEX, final=True))
    peers.reopen()
    assert peers.journal.least_index == LEAST_INDEX
    assert peers.group.applied_index == LEAST_INDEX
    peers.engine.write(peers.consensus.destroy(GROUP_ID, 3, ()), sync=True)
    left = read_tombstone(peers.engine, PREFIX)
    assert left is not None
    assert left.least_index == LEAST_INDEX, "it never falls"


def test_remains_of_the_destroyed_log_do_not_count() -> None:
    """A log that is written in segments still has entries of the earlier life."""
    peers = Returning()
    peers.engine.write({PREFIX + b"l" + (4).to_bytes(8, "big"): bytes(8) + b"\x00old"}, sync=True)
    peers.reopen()
    assert peers.group.holds_nothing


def test_a_tombstone_that_cannot_be_read_stops_the_opening() -> None:
    engine = MemoryEngine()
    engine.write({PREFIX + b"t": b"nonsense"}, sync=True)
    with pytest.raises(StoreCorrupted, match="tombstone"):
        ScriptedPeers(engine=engine)


# --- provisional replicas


class Provisional(Returning):
    """Member 1, which was never in the group, and holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.consensus.close(GROUP_ID)
        self.engine.write({PREFIX + b"t": None}, sync=True)
        self.open()


def test_a_provisional_replica_stores_nothing_before_its_snapshot() -> None:
    peers = Provisional()
    said = peers.ask(2, Append(7, 3, 7, 3, 3, ()))
    assert said == [Appended(7, success=False, index=0)]
    assert peers.group.term == 7
    assert peers.stored() == {}
    peers.now += 1.0
    assert peers.ask(3, PreVote(9, 99, 8)) == [PreVoted(9, granted=True)]
    assert peers.stored() == {}
    assert peers.takes(Chunk(7, 1, 9, 2, chunk(0).members, 0, chunk(0).data, True))
    peers.reopen()
    assert peers.group.term == 7
    peers.now += 1.0
    assert PreVoted(9, granted=True) in peers.ask(3, PreVote(9, 99, 8))


def forget(peers: Provisional) -> None:
    peers.engine.write(peers.consensus.forget(GROUP_ID), sync=True)


def test_a_provisional_replica_votes_once_a_term_also_after_it_was_forgotten() -> None:
    peers = Provisional()
    assert peers.ask(3, Vote(9, 99, 8)) == [Voted(9, granted=True)]
    peers.ask(2, Vote(9, 99, 8))
    for end in (peers.reopen, lambda: (forget(peers), peers.open())):
        end()
        assert peers.group.holds_nothing
        assert peers.ask(2, Vote(9, 99, 8)) == [Voted(9, granted=False)]
        assert peers.ask(3, Vote(9, 99, 8)) == [Voted(9, granted=True)]
    assert peers.takes(Chunk(9, 1, 9, 2, chunk(0).members, 0, chunk(0).data, True))
    peers.reopen()
    assert (peers.group.term, peers.core.vote) == (9, 3)


def test_a_provisional_replica_that_was_destroyed_leaves_its_vote_in_its_tombstone() -> None:
    peers = Provisional()
    peers.ask(3, Vote(9, 99, 8))
    peers.engine.write(peers.consensus.destroy(GROUP_ID, LEAST_INDEX, ()), sync=True)
    assert list(peers.stored()) == [PREFIX + b"t"]
    peers.open()
    assert (peers.group.term, peers.core.vote) == (9, 3)
    assert peers.ask(3, Vote(9, 99, 8)) == []


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_provisional_replica_hands_on_its_vote_to_the_range_that_a_split_begins(
    is_forgotten: bool,
) -> None:
    peers = Provisional()
    peers.ask(3, Vote(7, 99, 6))
    if is_forgotten:
        forget(peers)
    origin = peers.consensus.create(GROUP_ID + 1, (1,), HistoryMachine(MemoryEngine()))
    staged: WriteSet = {}
    members = Members((1, 2, 3))
    assert peers.consensus.stage_beginning(GROUP_ID, members, origin.group_id, staged)
    assert GROUP_ID not in peers.consensus.groups
    index, term = BEGINNING
    applied = index.to_bytes(8, "big") + term.to_bytes(8, "big")
    peers.engine.write({**staged, APPLIED: applied}, sync=True)
    peers.open()
    assert (peers.group.term, peers.core.vote, peers.group.members) == (7, 3, members.voters)
    assert (peers.group.applied_index, peers.group.last_index) == (index, index)


def test_a_range_does_not_begin_where_it_was_destroyed() -> None:
    peers = Returning()
    staged: WriteSet = {}
    assert not peers.consensus.stage_beginning(GROUP_ID, Members((1, 2, 3)), GROUP_ID, staged)
    assert staged == {}


def test_a_snapshot_that_is_not_wanted_yet_is_taken_later() -> None:
    peers = Provisional()
    whole = chunk(0, final=True)
    peers.machine.refuses = True
    assert peers.ask(2, whole) == [ChunkTaken(TERM, whole.transfer, 0)]
    assert peers.stored() == {}
    peers.machine.refuses = False
    assert peers.takes(whole)


def test_a_snapshot_that_is_not_wanted_any_more_waits_for_its_last_chunk() -> None:
    peers = Provisional()
    peers.turn((2, chunk(0)))
    peers.machine.refuses = True
    last = chunk(1, final=True)
    assert peers.ask(2, last) == [ChunkTaken(TERM, last.transfer, 1)]
    assert not peers.group.is_installing
    peers.machine.refuses = False
    assert peers.takes(last)
    assert peers.machine.asked == [False, True, True]
