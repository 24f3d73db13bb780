"""What a node says when space on its device becomes scarce, and when there is enough again."""

from __future__ import annotations

import logging
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.raft.transport import NoPeers
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.server.cluster import formation
from postroom.server.disk_reserve import STEADY_SECONDS, DiskReserve
from postroom.server.node import Node, NodeOptions
from postroom.server.store import read_store


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    reserve = DiskReserve(100)
    with caplog.at_level(logging.WARNING):
        for now in range(20):
            reserve.tell(99 if now % 2 else 101, float(now))
        assert len(caplog.messages) == 1
        assert "only 99 bytes are free" in caplog.messages[0]
        assert " 100 are kept" in caplog.messages[0]
        for now in range(20, 40):
            reserve.tell(101, now + STEADY_SECONDS)
    assert len(caplog.messages) == 2
    assert "101 bytes are free again" in caplog.messages[1]


def test_writes_are_refused_at_once_and_accepted_at_once() -> None:
    reserve = DiskReserve(100)
    assert reserve.refusal(100) is None
    assert "only 99 bytes" in str(reserve.refusal(99))


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
