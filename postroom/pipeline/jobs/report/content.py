"""What the page of a report shows, as plain numbers: bounded, however large the store is.

The table of measures may have a row for each prefix and hour of years. The page has the busiest few
of each, and the last hours; what it leaves out it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

HOURS_MAX: Final = 24 * 14
ROWS_MAX: Final = 20
QUEUES_DRAWN: Final = 5


@dataclass(frozen=True)
class Taken:
    """How long something took, or how often it was tried: of some messages.

    Attributes:
        source: ``queue`` or ``inbox``.
        measure: which of the measures.
        hour: the number of an hour; ``None``: of all.
        queue, kind, prefix: of whom; ``None``: of all.
        messages: how many there were.
        mean, p50, p90, p99, max: in seconds, or attempts.
    """

    source: str
    measure: str
    hour: int | None
    queue: str | None
    kind: str | None
    prefix: str | None
    messages: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Flow:
    """What came and went in an hour."""

    hour: int
    enqueued: int
    done: int
    dead: int


@dataclass(frozen=True)
class Letters:
    """Messages that are dead: how many of a queue (``None``: in no queue), for one reason."""

    queue: str | None
    reason: str
    messages: int


@dataclass(frozen=True)
class Content:
    """See the module.

    Attributes:
        store: which one, as a person says it.
        at: the timestamp at which it was read, in seconds since 1970.
        archive: where the archive is; ``None``: only the store was read.
        archived_until: up to when that reaches, in seconds since 1970.
        since: what ended before was left out (0: nothing was), likewise.
        gaps: what may be missing, in words.
        overall, hourly, queues, kinds, prefixes: how long messages took, by level.
        flows: of each source, hour by hour; ``queue_flows``: of the busiest queues.
        totals: how many messages are in which state, by source; ``now``: also by queue, of those
            that have most.
        dead: how many are dead; ``letters``: why, the most frequent reasons.
        outbox: how many messages and updates wait in outboxes.
    """

    store: str
    at: float
    archive: str | None = None
    archived_until: float = 0.0
    since: float = 0.0
    gaps: Sequence[str] = ()
    overall: Sequence[Taken] = ()
    hourly: Sequence[Taken] = ()
    queues: Sequence[Taken] = ()
    kinds: Sequence[Taken] = ()
    prefixes: Sequence[Taken] = ()
    flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    queue_flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    now: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    dead: int = 0
    letters: Sequence[Letters] = ()
    outbox: int = 0


def whole_hours(flows: Iterable[Flow], until: int, hours_max: int = HOURS_MAX) -> list[Flow]:
    """Each hour up to ``until``, also those in which nothing happened; the last ones of many."""
    known = {each.hour: each for each in flows if each.hour <= until}
    if not known:
        return []
    first = max(min(known), until - hours_max + 1)
    return [known.get(hour, Flow(hour, 0, 0, 0)) for hour in range(first, until + 1)]


def backlog(here: int, flows: Sequence[Flow]) -> list[tuple[int, int]]:
    """How many messages were there at the end of each hour, counted back from how many are.

    Args:
        here: how many are there after the last hour.
        flows: of each hour, without gaps.
    """
    found = []
    for flow in reversed(flows):
        found.append((flow.hour, max(here, 0)))
        here += flow.done + flow.dead - flow.enqueued
    return found[::-1]


def there(now: Mapping[str, int]) -> int:
    """How many messages live, of those of all states."""
    return sum(number for state, number in now.items() if state != "dead")


__all__ = [
    "HOURS_MAX",
    "QUEUES_DRAWN",
    "ROWS_MAX",
    "Content",
    "Flow",
    "Letters",
    "Taken",
    "backlog",
    "there",
    "whole_hours",
]
