"""The turns of several ranges, with replicas that are told what to say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from postroom.server import range_turns
from postroom.server.range_turns import RangeTurns


class Range:
    """A replica of which only the wishes are there."""

    def __init__(self, range_id: int, turned: list[int]) -> None:
        self.range_id = range_id
        self._turned = turned
        self.wants = False
        self.proposal: object = None
        self.deadline: float | None = None
        self.waiting_for = dict[str, str]()

    def turn(self) -> None:
        self._turned.append(self.range_id)

    def wants_turn(self) -> bool:
        return self.wants

    def next_deadline(self) -> float | None:
        return self.deadline


class Turns:
    """Three ranges, and those that have taken part in the last turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.turned = list[int]()
        self.ranges = [Range(number, self.turned) for number in (1, 2, 3)]
        self.turns = RangeTurns(
            lambda: self.now,
            lambda: cast("Any", self.ranges),
            lambda range_id: cast("Any", self.ranges[range_id - 1]),
        )
        monkeypatch.setattr(range_turns, "take_turn", self._take_turn)

    def _take_turn(self, replicas: Iterable[Range]) -> None:
        for replica in replicas:
            replica.turn()

    def turn(self) -> list[int]:
        self.turned.clear()
        self.turns.evaluate()
        return list(self.turned)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def test_the_first_range_participates_in_each_turn_and_others_when_they_are_woken(
    turns: Turns,
) -> None:
    assert turns.turn() == [1]
    turns.turns.note(cast("Any", turns.ranges[2]))
    turns.turns.note(cast("Any", turns.ranges[2]))
    assert turns.turn() == [3, 1]
    assert turns.turn() == [1]


def test_a_range_that_wants_another_turn_gets_it(turns: Turns) -> None:
    second = turns.ranges[1]
    turns.turns.note(cast("Any", second))
    second.wants = True
    assert turns.turns.wants_turn()
    assert turns.turn() == turns.turn() == [2, 1]
    second.wants = False
    assert not turns.turns.wants_turn()
    assert turns.turn() == [2, 1]
    assert turns.turn() == [1]


def test_a_deadline_that_the_end_of_a_proposal_changes_is_known(turns: Turns) -> None:
    second = turns.ranges[1]
    turns.turns.note(cast("Any", second))
    second.proposal, second.deadline = "under way", 9.0
    turns.turn()
    assert turns.turns.next_deadline() == 9.0
    second.proposal, second.deadline = None, 5.0
    assert turns.turns.next_deadline() == 5.0
    turns.now = 5.0
    assert turns.turn() == [2, 1]
    second.deadline = None
    assert turns.turns.next_deadline() is None


def test_a_removed_range_is_neither_awake_nor_due(turns: Turns) -> None:
    second = turns.ranges.pop(1)
    second.deadline = 1.0
    turns.turns.note(cast("Any", second))
    turns.turn()
    turns.turns.next_deadline()
    turns.turns.note(cast("Any", second))
    turns.turns.remove(cast("Any", second))
    turns.now = 2.0
    assert turns.turn() == [1]
    assert turns.turns.next_deadline() is None


def test_upkeep_hurries_while_a_call_of_any_range_waits(turns: Turns) -> None:
    assert not turns.turns.hurries()
    turns.ranges[1].waiting_for["a token"] = "a line"
    assert turns.turns.hurries()
