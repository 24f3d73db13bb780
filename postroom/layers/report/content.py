"""The contents of a report's page, as plain numbers: bounded, however large the store is.

The table of measures may have a row for each prefix and hour of years. The page has the busiest few
of each, and the last periods; it tells what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

PERIODS_MAX: Final = 24 * 14
ROWS_MAX: Final = 20
QUEUES_DRAWN: Final = 5


@dataclass(frozen=True)
class MessageTimes:
    """The times, or the attempts, that some messages took.

    Attributes:
        source: ``queue`` or ``inbox``.
        measure: which of the measures.
        period: the number of a period (:attr:`Content.period`) since 1970; ``None``: of all.
        queue, kind, prefix: of whom; ``None``: of all.
        messages: how many there were.
        mean, p50, p90, p99, max: in seconds, or attempts.
    """

    source: str
    measure: str
    period: int | None
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
    """The messages that came and went in a period."""

    period: int
    enqueued: int
    done: int
    dead: int


@dataclass(frozen=True)
class Letters:
    """Dead messages: how many of a queue (``None``: in no queue), for one reason."""

    queue: str | None
    reason: str
    messages: int


@dataclass(frozen=True)
class Content:
    """The contents of the page: see the module.

    Attributes:
        store: which one, as a person says it.
        at: the timestamp at which it was read, in seconds since 1970.
        archive: where the archive is; ``None``: only the store was read.
        archived_until: up to when that reaches, in seconds since 1970.
        since: what ended before was left out (0: nothing was), in seconds since 1970.
        gaps: what may be missing, in words.
        overall, by_period, queues, kinds, prefixes: how long messages took, by level.
        flows: of each source, period by period; ``queue_flows``: of the busiest queues.
        totals: how many messages are in which state, by source; ``now``: also by queue, of those
            that have most.
        dead: how many are dead; ``letters``: why, the most frequent reasons.
        outbox: how many messages and updates wait in outboxes.
        period: how many seconds a period has.
    """

    store: str
    at: float
    archive: str | None = None
    archived_until: float = 0.0
    since: float = 0.0
    gaps: Sequence[str] = ()
    overall: Sequence[MessageTimes] = ()
    by_period: Sequence[MessageTimes] = ()
    queues: Sequence[MessageTimes] = ()
    kinds: Sequence[MessageTimes] = ()
    prefixes: Sequence[MessageTimes] = ()
    flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    queue_flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    now: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    dead: int = 0
    letters: Sequence[Letters] = ()
    outbox: int = 0
    period: int = 3600


def whole_periods(flows: Iterable[Flow], until: int, periods_max: int = PERIODS_MAX) -> list[Flow]:
    """Return each period up to ``until``, empty ones too; the last ones of many."""
    known = {each.period: each for each in flows if each.period <= until}
    if not known:
        return []
    first = max(min(known), until - periods_max + 1)
    return [known.get(number, Flow(number, 0, 0, 0)) for number in range(first, until + 1)]


def backlog(here: int, flows: Sequence[Flow]) -> list[tuple[int, int]]:
    """Return the messages at the end of each period, counted back from today's.

    Args:
        here: how many are there after the last period.
        flows: of each period, without gaps.
    """
    found = []
    for flow in reversed(flows):
        found.append((flow.period, max(here, 0)))
        here += flow.done + flow.dead - flow.enqueued
    return found[::-1]


def living(now: Mapping[str, int]) -> int:
    """Return how many messages live, by the numbers of all states."""
    return sum(number for state, number in now.items() if state != "dead")


__all__ = [
    "PERIODS_MAX",
    "QUEUES_DRAWN",
    "ROWS_MAX",
    "Content",
    "Flow",
    "Letters",
    "MessageTimes",
    "backlog",
    "living",
    "whole_periods",
]
