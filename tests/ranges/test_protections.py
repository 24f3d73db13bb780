"""The limit of garbage collection is the oldest protected timestamp, and cheap to ask for."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.errors import Unavailable
from postroom.kv.clock import from_seconds
from postroom.kv.memory import MemoryEngine
from postroom.ranges.protections import Protections
from tests.work import lines_of


def test_the_oldest_protected_timestamp_is_the_limit() -> None:
    chance, protections, model = Random(20), Protections(), list[int]()
    for _ in range(3000):
        if model and chance.random() < 0.5:
            gone = model.pop(chance.randrange(len(model)))
            protections.remove(gone)
        else:
            model.append(chance.randrange(1, 60))
            protections.add(model[-1])
        assert protections.limit(50) == min([*model, 50])
    protections.clear()
    assert protections.limit(50) == 50


def test_a_timestamp_that_is_protected_for_ever_holds_back_collection_for_a_week() -> None:
    protections = Protections()
    protections.add(7)
    week = from_seconds(7 * 86_400)
    assert protections.limit(week) == 7
    assert protections.limit(week + 1000) == 1000


def test_a_timestamp_that_was_inherited_is_protected_until_the_lease_ends() -> None:
    root, other = Protections(), Protections()
    other.share(root)
    root.inherited = 7
    assert (root.limit(50), other.limit(50)) == (7, 7)
    root.add(5)
    assert other.limit(50) == 5
    other.clear()
    assert other.limit(50) == 5
    root.clear()
    assert other.limit(50) == 50


def test_a_store_protects_so_many_timestamps_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.ranges.protections.PROTECTIONS_MAX", 2)
    protections = Protections(MemoryEngine().snapshot)
    for timestamp in (1, 2, 2):
        protections.add(timestamp)
    with pytest.raises(Unavailable, match="nothing was protected"):
        protections.add_whole(3)
    assert (len(protections), protections.whole, protections.limit(50)) == (3, 0, 1)
    protections.remove(1)
    protections.add_whole(3)
    assert protections.whole == 1


def test_a_snapshot_ends_a_day_after_its_timestamp() -> None:
    protections = Protections(MemoryEngine().snapshot)
    protections.add_whole(7)
    day = from_seconds(86_400)
    protections.end_old(day + 7)
    assert protections.whole == 1
    protections.end_old(day + 8)
    assert protections.whole == 0
    protections.remove(7)
    assert len(protections) == 0


def test_the_limit_costs_the_same_however_many_are_protected() -> None:
    protections = Protections()
    lines = []
    for number in range(1, 10_001):
        protections.add(number)
        if number in {10, 10_000}:
            lines.append(lines_of(protections.limit, 20_000))
    assert lines[0] == lines[1]
