"""Traces of leases, step by step: two nodes, their clocks, and what each of them may do.

Lines are ``who: what -> answer``, ``who`` is node 1 or 2, or ``both``::

    pass 0.5      time passes by its monotonic clock, and by its wall clock
    set -3600     its wall clock is set
    ask, extend, give_back   a lease is proposed; ``apply`` and ``learn`` say what becomes of it
    apply         the last proposal is applied at this node; ``learn``: which heard of it long ago
    serve         it begins to serve under the lease
    may           what it may do now
"""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.ranges import lease as leases
from postroom.ranges.lease import RangeLease
from tests.ranges.test_lease_holder import Side

FOLDER = Path(__file__).parent / "traces"
ARROW = " -> "


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_trace(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    trace = Trace()
    played = "".join(f"{trace.play(line)}\n" for line in expected.splitlines())
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == expected or request.config.getoption("--rewrite")


class Trace:
    """Two nodes, and the lease that was proposed last."""

    def __init__(self) -> None:
        self._sides = {"1": Side(1), "2": Side(2)}
        self._proposed: RangeLease = leases.NOBODY

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        who, _, command = told.partition(": ")
        names = list(self._sides) if who == "both" else [who]
        answers = [self._answer(self._sides[name], *command.split()) for name in names]
        return told + ARROW + " | ".join(answers)

    def _answer(self, side: Side, name: str, *arguments: str) -> str:
        match name:
            case "pass":
                side.passes(float(arguments[0]))
            case "set":
                side.wall += int(float(arguments[0]) * 1000)
            case "ask":
                self._proposed = side.ask()
            case "extend":
                self._proposed = side.ask_for_more()
            case "give_back":
                side.lease_holder.end()
                self._proposed = side.lease_holder.given_back()
            case "apply" | "learn":
                side.apply(self._proposed, received=name == "apply")
            case "serve":
                side.begin()
            case "granted":
                side.lease_holder.granted(side.until)
        serves = "serves" if side.serves() else "does not serve"
        return f"{serves}, {'may ask' if side.may_ask() else 'waits'}"
