"""What a soak measures, second by second, and how it is judged.

A run is cut into tenths. A store that nothing wears out does as much in the last tenth as in the
first, and holds as much then as when it had warmed up. Two things make that hard to see, so both
are taken into account:

* *The machine is not ours alone.* With each sample a fixed piece of work is timed; throughput is
  told in relation to how quick the machine was just then.
* *Samples scatter.* A tenth is worth the median of its samples, and the allowance grows with how
  far the tenths in the middle scatter among themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, pstdev
from typing import Final

TENTHS: Final = 10
SLOWDOWN_MAX: Final = 0.2
"""By so much the last tenth may be slower than the first."""
GROWTH_MAX: Final = 0.2
"""By so much may be larger at the end what is to stay as it is, or by its own slack."""
WARM_TENTH: Final = 3
"""What is held is compared with this tenth (of 0 to 9): caches are full by then."""

FLAT_AFTER_SECONDS: Final = 90.0
"""Only then is as much collected as is written: old versions and COMMIT records live for 75 s."""
SHORT_SLACK: Final = {"memory MB": 100.0, "files": 60.0}
"""What is kept in memory and in table files may grow by so much in a run whose warm tenth is not as
old as that.
"""

SLACK: Final = {
    "memory MB": 24.0,
    "descriptors": 12.0,
    "files": 12.0,
    "threads": 2.0,
    "timers": 40.0,
    "waiting": 40.0,
    "held": 40.0,
}
"""So much more is no growth yet: one table of the storage more, one client that is just waiting."""


@dataclass
class Sample:
    """One second of it."""

    operations: float
    """A second, in relation to the speed of the machine."""
    held: dict[str, float]


@dataclass
class Measure:
    """All samples of a run.

    Attributes:
        seconds: how long it takes.
    """

    seconds: float
    samples: list[Sample] = field(default_factory=list)

    def tenths(self, what: Callable[[Sample], float]) -> list[float]:
        """The median of each tenth."""
        count = len(self.samples)
        bounds = [round(count * tenth / TENTHS) for tenth in range(TENTHS + 1)]
        return [median(map(what, self.samples[a : max(b, a + 1)])) for a, b in pairwise(bounds)]

    def rows(self) -> dict[str, list[float]]:
        """Of each thing measured, the tenths."""
        rows = {"operations/s": self.tenths(lambda sample: sample.operations)}
        for name in self.samples[0].held:
            rows[name] = self.tenths(lambda sample, name=name: sample.held.get(name, 0.0))  # type: ignore[misc]
        return rows

    def verdicts(self) -> list[str]:
        """What is not as it must be."""
        if len(self.samples) < TENTHS:
            return [f"{len(self.samples)} samples are too few"]
        wrong = []
        for name, tenths in self.rows().items():
            if name == "operations/s":
                least = tenths[0] * (1 - SLOWDOWN_MAX) - _scatter(tenths)
                if tenths[-1] < least:
                    wrong.append(f"{name}: {tenths[0]:.0f} at first, {tenths[-1]:.0f} at last")
                continue
            warm, slack = tenths[WARM_TENTH], SLACK.get(name, 0.0)
            if self.seconds * WARM_TENTH / TENTHS < FLAT_AFTER_SECONDS:
                slack = SHORT_SLACK.get(name, slack)
            most = max(warm * (1 + GROWTH_MAX), warm + slack)
            if tenths[-1] > most:
                wrong.append(f"{name}: {warm:.0f} when warm, {tenths[-1]:.0f} at last")
        return wrong

    def __str__(self) -> str:
        if len(self.samples) < TENTHS:
            return "no table"
        lines = ["tenth".ljust(14) + "".join(f"{tenth:>9}" for tenth in range(1, TENTHS + 1))]
        lines += [
            name.ljust(14) + "".join(f"{number:>9.0f}" for number in tenths)
            for name, tenths in self.rows().items()
        ]
        return "\n".join(lines)


def _scatter(tenths: list[float]) -> float:
    """How far the tenths lie from the line that leads from the first ones to the last ones."""
    half = TENTHS // 2
    slope = (median(tenths[half:]) - median(tenths[:half])) / half
    straight = [value - slope * place for place, value in enumerate(tenths)]
    return pstdev(straight[1:-1])


def speed() -> float:
    """How quick the machine is just now: pieces of work a second, the best of three."""
    return max(_timed() for _ in range(3))


def _timed() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(5_000):
        total += number * number
    return 1.0 / max(time.perf_counter() - began, 1e-9)
