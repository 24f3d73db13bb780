"""The measure of a soak, second by second, and its judgement.

A run is cut into tenths. A store that nothing wears out does as much in the last tenth as in the
first, and holds as much then as when it had warmed up. Three things make that hard to see, and all
are taken into account:

* *The machine is not ours alone.* Throughput is judged by the second of processor that was to be
  had. It is the time that the soak used and that nobody used, but no more than the soak uses when
  it gets all it wants. Others who take the processor change nothing therefore. A store that needs
  more of it for each operation is seen, and one that waits although it is free.
* *The machine itself becomes slower.* A control that does the same all the time, beside the soak,
  tells the price of a turn of any store just now (:mod:`tests.soak.control`). If that has risen
  from the first tenth to the last, the last one may do as much less. A fall excuses nothing.
* *Samples scatter.* A tenth is worth the median of its samples (of amounts that are held) or their
  sum (of operations). The allowance grows with how far the tenths in the middle scatter. Tenths of
  a few seconds are the weather of the machine: a run of some minutes tells who collapses, and only
  a long one who becomes slower.

The memory belongs to the processes alone: files of tables that are mapped come and go with the
cache of the system. The number of tables says little in a run of minutes, since they are merged now
and then; their content is looked through at the end (:mod:`tests.soak.content`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import median, pstdev
from typing import Final

import psutil

TENTHS: Final = 10
SLOWDOWN_MAX: Final = 0.2
"""The part by which the last tenth may be slower than the first, in a long run."""
SHORT_SLOWDOWN_MAX: Final = 0.5
"""The part by which it may be slower in a short run.

The best of its last tenths counts, against the median of as many first ones.
"""
LONG_TENTH_SECONDS: Final = 60.0
"""A run with tenths of that length is a long one."""
GROWTH_MAX: Final = 0.13
"""The part by which amounts that are to stay may be larger at the end, or by their own slack."""
SPELLS_MIN: Final = 3
"""The fewest spells of reading that are compared with those of not reading."""
WARM_TENTH: Final = 3
"""The tenth (of 0 to 9) until which the most counts as full: caches are warm by then."""
LAST_TENTHS: Final = 3
"""The number of tenths at the end of which the least counts.

An amount that grows goes on growing, but a process that does not get a processor for some seconds
holds more, and gives it back.
"""

FLAT_AFTER_SECONDS: Final = 90.0
"""The time for which the store merges tables before their number tells anything."""
PRICE: Final = "control, µs"
RANGES: Final = "ranges"
NOT_JUDGED: Final = (RANGES, "operations/s", "queues, /s", "used, %", "idle, %", PRICE)
PER_PROCESSOR: Final = "per processor"
TABLES: Final = "tables"

SLACK: Final = {
    "memory MB": 24.0,
    "descriptors": 12.0,
    "files": 6.0,
    TABLES: 12.0,
    "threads": 2.0,
    "timers": 40.0,
    "waiting": 40.0,
    "held": 40.0,
    "leases": 60.0,
    "consumers": 20.0,
}
"""The amounts that are no growth yet, by name.

On each node they are a log of the storage that is just being left, and one client that just waits.
"""

SLOWDOWN_OF_RANGE: Final = 0.005
"""The part by which each further range may make the store slower.

Keys that change together lie in more of them, and a transaction has more log entries.
"""
SLACK_OF_RANGE: Final = {"memory MB": 1.5, "timers": 4.0}
"""The amounts that each further range takes on all nodes together, by name."""


@dataclass
class Sample:
    """One second of it."""

    operations: float
    """A second."""
    held: dict[str, float]
    used: float = 1.0
    """The processors that the processes of the soak used."""
    idle: float = 0.0
    """The processors that nobody used."""
    price: float = 0.0
    """The price of a turn of the control, in seconds; 0: there was none."""
    queued: float = 0.0
    """A second, of operations with queues."""
    is_read: bool = False
    """A flag: a snapshot of long ago was being read."""


@dataclass
class Measure:
    """All samples of a run.

    Attributes:
        seconds: how long it takes.
    """

    seconds: float
    samples: list[Sample] = field(default_factory=list)

    def tenths(self, what: Callable[[Sample], float]) -> list[float]:
        """Return the median of each tenth."""
        return [median(map(what, samples)) for samples in self._cut()]

    def _cut(self) -> list[list[Sample]]:
        count = len(self.samples)
        bounds = [round(count * tenth / TENTHS) for tenth in range(TENTHS + 1)]
        return [self.samples[a : max(b, a + 1)] for a, b in pairwise(bounds)]

    def rows(self) -> dict[str, list[float]]:
        """Return the tenths of each thing measured."""
        rows = {
            "operations/s": self.tenths(lambda sample: sample.operations),
            PER_PROCESSOR: self._per_processor(),
        }
        rows["queues, /s"] = self.tenths(lambda sample: sample.queued)
        rows[PRICE] = self.tenths(lambda sample: 1e6 * sample.price)
        rows["used, %"] = self.tenths(lambda sample: 100 * sample.used)
        rows["idle, %"] = self.tenths(lambda sample: 100 * sample.idle)
        for name in self.samples[0].held:
            rows[name] = self.tenths(lambda sample, name=name: sample.held.get(name, 0.0))  # type: ignore[misc]
        return rows

    def _per_processor(self) -> list[float]:
        """Return operations by the second of processor that was to be had, for each tenth.

        The system counts in steps of 10 ms, and a process that gets but a tenth of a processor does
        much in one second and nothing in the next.
        """
        return [
            sum(each.operations for each in samples) / self._to_be_had(samples)
            for samples in self._cut()
        ]

    def _to_be_had(self, samples: Sequence[Sample]) -> float:
        """Return the seconds of processor that were to be had."""
        all_used = sorted(each.used for each in self.samples)
        wanted = all_used[len(all_used) * 9 // 10]
        return max(sum(min(each.used + each.idle, wanted) for each in samples), 1e-9)

    def _while_read(self) -> list[str]:
        """Check that queues are worked off as quickly while a snapshot is read as when none is.

        Both take turns, of some seconds each, so that what others do on the machine hits both. A
        spell of reading is compared with those before and after it, and three of four have to be
        slower before it is called slower.
        """
        spells = [
            (is_read, list(samples))
            for is_read, samples in groupby(self.samples, lambda sample: sample.is_read)
        ]
        rates = [
            (is_read, sum(each.queued for each in samples) / self._to_be_had(samples))
            for is_read, samples in spells[1:-1]
        ]
        shares = sorted(
            rate / max((before + after) / 2, 1e-9)
            for (_, before), (is_read, rate), (_, after) in zip(
                rates, rates[1:], rates[2:], strict=False
            )
            if is_read
        )
        if len(shares) < SPELLS_MIN or shares[len(shares) * 3 // 4] >= 1 - SLOWDOWN_MAX:
            return []
        return [f"queues: {100 * median(shares):.0f} % of the rate while a snapshot is read"]

    def _slower(self, rates: list[float], prices: list[float], ranges: list[float]) -> list[str]:
        """Return whether less is done by the second of processor at last than at first."""
        allowed, first, at = SLOWDOWN_MAX, rates[0], TENTHS - 1
        before = prices[0]
        if self.seconds / TENTHS < LONG_TENTH_SECONDS:
            allowed, first = SHORT_SLOWDOWN_MAX, median(rates[:LAST_TENTHS])
            at = max(range(TENTHS - LAST_TENTHS, TENTHS), key=rates.__getitem__)
            before = median(prices[:LAST_TENTHS])
        excuse = min(before / prices[at], 1.0) if prices[at] else 1.0
        allowed += SLOWDOWN_OF_RANGE * (ranges[at] - ranges[0])
        if rates[at] < first * (1 - allowed) * excuse - _scatter(rates):
            return [f"{PER_PROCESSOR}: {first:.0f} at first, {rates[at]:.0f} at last"]
        return []

    def verdicts(self) -> list[str]:
        """Return what is not as it must be."""
        if len(self.samples) < TENTHS:
            return [f"{len(self.samples)} samples are too few"]
        rows = self.rows()
        wrong = self._while_read()
        for name, tenths in rows.items():
            if name in NOT_JUDGED:
                continue
            if name == PER_PROCESSOR:
                wrong += self._slower(tenths, rows[PRICE], rows.get(RANGES, [0.0] * TENTHS))
                continue
            warm, slack = max(tenths[: WARM_TENTH + 1]), SLACK.get(name, 0.0)
            if name == TABLES and self.seconds * WARM_TENTH / TENTHS < FLAT_AFTER_SECONDS:
                continue
            most = max(warm * (1 + GROWTH_MAX), warm + slack)
            most += SLACK_OF_RANGE.get(name, 0.0) * _more(rows.get(RANGES, [0.0]))
            if (last := min(tenths[-LAST_TENTHS:])) > most:
                wrong.append(f"{name}: {warm:.0f} when warm, {last:.0f} at last")
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


def _more(ranges: list[float]) -> float:
    """Return how many ranges there are at last that were not there when the store was warm."""
    return ranges[-1] - ranges[min(WARM_TENTH, len(ranges) - 1)]


def _scatter(tenths: list[float]) -> float:
    """Return how far the tenths lie from the line that leads from the first to the last ones."""
    half = TENTHS // 2
    slope = (median(tenths[half:]) - median(tenths[:half])) / half
    straight = [value - slope * place for place, value in enumerate(tenths)]
    return pstdev(straight[1:-1])


class Processors:
    """The use of the processors since the last look, by some processes and by nobody."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._at = time.monotonic()
        self._used, self._idle = self._times()

    def look(self) -> tuple[float, float]:
        """Return how many processors the processes used, and how many were idle."""
        at, (used, idle) = time.monotonic(), self._times()
        seconds = max(at - self._at, 1e-9)
        since = (used - self._used) / seconds, (idle - self._idle) / seconds
        self._at, self._used, self._idle = at, used, idle
        return since

    def _times(self) -> tuple[float, float]:
        times = [each.cpu_times() for each in self._processes]
        return sum(each.user + each.system for each in times), psutil.cpu_times().idle
