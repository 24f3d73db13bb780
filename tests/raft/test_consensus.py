"""All groups of a node share a turn: one write set, and one frame to each peer."""

from __future__ import annotations

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import RaftOptions
from postroom.raft.messages import Append, Vote, decode_frame, encode_frame
from tests.raft.cluster import GROUP_ID, HistoryMachine
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers


def test_messages_of_all_groups_to_a_peer_share_a_frame() -> None:
    peers = ScriptedPeers()
    peers.consensus.create(8, (1, 2, 3), HistoryMachine(MemoryEngine()))
    peers.turn()
    frames: list[tuple[int, bytes]] = []
    peers.send = lambda to, frame: frames.append((to, frame))  # type: ignore[method-assign]
    peers.wait(1.1)
    assert [to for to, _ in frames] == [2, 3]
    frame = decode_frame(frames[0][1])[0]
    assert frame is not None
    assert {group for group, _ in frame.envelopes} == {GROUP_ID, 8}


def test_groups_share_a_write_set_and_keep_their_own_keys() -> None:
    peers = ScriptedPeers()
    peers.consensus.create(8, (1, 2, 3), HistoryMachine(MemoryEngine()))
    peers.turn()
    append = Append(1, 0, 0, 0, 0, ((1, NOOP_PAYLOAD),))
    peers.inbound.append((2, encode_frame([(GROUP_ID, append), (8, append), (99, append)])))
    writes = peers.consensus.stage()
    peers.consensus.release()
    groups = {int.from_bytes(key[1:9], "big") for key in writes}
    assert groups == {GROUP_ID, 8}


def test_a_turn_is_staged_then_released() -> None:
    peers = ScriptedPeers()
    peers.consensus.stage()
    with pytest.raises(AssertionError, match="twice"):
        peers.consensus.stage()
    peers.consensus.release()
    with pytest.raises(AssertionError, match="without stage"):
        peers.consensus.release()


def test_deadlines_follow_what_groups_wait_for() -> None:
    peers = ScriptedPeers()
    first = peers.group.deadline()
    assert first is not None
    assert 100.5 <= first <= 101.0
    peers.now = 100.4
    peers.turn((2, Append(1, 0, 0, 0, 0, ())))
    peers.now = first
    assert peers.turn() == [], "an early alarm rings, and is set again"
    second = peers.group.deadline()
    assert second is not None
    assert second > first
    peers.now = second - 0.01
    peers.turn()
    assert peers.consensus.next_deadline() == second, "the nodes' heartbeat is later"


def test_a_closed_group_hears_nothing() -> None:
    peers = ScriptedPeers()
    peers.engine.write(peers.consensus.close(GROUP_ID, erase=True), sync=True)
    assert peers.turn((2, Vote(1, 0, 0))) == []
    assert peers.consensus.next_deadline() is None
    assert list(peers.engine.iterate(b"", b"\xff")) == []


@pytest.mark.parametrize(
    "times",
    [
        {"heartbeat_seconds": 0.0},
        {"heartbeat_seconds": 0.3},
        {"election_seconds_max": 0.4},
    ],
)
def test_times_that_cannot_work_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="heartbeat_seconds"):
        RaftOptions(**times)
