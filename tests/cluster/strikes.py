"""A plan of faults and of their times, drawn from a seed before anything begins.

A seed always makes the same choice, whatever the processes do; what they make of it is theirs.

==========  ======================================================================================
kind        what happens to a node, for a while
==========  ======================================================================================
kill        kill -9, then a new start
kill all    the same to all nodes at once
stop        SIGTERM: it hands over and ends; then a new start
pause       SIGSTOP, then SIGCONT
wipe        kill -9, and its disk is empty when it starts again
fill        its disk is full, or nearly: writes are refused, or fail
clock       its wall clock is wrong
isolate     nobody hears it, and it hears nobody
silence     one of the others does not hear it
cut         it and one of the others do not hear each other
shun        it and all others do not hear each other; clients hear it
deafen      clients do not hear it
throttle    what it sends goes over a thin line: late, and some of it never
leave       the client (not a node) is killed in the middle of what it does
==========  ======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from tests.cluster.disks import small_disks_work
from tests.cluster.places import namespaces_work, throttle_works

LEADER: Final = 0
"""A number in place of a node's: the node that leads at that moment."""

ANYWHERE: Final = ("kill", "kill", "kill", "kill all", "stop", "pause", "pause", "wipe", "clock",
                   "leave")  # fmt: skip
IN_NAMESPACES: Final = ("isolate", "silence", "cut", "shun", "deafen")

INTERVALS_SECONDS: Final = (0.5, 1.5, 3.0)
LENGTHS_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 4.0)
CLOCKS_AHEAD_SECONDS: Final = (-3600.0, -30.0, -0.4, 0.1, 0.4)
"""The offsets of wall clocks: one further ahead would make all transactions too old at once."""
BYTES_LEFT: Final = (0, 4096, 1 << 20, 40 << 20)
RATES: Final = ("100kbit", "300kbit", "1mbit")


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault.

    Attributes:
        at_seconds: after the beginning.
        node: which one, from 1, or ``LEADER``.
        other: another node, for those kinds that need one.
        lasts_seconds: after that it is mended.
        detail: how wrong, how full, how thin.
    """

    at_seconds: float
    kind: str
    node: int
    other: int
    lasts_seconds: float
    detail: float | int | str = 0

    def __str__(self) -> str:
        who = "the leader" if self.node == LEADER else f"node {self.node}"
        detail = f" {self.detail}" if self.detail else ""
        return f"{self.at_seconds:6.2f}: {self.kind} {who} for {self.lasts_seconds} s{detail}"


def possible_kinds() -> list[str]:
    """Return the kinds of faults that this machine allows."""
    kinds = [*ANYWHERE]
    if namespaces_work():
        kinds += IN_NAMESPACES
    if throttle_works():
        kinds.append("throttle")
    if small_disks_work():
        kinds.append("fill")
    return kinds


def draw(
    randomness: Random, nodes: int, seconds: float, kinds: Sequence[str]
) -> tuple[Strike, ...]:
    """Return the strikes of a run: some of the kinds, more or less often."""
    chosen = randomness.sample(list(kinds), randomness.randint(2, len(kinds)))
    interval = randomness.choice(INTERVALS_SECONDS)
    strikes: list[Strike] = []
    at = randomness.expovariate(1 / interval)
    while at < seconds:
        strikes.append(_strike(randomness, nodes, at, randomness.choice(chosen)))
        at += randomness.expovariate(1 / interval)
    return tuple(strikes)


def _strike(randomness: Random, nodes: int, at: float, kind: str) -> Strike:
    node = LEADER if randomness.random() < 0.4 else randomness.randint(1, nodes)
    other = randomness.randint(1, nodes)
    lasts = randomness.choice(LENGTHS_SECONDS)
    details: dict[str, Sequence[float | int | str]] = {
        "clock": CLOCKS_AHEAD_SECONDS, "fill": BYTES_LEFT, "throttle": RATES,
    }  # fmt: skip
    return Strike(at, kind, node, other, lasts, randomness.choice(details.get(kind, (0,))))
