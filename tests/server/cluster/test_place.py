"""A node that looks around: what others say of where it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.errors import Invalid
from postroom.kv.memory import MemoryEngine
from postroom.ranges.nodes import Admitted, NodeDescriptor, Nodes
from postroom.server.cluster import place as module
from postroom.server.cluster.formation import Hello
from postroom.server.cluster.nodes_service import Application
from postroom.server.cluster.place import Place
from postroom.server.cluster.security import Security
from postroom.server.store import FORMAT_VERSION, StoreRecord

HERE, ELSEWHERE, OTHER = "here:1", "elsewhere:1", "other:1"
CLUSTER, STORE = b"c" * 16, b"s" * 16


class Questions:
    """One other node answers: it believes that this one is elsewhere."""

    cluster_id = CLUSTER
    asked: list[Application]

    fingerprints: Mapping[str, bytes] = {}

    def __init__(self, security: Security, fault_of_key: object) -> None: ...

    async def hello(self, addresses: Iterable[str]) -> dict[str, Hello]:
        other = NodeDescriptor(1, OTHER, b"o" * 16)
        nodes = Nodes(self.cluster_id, 3, (other, NodeDescriptor(2, ELSEWHERE, STORE)))
        return {OTHER: Hello(other.store_id, (OTHER,), nodes)}

    async def admit(self, addresses: object, application: Application) -> Admitted:
        self.asked.append(application)
        raise Invalid("another node is there")

    async def close(self) -> None: ...


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(module, "Questions", Questions)
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Questions, "asked", [], raising=False)
    place = Place(MemoryEngine(), HERE, (OTHER,), Security(None), Random(1))
    place.record, place.store_id = StoreRecord(FORMAT_VERSION, CLUSTER, 2), STORE
    return place


def look_around(place: Place) -> None:
    asyncio.run(asyncio.wait_for(
        place.look_around(lambda: None, lambda: True, lambda *_: None), 10
    ))  # fmt: skip


def test_a_running_node_whose_address_is_refused_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and no reason to end: only who was removed ends."""
    look_around(place)
    assert Questions.asked == [Application(STORE, HERE, 2)]
    assert "the others do not take this node's address: another node is there" in caplog.text


def test_what_another_cluster_believes_does_not_matter(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Questions, "cluster_id", b"another".ljust(16))
    with caplog.at_level(logging.ERROR):
        look_around(place)
    assert Questions.asked == []
    assert "they do not mix" in caplog.text
