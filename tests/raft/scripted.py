"""One real member, and peers by script: the test says what they say, and reads what it answers."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)
from collections.abc import Iterable

from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from postroom.raft.consensus import Consensus
from postroom.raft.interface import RaftOptions
from postroom.raft.messages import (
    Append,
    Appended,
    Message,
    PreVote,
    PreVoted,
    Vote,
    Voted,
    decode_frame,
    encode_frame,
)
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.replication import _PeerState
from tests.raft.cluster import GROUP_ID, HistoryMachine

NOOP_PAYLOAD = b"\x01"


def command(text: bytes) -> bytes:
    """Return the payload of an entry with a command."""
    return b"\x00" + text


class ScriptedPeers:
    """A real member 1, and scripted peers."""

    def __init__(
        self,
        members: tuple[int, ...] = (1, 2, 3),
        engine: MemoryEngine | None = None,
        options: RaftOptions | None = None,
    ) -> None:
        self.now = 100.0
        self.engine = MemoryEngine() if engine is None else engine
        self.inbound: list[tuple[int, bytes]] = []
        self.outbound: list[tuple[int, Message]] = []
        self.machine = HistoryMachine(self.engine)
        self.consensus = Consensus(
            self.engine,
            self,
            node_id=1,
            monotonic=lambda: self.now,
            random=random.Random(1),
            options=options,
        )
        self.group = self.consensus.create(GROUP_ID, members, self.machine)
        self.core = self.group.core
        self.journal = self.core.journal
        self.outcomes: list[ProposalOutcome] = []
        self.turn()

    # The transport of the real member.

    def send(self, to: int, frame: bytes) -> None:
        decoded = decode_frame(frame)[0]
        assert decoded is not None
        self.outbound += [(to, message) for _, message in decoded.envelopes]

    def receive(self) -> Iterable[tuple[int, bytes]]:
        inbound, self.inbound = self.inbound, []
        return inbound

    def connected(self, node: int) -> bool:
        return True

    # Acts of a test.

    def stage(self, *said: tuple[int, Message]) -> WriteSet:
        self.inbound += [(sender, encode_frame([(GROUP_ID, what)])) for sender, what in said]
        return self.consensus.stage()

    def turn(self, *said: tuple[int, Message]) -> list[tuple[int, Message]]:
        """Return what the member says when told what is ``said``."""
        self.engine.write(self.stage(*said), sync=True)
        self.consensus.release()
        outbound, self.outbound = self.outbound, []
        return outbound

    def ask(self, sender: int, message: Message) -> list[Message]:
        """Return what the member answers to ``sender`` alone."""
        return [answer for to, answer in self.turn((sender, message)) if to == sender]

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        self.now += seconds
        return self.turn()

    def propose(self, text: bytes, context: object = None) -> None:
        self.group.propose(text, context, self.outcomes.append)

    def append(
        self, term: int, prev: tuple[int, int], *entries: tuple[int, bytes], commit: int = 0
    ) -> Append:
        return Append(term, prev[0], prev[1], commit, 0, entries)

    def lead(self) -> int:
        """Make the real member lead; the term."""
        polls = [what for _, what in self.wait(1.1) if isinstance(what, PreVote)]
        voters = range(2, len(self.group.members) // 2 + 2)
        asked = self.turn(*[(node, PreVoted(polls[0].term, granted=True)) for node in voters])
        votes = [what for _, what in asked if isinstance(what, Vote)]
        self.turn(*[(node, Voted(votes[0].term, granted=True)) for node in voters])
        assert self.group.is_leader
        return self.group.term

    def acknowledge(self, node: int = 2) -> list[tuple[int, Message]]:
        """Let ``node`` have all that the real member has, and was sent it."""
        peer = self.group.core.peer(node)
        if peer is not None:
            progress = self.group._feeding._progress.setdefault(peer, _PeerState())
            progress.offered = self.group.last_index
        return self.turn((node, Appended(self.group.term, True, self.group.last_index)))

    def log(self) -> list[tuple[int, int]]:
        """Return index and term of each entry."""
        entries = self.journal.entries(0, self.journal.last_index)
        return [(index, term) for _, index, term in entries]
