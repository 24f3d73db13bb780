"""A node that looks around: what others say of where it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.errors import Invalid
from postroom.kv.marker import FORMAT_VERSION
from postroom.kv.memory import MemoryEngine
from postroom.ranges.nodes import Admitted, NodeDescriptor, Nodes
from postroom.server.cluster import joining as module
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.joining import Joining
from postroom.server.cluster.nodes_service import JoinRequest
from postroom.server.cluster.security import Security
from postroom.server.opening import StoreRecord

HERE, ELSEWHERE, OTHER = "here:1", "elsewhere:1", "other:1"
CLUSTER, STORE = b"c" * 16, b"s" * 16


class Questions:
    """One other node answers: it believes that this one is elsewhere."""

    cluster_id = CLUSTER
    asked: list[JoinRequest]

    fingerprints: Mapping[str, bytes] = {}

    def __init__(self, security: Security, fault_of_key: object) -> None: ...

    async def hello(self, addresses: Iterable[str]) -> dict[str, SelfDescription]:
        other = NodeDescriptor(1, OTHER, b"o" * 16)
        nodes = Nodes(self.cluster_id, 3, (other, NodeDescriptor(2, ELSEWHERE, STORE)))
        return {OTHER: SelfDescription(other.store_id, (OTHER,), nodes)}

    async def admit(self, addresses: object, application: JoinRequest) -> Admitted:
        self.asked.append(application)
        raise Invalid("another node is there")

    async def close(self) -> None: ...


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Joining:
    monkeypatch.setattr(module, "Questions", Questions)
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Questions, "asked", [], raising=False)
    joining = Joining(MemoryEngine(), HERE, (OTHER,), Security(None), Random(1))
    joining.record, joining.store_id = StoreRecord(FORMAT_VERSION, CLUSTER, 2), STORE
    return joining


def look_around(joining: Joining) -> None:
    asyncio.run(asyncio.wait_for(
        joining.look_around(lambda: None, lambda: True, lambda *_: None), 10
    ))  # fmt: skip


def test_a_running_node_whose_address_is_refused_goes_on(
    joining: Joining, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and no reason to end: only who was removed ends."""
    look_around(joining)
    assert Questions.asked == [JoinRequest(STORE, HERE, 2)]
    assert "the others do not take this node's address: another node is there" in caplog.text


def test_the_records_of_another_cluster_are_ignored(
    joining: Joining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Questions, "cluster_id", b"another".ljust(16))
    with caplog.at_level(logging.ERROR):
        look_around(joining)
    assert Questions.asked == []
    assert "they do not mix" in caplog.text
