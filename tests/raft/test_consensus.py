"""All groups of a node share a turn: one write set, and one frame to each peer."""

from __future__ import annotations

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.raft.messages import Append, Vote, decode_frame, encode_frame
from postroom.raft.options import RaftOptions
from tests.raft.cluster import GROUP_ID, HistoryMachine
from tests.raft.puppet import NOOP_PAYLOAD, Puppets


def test_messages_of_all_groups_to_a_peer_share_a_frame() -> None:
    puppets = Puppets()
    puppets.consensus.create(8, (1, 2, 3), HistoryMachine(MemoryEngine()))
    puppets.turn()
    frames: list[tuple[int, bytes]] = []
    puppets.send = lambda to, frame: frames.append((to, frame))  # type: ignore[method-assign]
    puppets.wait(1.1)
    assert [to for to, _ in frames] == [2, 3]
    frame = decode_frame(frames[0][1])[0]
    assert frame is not None
    assert {group for group, _ in frame.envelopes} == {GROUP_ID, 8}


def test_groups_share_a_write_set_and_keep_their_own_keys() -> None:
    puppets = Puppets()
    puppets.consensus.create(8, (1, 2, 3), HistoryMachine(MemoryEngine()))
    puppets.turn()
    append = Append(1, 0, 0, 0, 0, ((1, NOOP_PAYLOAD),))
    puppets.inbound.append((2, encode_frame([(GROUP_ID, append), (8, append), (99, append)])))
    writes = puppets.consensus.stage()
    puppets.consensus.release()
    groups = {int.from_bytes(key[1:9], "big") for key in writes}
    assert groups == {GROUP_ID, 8}


def test_a_turn_is_staged_then_released() -> None:
    puppets = Puppets()
    puppets.consensus.stage()
    with pytest.raises(AssertionError, match="twice"):
        puppets.consensus.stage()
    puppets.consensus.release()
    with pytest.raises(AssertionError, match="without stage"):
        puppets.consensus.release()


def test_deadlines_follow_what_groups_wait_for() -> None:
    puppets = Puppets()
    first = puppets.group.deadline()
    assert first is not None
    assert 100.5 <= first <= 101.0
    puppets.now = 100.4
    puppets.turn((2, Append(1, 0, 0, 0, 0, ())))
    puppets.now = first
    assert puppets.turn() == [], "an early alarm rings, and is set again"
    second = puppets.group.deadline()
    assert second is not None
    assert second > first
    puppets.now = second - 0.01
    puppets.turn()
    assert puppets.consensus.next_deadline() == second, "the nodes' heartbeat is later"


def test_a_closed_group_hears_nothing() -> None:
    puppets = Puppets()
    puppets.engine.write(puppets.consensus.close(GROUP_ID, erase=True), sync=True)
    assert puppets.turn((2, Vote(1, 0, 0))) == []
    assert puppets.consensus.next_deadline() is None
    assert list(puppets.engine.iterate(b"", b"\xff")) == []


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
