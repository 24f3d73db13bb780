"""Messages that leave in one turn: bounded, in order, and all of them in the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroom.raft import frames
from postroom.raft.frames import OutgoingMessages
from postroom.raft.interface import NodeId
from postroom.raft.messages import Append, Envelope, Vote


class Wire:
    """A wire that counts what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, list[int]]] = []
        self.outgoing = OutgoingMessages(self._send)

    def _send(self, to: NodeId, envelopes: Sequence[Envelope]) -> int:
        self.sent.append((to, [group for group, _ in envelopes]))
        return sum(
            len(payload)
            for _, message in envelopes
            if isinstance(message, Append)
            for _, payload in message.entries
        )

    def taken(self) -> list[tuple[NodeId, list[int]]]:
        taken, self.sent = self.sent, []
        return taken


def large(size: int = 100) -> Append:
    return Append(1, 0, 0, 0, 0, ((1, b"c" * size),))


@pytest.fixture(autouse=True)
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SENT_BYTES_A_TURN", 100)
    monkeypatch.setattr("postroom.raft.messages.FRAME_BYTES", 10)


def test_a_small_message_leaves_at_once() -> None:
    wire = Wire()
    for to in (2, 3):
        wire.outgoing.send(to, [(1, Vote(1, 0, 0))])
    assert wire.taken() == [(2, [1]), (3, [1])]
    assert not wire.outgoing.waits


def test_one_large_frame_leaves_in_a_turn() -> None:
    """For two followers of 32 MiB each, a turn took 58 ms of processor time to send."""
    wire = Wire()
    for to in (2, 3, 4):
        wire.outgoing.send(to, [(1, large())])
    assert wire.taken() == [(2, [1])]
    for to in (3, 4):
        assert wire.outgoing.waits
        wire.outgoing.begin_turn()
        assert wire.taken() == [(to, [1])]
    assert not wire.outgoing.waits


def test_a_later_message_waits_behind_a_large_one() -> None:
    wire = Wire()
    wire.outgoing.send(2, [(1, large())])
    wire.outgoing.send(3, [(1, large()), (2, large()), (3, large(1))])
    wire.outgoing.send(2, [(4, large(1))])
    wire.outgoing.begin_turn()
    wire.outgoing.send(3, [(5, large(1))])
    wire.outgoing.send(4, [(6, large(1))])
    while wire.outgoing.waits:
        wire.outgoing.begin_turn()
    sent = wire.taken()
    assert [groups for to, groups in sent if to == 2] == [[1], [4]]
    assert [groups for to, groups in sent if to == 3] == [[1], [2], [3], [5]]
    assert [groups for to, groups in sent if to == 4] == [[6]]


def test_a_cleared_sender_sends_no_more_messages() -> None:
    wire = Wire()
    wire.outgoing.send(2, [(1, large()), (2, large())])
    wire.outgoing.clear()
    wire.outgoing.begin_turn()
    assert wire.taken() == [(2, [1])]
