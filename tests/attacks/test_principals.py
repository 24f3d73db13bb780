"""Programs with many sessions: a polite client of another principal hardly waits for them.

Turns are counted, not time: how many a polite request takes beside a flood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom import limits
from postroom.ranges.evaluation import LONG_SHARE
from postroom.ranges.requests import Get, Put, Scan, ScanChanges
from tests.attacks.hostile import Attacker, Target

SESSIONS = 20
STEPS = 200
"""The steps of a turn in these tests: long requests take as many turns, of less work."""

Flood = Callable[[Attacker, int], Any]


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", STEPS)


def _spans(attacker: Attacker, number: int) -> Any:
    spans = [(b"key/%06d" % n, b"key/%06d\x00" % n) for n in range(0, 4000, 2)]
    at = attacker.target.store.node.root.replica.last_commit - 1
    return attacker.commit(Put(b"spans/%d" % number, b""), spans=spans, at=at)


def _reads(attacker: Attacker, number: int) -> Any:
    reads = [b"key/%06d" % n for n in range(2000)]
    at = attacker.target.store.node.root.replica.last_commit - 1
    return attacker.commit(Put(b"reads/%d" % number, b""), reads=reads, at=at)


def _puts(attacker: Attacker, number: int) -> Any:
    return attacker.commit(*[Put(b"puts/%d/%d" % (number, n), b"") for n in range(2000)])


def _scan(attacker: Attacker, number: int) -> Any:
    del attacker
    return Scan(b"key/%06d" % number, b"key0", 0, 1000, 1 << 20)


def _get(attacker: Attacker, number: int) -> Any:
    del attacker
    return Get(b"key/%06d" % number)


def _changes(attacker: Attacker, number: int) -> Any:
    del attacker
    return ScanChanges(b"key/%06d" % (number % 10), b"key0", 1, wait=False)


class Program:
    """Many sessions of one principal, each of which always wants so much."""

    def __init__(self, target: Target, flood: Flood, under_way: int) -> None:
        self._flood = flood
        self._under_way = under_way
        self._number = 0
        self.answered = 0
        self._sessions = [
            Attacker(target, b"s%d" % number, f"ipv4:10.0.0.1:{number}")
            for number in range(SESSIONS)
        ]
        self._last: list[list[int]] = [[] for _ in range(SESSIONS)]

    def go_on(self) -> None:
        """Take the answers, and ask for more."""
        for session, asked in zip(self._sessions, self._last, strict=True):
            session.read()
            left = [number for number in asked if not session.has(number)]
            self.answered += len(asked) - len(left)
            while len(left) < self._under_way:
                self._number += 1
                left.append(session.ask(self._flood(session, self._number)))
            asked[:] = left


def turns_beside(target: Target, flood: Flood, under_way: int, request: Callable[..., Any]) -> int:
    """Return how many turns the slowest of some polite requests takes beside a program."""
    target.fill(2000)
    program = Program(target, flood, under_way)
    polite = Attacker(target, b"polite", "ipv4:10.0.0.9:1")
    for _ in range(5):
        program.go_on()
        target.turn()
    slowest = 0
    for number in range(5):
        asked, turns = polite.ask(request(polite, number)), 0
        while not polite.has(asked):
            program.go_on()
            target.turn()
            polite.read()
            turns += 1
            assert turns < 2000, "it is never answered"
        assert not polite.failures
        slowest = max(slowest, turns)
    target.until(lambda: program.go_on() or program.answered > 0)
    return slowest


def _put(attacker: Attacker, number: int) -> Any:
    return attacker.commit(Put(b"polite/%d" % number, b""))


FLOODS = {"reads": _reads, "puts": _puts, "scans": _scan, "gets": _get, "changes": _changes}
UNDER_WAY = {"reads": 2, "puts": 2, "scans": 50, "gets": 200, "changes": 10}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize(
    ("polite", "turns_max"),
    [(_put, 20 * LONG_SHARE), (_get, 2), (_scan, 2), (_changes, 45)],
    ids=["put", "get", "scan", "changes"],
)
def test_a_polite_request_takes_few_turns_beside_a_program_with_many_sessions(
    target: Target, flood: str, polite: Flood, turns_max: int
) -> None:
    turns = turns_beside(target, FLOODS[flood], UNDER_WAY[flood], polite)
    assert turns <= turns_max


def test_a_put_takes_few_turns_beside_commits_that_have_read_many_spans(target: Target) -> None:
    assert turns_beside(target, _spans, 2, _put) <= 6


def test_a_commit_that_has_read_many_spans_is_checked_beside_those_of_a_program(
    target: Target,
) -> None:
    """Each principal has one such check under way, and they take turns."""
    assert turns_beside(target, _spans, 2, _spans) <= 50 * LONG_SHARE
