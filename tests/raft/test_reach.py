"""Terms and indices that nobody can have reached, in sound frames of members."""

from __future__ import annotations

import logging

import pytest

from postroom.limits import INDEX_JUMP_MAX, TERM_JUMP_MAX
from postroom.raft.membership import Members
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    Message,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
    beyond_reach,
    encode_frame,
)
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import GROUP_ID
from tests.raft.scripted import ScriptedPeers

LAST = 2**63 - 1


@pytest.fixture(autouse=True)
def hear(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="postroom.raft")


MEMBERS = Members((1, 2, 3))

FORGED: list[Message] = [
    PreVote(LAST, 5, 1),
    PreVoted(LAST, granted=False),
    Vote(LAST, LAST, 1),
    Vote(LAST, 0, 0, transfer=True),
    Voted(LAST, granted=False),
    Append(LAST, 0, 0, 0, 0, ()),
    Appended(LAST, success=False, index=0),
    Chunk(LAST, 1, 5, 1, MEMBERS, 0, b"", False),
    ChunkTaken(LAST, 1, 1),
    TimeoutNow(LAST),
    PreVote(2, LAST, 1),
    Vote(2, LAST, 1),
    Vote(2, 5, 3),
    Append(1, LAST, 1, 0, 0, ()),
    Append(1, 0, 0, LAST, 0, ()),
    Append(1, 0, 0, 0, LAST, ()),
    Appended(1, success=True, index=LAST),
    Appended(1, success=False, index=LAST),
    Chunk(1, 1, LAST, 1, MEMBERS, 0, b"", True),
]


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("message", FORGED, ids=str)
def test_a_message_with_an_unreachable_term_or_index_is_dropped(
    message: Message, leads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One vote in the last of all terms stopped a cluster for good."""
    peers = ScriptedPeers()
    if leads:
        peers.lead()
    term, blamed = peers.group.term, []
    peers.consensus._on_malformed = blamed.append
    before = dict(peers.engine.iterate(b"", b"\xff"))
    for _ in range(100):
        peers.inbound.append((2, encode_frame([(GROUP_ID, message)])))
        peers.consensus.stage()
        peers.consensus.release()
    assert blamed == [2] * 100
    assert peers.group.term == term
    assert dict(peers.engine.iterate(b"", b"\xff")) == before
    assert len(caplog.records) == 1
    # It goes on: it is elected, or leads still.
    if not leads:
        peers.lead()
    peers.propose(b"x")
    peers.turn()
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_a_message_with_a_reachable_term_and_index_is_let_in() -> None:
    assert beyond_reach(Vote(7 + TERM_JUMP_MAX, 0, 0), 7, 0) is None
    assert beyond_reach(Vote(8 + TERM_JUMP_MAX, 0, 0), 7, 0) is not None
    assert beyond_reach(Append(1, 9 + INDEX_JUMP_MAX, 1, 0, 0, ()), 1, 9) is None
    assert beyond_reach(Append(1, 10 + INDEX_JUMP_MAX, 1, 0, 0, ()), 1, 9) is not None
    assert beyond_reach(Voted(3, granted=True), 900, 0) is None


def test_an_entry_that_a_follower_was_not_sent_is_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A forged answer made the leader acknowledge while both followers stood still."""
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(2)
    commit = peers.group.core.commit_index
    # The flow of messages to member 3 stands still: it has answered nothing, and is probed.
    for number in range(5):
        peers.propose(b"%d" % number)
    peers.turn()
    last = peers.group.last_index
    assert last == commit + 5
    for _ in range(100):
        peers.turn((3, Appended(peers.group.term, True, last)))
    assert peers.group.core.commit_index == commit
    assert peers.outcomes == []
    assert [each.getMessage() for each in caplog.records] == [
        f"dropped what node 3 says, that it has entry {last}: it was sent no such entry"
    ]
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED] * 5
