"""The messages of a node when space on its device becomes scarce, and is enough again."""

from __future__ import annotations

import logging
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.messaging.queues.requests import Acknowledge
from postroom.raft.interface import NoPeers
from postroom.ranges.calls import Call
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.ranges.requests import CollectGarbage, CommitTransaction, Delete, Put
from postroom.server.assembly import NodeOptions
from postroom.server.cluster import formation
from postroom.server.disk_guard import STEADY_SECONDS, DiskReserve, Space
from postroom.server.node import Node
from postroom.server.opening import read_store


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    reserve = DiskReserve(100)
    with caplog.at_level(logging.WARNING):
        for now in range(20):
            reserve.tell(Space(99 if now % 2 else 101), float(now))
        assert len(caplog.messages) == 1
        assert "only 99 bytes are free" in caplog.messages[0]
        assert " 100 are kept" in caplog.messages[0]
        for now in range(20, 40):
            reserve.tell(Space(101), now + STEADY_SECONDS)
    assert len(caplog.messages) == 2
    assert "101 bytes are free again" in caplog.messages[1]


def test_writes_are_refused_at_once_and_accepted_at_once() -> None:
    reserve = DiskReserve(100)
    assert reserve.refusal(Space(100)) is None
    refusal = reserve.refusal(Space(99))
    assert refusal is not None
    assert "only 99 bytes" in str(refusal.error)


def refused(space: Space) -> list[str]:
    """Return what a node with a reserve of 100 bytes refuses."""
    refusal = DiskReserve(100).refusal(space)
    put, delete = Put(b"a", b"1"), Delete(b"a")
    calls = {
        "put": Call(put),
        "upkeep": Call(put, urgent=False),
        "delete": Call(delete),
        "collect": Call(CollectGarbage(1, 1), urgent=False),
    }
    return [name for name, each in calls.items() if refusal is not None and refusal.concerns(each)]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Space(140, 40), []),
        (Space(139, 40), ["put"]),
        (Space(65, 40), ["put"]),
        (Space(64, 40), ["put", "upkeep"]),
        (Space(3, 40), ["put", "upkeep"]),
        (Space(0, 40), ["put", "upkeep"]),
        (Space(999, 40, "full", takes_deletions=True), ["put", "upkeep"]),
        (Space(999, 40, "full", takes_deletions=False), ["put", "upkeep", "delete", "collect"]),
    ],
)
def test_the_less_room_there_is_the_more_is_refused(space: Space, expected: list[str]) -> None:
    assert refused(space) == expected


def test_a_commit_frees_room_if_all_that_it_writes_does() -> None:
    def commit(*writes: Any) -> CommitTransaction[Any]:
        return CommitTransaction(bytes(16), 1, 60.0, 0, b"a", [], [], list(writes))

    acknowledge = Acknowledge("q", [])
    assert commit(Delete(b"a"), acknowledge).needs_no_room()
    assert not commit(Delete(b"a"), Put(b"b", b"1")).needs_no_room()


def started(engine: MemoryEngine) -> Node:
    options = NodeOptions(disk_reserve_bytes=1 << 60)
    node = Node(engine, SystemClock(), Random(1), NoPeers(), options)
    node.start()
    return node


def test_a_node_of_a_cluster_says_it_and_an_embedded_one_does_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MemoryEngine()
    monkeypatch.setattr(engine, "free_bytes", lambda: 1000)
    with caplog.at_level(logging.WARNING):
        started(engine)
        assert not caplog.messages
        record = read_store(engine)
        assert record is not None
        own = NodeDescriptor(1, "a:1", b"1" * 16)
        engine.write(formation.adopt_writes(record, own.address, own.store_id), sync=True)
        node = started(engine)
    assert node.nodes == Nodes(record.cluster_id, 2, (own,))
    assert ["only 1000 bytes are free" in each for each in caplog.messages] == [True]
