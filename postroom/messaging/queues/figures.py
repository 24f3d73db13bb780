"""The figures of queues for metrics, as the leaseholder of the range has seen them.

The counters of a queue are stored, and exact. The histograms and the failures by kind are in
memory: they begin anew with each lease of the range. A proposal that is evaluated again may count
a message twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from postroom.histogram import Histogram
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import METRICS_KINDS_MAX
from postroom.messaging.due import passed

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager
    from postroom.messaging.queues.queries import QueueCounts

OTHER_KINDS: Final = "other"
"""The kind that stands for all kinds beyond the first ``METRICS_KINDS_MAX``."""
OLDEST_AMONG: Final = 200
"""The number of ready messages, those longest in memory, among which the oldest is looked for."""


class QueueFigures:
    """The figures of one queue that no counter has.

    Attributes:
        lateness: milliseconds from due to fired.
        runs: milliseconds from fired to the end of the attempt, whatever its end.
        failures: the number of failed attempts by kind.
    """

    __slots__ = ("failures", "lateness", "runs")

    def __init__(self) -> None:
        self.lateness, self.runs = Histogram(), Histogram()
        self.failures: dict[str, int] = {}

    def failed(self, kind: str) -> None:
        """Count a failed attempt of a message of a kind."""
        failures = self.failures
        if kind not in failures and len(failures) >= METRICS_KINDS_MAX:
            kind = OTHER_KINDS
        failures[kind] = failures.get(kind, 0) + 1

    def ran(self, fired_at: int, now: int, number: int) -> None:
        """Count the ends of attempts that were fired at one timestamp."""
        self.runs.count(now - fired_at >> LOGICAL_BITS, number)


class QueueReport(NamedTuple):
    """The state of one queue at one moment.

    Attributes:
        name: the name of the queue.
        counts: its counters.
        consumers: the number of its known consumers; 0 if it is not in use.
        oldest_seconds: how long ago the oldest ready message became due; ``None``: none is ready,
            or the queue is not in use.
        longest_held_seconds: how long the longest lease lasts; ``None``: there is none.
        troubles: how often the work of the store for this queue has failed since it was sound.
        figures: its figures; ``None``: it is not in use.
    """

    name: str
    counts: QueueCounts
    consumers: int = 0
    oldest_seconds: float | None = None
    longest_held_seconds: float | None = None
    troubles: int = 0
    figures: QueueFigures | None = None


def joined(reports: Sequence[QueueReport]) -> QueueReport:
    """Return the state of a queue over several ranges, without figures."""
    counts = zip(*(msgspec.structs.astuple(each.counts) for each in reports), strict=True)
    oldest = [each.oldest_seconds for each in reports if each.oldest_seconds is not None]
    held = [each.longest_held_seconds for each in reports if each.longest_held_seconds is not None]
    return QueueReport(
        reports[0].name,
        type(reports[0].counts)(*map(sum, counts)),
        max(each.consumers for each in reports),
        max(oldest, default=None),
        max(held, default=None),
        sum(each.troubles for each in reports),
    )


def report(manager: Manager, now: int) -> QueueReport:
    """Return the state of a queue in use at ``now``, a timestamp."""
    ready = islice(manager.ready.entries, OLDEST_AMONG)
    due = min((each.due for each in ready), default=None)
    longest = manager.leases.longest()
    holders = manager.leases.consumers
    return QueueReport(
        manager.name,
        manager.counted,
        len(manager.consumers.ids() | holders),
        None if due is None else _seconds(now - passed(due, now, manager.host.by_wall)),
        None if longest is None else _seconds(now - longest.fired_at),
        manager.trouble.failures(manager.host.monotonic()),
        manager.figures,
    )


def _seconds(units: int) -> float:
    return max(units >> LOGICAL_BITS, 0) / 1000
