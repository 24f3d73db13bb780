"""A leader that has a majority for everything takes no turn for the answers of the others."""

from __future__ import annotations

import pytest

from postroom.raft.messages import Appended, Message, PreVote, encode_frame
from tests.raft.cluster import GROUP_ID
from tests.raft.scripted import ScriptedPeers


@pytest.fixture
def leader() -> ScriptedPeers:
    """Return a leader of three whose entries 1 and 2 are committed, and known to be at member 2."""
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(2)
    peers.acknowledge(3)
    peers.propose(b"x")
    peers.turn()
    peers.acknowledge(2)
    assert peers.core.commit_index == 2
    return peers


def may_wait(peers: ScriptedPeers, *said: Message, sender: int = 3) -> bool:
    return peers.consensus.may_wait(sender, encode_frame([(GROUP_ID, what) for what in said]))


def test_an_answer_for_committed_entries_may_wait_for_the_next_turn(leader: ScriptedPeers) -> None:
    assert may_wait(leader, Appended(leader.group.term, True, 2))


def test_an_answer_that_commits_takes_a_turn(leader: ScriptedPeers) -> None:
    leader.propose(b"y")
    leader.turn()
    assert not may_wait(leader, Appended(leader.group.term, True, 3))


@pytest.mark.parametrize("change", [{"success": False}, {"term": 9}, {"term": 0}, {"quiet": True}])
def test_an_answer_that_tells_more_takes_a_turn(
    leader: ScriptedPeers, change: dict[str, int]
) -> None:
    fields = {"term": leader.group.term, "success": True, "index": 2} | change
    assert not may_wait(leader, Appended(**fields))  # type: ignore[arg-type]  # of several types


def test_another_message_takes_a_turn(leader: ScriptedPeers) -> None:
    late = Appended(leader.group.term, True, 2)
    assert not may_wait(leader, late, PreVote(9, 2, 1))
    assert not may_wait(leader)
    assert not leader.consensus.may_wait(3, b"malformed")


def test_an_answer_of_a_member_that_lacks_entries_takes_a_turn(leader: ScriptedPeers) -> None:
    assert not may_wait(leader, Appended(leader.group.term, True, 2), sender=4)
    peer = leader.core.peer(3)
    assert peer is not None
    leader.core.next_index[peer] = 2
    assert not may_wait(leader, Appended(leader.group.term, True, 1))


def test_an_answer_takes_a_turn_while_leadership_is_handed_over(leader: ScriptedPeers) -> None:
    leader.group.transfer_leadership(3)
    assert not may_wait(leader, Appended(leader.group.term, True, 2))


def test_a_follower_takes_a_turn_for_each_answer() -> None:
    peers = ScriptedPeers()
    assert not may_wait(peers, Appended(0, True, 0))


def test_an_answer_that_has_waited_is_counted_by_the_next_turn(leader: ScriptedPeers) -> None:
    leader.inbound.append((3, encode_frame([(GROUP_ID, Appended(leader.group.term, True, 2))])))
    leader.wait(0.1)
    assert leader.group.progress()[3].match_index == 2
