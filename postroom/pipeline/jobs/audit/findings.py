"""The findings of an audit: for each counter the number of values, and every difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from postroom.pipeline.jobs.audit import facts

EXAMPLES_MAX: Final = 10
"""The number of differences of a counter that are told one by one."""

COUNTERS: Final[Mapping[str, str]] = {
    facts.CONSERVATION: "enqueued = delivered + executed + pending + dead",
    facts.PENDING_MESSAGES: "messages in outboxes",
    facts.PENDING_UPDATES: "updates in outboxes",
    facts.DEAD_LETTERS: "dead letters",
    facts.IN_INBOXES: "messages in inboxes, delivered and not reaped",
    facts.INDEX: "index of inboxes: messages",
    facts.INDEX_OLDEST: "index of inboxes: the oldest message",
    facts.INDEX_HELD: "index of inboxes: what holds up",
    facts.ACCOUNTING: "sums of metrics of every prefix",
    facts.QUEUE_ENQUEUED: "queues: enqueued = all states",
    **{f"queue.{state}": f"queues: {state}" for state in facts.QUEUE_STATES},
    facts.QUEUE_ENDED: "queues: ended, and not purged",
    facts.QUEUE_GROUP: "queues: outstanding in a group",
    facts.QUEUE_MESSAGE: "queues: each message where its record says",
}
"""The counters that an audit compares, in words, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class CountDifference:
    """A difference between a claim and a count.

    Attributes:
        counter: one of ``COUNTERS``.
        where: a range, or a queue; empty: in a span of keys.
        key: the key of an inbox or a message of a queue, a prefix, or a group.
        item: a metric, or kind and id of a message.
        claimed: the claim.
        counted: the count: a number, the id of a message (hexadecimal), or the place of a message
            of a queue; ``None``: nothing.
    """

    counter: str
    where: str
    key: bytes
    item: str
    claimed: int | str | None
    counted: int | str | None

    def __str__(self) -> str:
        about = [self.where, repr(self.key)[1:] if self.key else "", self.item]
        place = ", ".join(filter(None, about))
        return f"{self.counter} ({place}): claimed {self.claimed}, counted {self.counted}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of comparing one counter.

    Attributes:
        counter: one of ``COUNTERS``.
        compared: the number of values: of ranges, keys, prefixes and metrics, queues, messages.
        differences: the number of those that are not what is claimed.
        examples: the first differences, ``EXAMPLES_MAX`` at most.
    """

    counter: str
    compared: int
    differences: int
    examples: tuple[CountDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        at: the timestamp at which everything was claimed and counted.
        findings: one for each counter.
    """

    at: int
    findings: tuple[Finding, ...]

    @property
    def compared(self) -> int:
        """Return the number of values that were compared."""
        return sum(each.compared for each in self.findings)

    @property
    def differences(self) -> int:
        """Return the number of values that are not what is claimed."""
        return sum(each.differences for each in self.findings)


def findings(
    totals: Mapping[str, tuple[int, int, int]],
    examples: Iterable[Any],
    names: Mapping[int, str],
) -> tuple[Finding, ...]:
    """Return a finding for each counter.

    Args:
        totals: for each check the number of groups, of those that differ in number, and of those
            that differ in the id.
        examples: groups that differ.
        names: the names of queues, by number.
    """
    told: dict[str, list[CountDifference]] = {}
    for group in examples:
        for difference in _differences(group, names):
            told.setdefault(difference.counter, []).append(difference)
    found = []
    for counter in COUNTERS:
        if counter == facts.INDEX_OLDEST:
            compared, _, differences = totals.get(facts.INDEX, (0, 0, 0))
        else:
            compared, wrong, other = totals.get(counter, (0, 0, 0))
            differences = other if counter == facts.INDEX_HELD else wrong
        few = tuple(told.get(counter, ())[:EXAMPLES_MAX])
        found.append(Finding(counter, compared, differences, few))
    return tuple(found)


def _differences(group: Any, names: Mapping[int, str]) -> Iterable[CountDifference]:
    """Iterate over the differences of a group: in number, in the id, or both."""
    about = (_where(group, names), bytes(group.key or b""), _item(group))
    if group.check == facts.QUEUE_MESSAGE:
        yield CountDifference(group.check, *about, _said(group), _seen(group))
        return
    if group.wrong:
        yield CountDifference(group.check, *about, int(group.claimed), int(group.counted))
    if group.other:
        counter = facts.INDEX_OLDEST if group.check == facts.INDEX else group.check
        yield CountDifference(counter, *about, _hex(group.claimed_id), _hex(group.counted_id))


def _where(group: Any, names: Mapping[int, str]) -> str:
    if group.check.startswith("queue."):
        name = names.get(group.place)
        return f"queue {group.place}, which is not there" if name is None else f"queue {name!r}"
    if group.check in facts.OF_RANGES and group.place:
        return f"range {group.place}"
    return "all ranges" if group.check in {*facts.OF_RANGES, facts.IN_INBOXES} else ""


def _item(group: Any) -> str:
    if group.check != facts.QUEUE_MESSAGE:
        return group.kind or ""
    kind = f"kind {group.kind!r}, " if group.kind else ""
    return f"{kind}id {bytes(group.id)!r}"


def _said(group: Any) -> str | None:
    """Return the place that the record of a message tells."""
    return None if not group.claimed else _state(group.claimed_id)


def _seen(group: Any) -> str | None:
    """Return the place where a message is."""
    if group.counted > 1:
        return f"in {group.counted} places"
    return None if not group.counted else _state(group.counted_id)


def _state(of: Any) -> str:
    return bytes(of)[1:].decode()


def _hex(id_: Any) -> str | None:
    return None if id_ is None else bytes(id_).hex()


__all__ = ["COUNTERS", "EXAMPLES_MAX", "AuditResult", "CountDifference", "Finding", "findings"]
