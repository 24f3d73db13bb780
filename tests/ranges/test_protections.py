"""The limit of garbage collection is the oldest protected timestamp, and cheap to ask for."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

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


def test_the_limit_costs_the_same_however_many_are_protected() -> None:
    protections = Protections()
    lines = []
    for number in range(1, 10_001):
        protections.add(number)
        if number in {10, 10_000}:
            lines.append(lines_of(protections.limit, 20_000))
    assert lines[0] == lines[1]
