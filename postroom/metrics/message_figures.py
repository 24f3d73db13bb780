"""The figures of messages and queues.

The counters of messages are those that this node has applied, in all ranges of which it has a
replica. Each node of a cluster tells nearly the same, with and without a leader. Queues, and the
age of the oldest message that is due, are told by leaseholders. Each node tells of the ranges that
it leads, and the numbers of messages of all nodes add up. Counts of events have a label for their
range.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec

from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import METRICS_QUEUES_MAX, METRICS_REPORTS_MAX
from postroom.messaging.counters import counters_of
from postroom.messaging.queues.figures import QueueReport, joined
from postroom.messaging.queues.records import QueueDamaged
from postroom.messaging.requests import Counters
from postroom.metrics.table import Point
from postroom.server.hosted_range import HostedRange
from postroom.server.node import Node

_STATES: Final = ("ready", "scheduled", "leased", "dead", "done", "archived")
_EVENTS: Final = (
    "enqueued", "fired", "acknowledged", "rejected", "expired", "buried", "replayed", "cancelled",
    "purged", "moved", "retried",
)  # fmt: skip


def messages(node: Node) -> Iterator[Point]:
    """Read the counters of messages."""
    counted = _summed(node)
    for name, value in (
        ("enqueued_total", counted.enqueued), ("delivered", counted.delivered),
        ("executed_total", counted.executed), ("dead", counted.dead),
        ("consumed_total", counted.reaped), ("received_total", counted.received),
        ("handed_total", counted.handed), ("unaccounted", _unaccounted(counted)),
    ):  # fmt: skip
        yield Point(f"postroom_messages_{name}", value)
    for kind, value in (
        ("message", counted.pending_messages), ("update", counted.pending_updates),
        ("outgoing", counted.outgoing),
    ):  # fmt: skip
        yield Point("postroom_messages_pending", value, (kind,))
    yield Point("postroom_dead_letters", counted.dead_letters)


def _summed(node: Node) -> Counters:
    total: Counter[str] = Counter()
    for each in node.replicas.hosted.values():
        total.update(msgspec.structs.asdict(counters_of(each.replica.state.sums)))
    return Counters(**total)


def _unaccounted(counted: Counters) -> int:
    ended = counted.delivered + counted.executed + counted.dead + counted.handed
    return counted.enqueued + counted.received - ended - counted.pending


def due(node: Node) -> Iterator[Point]:
    """Read how long ago the oldest message became due that is not delivered."""
    serving = [each for each in node.replicas.hosted.values() if each.replica.serves]
    if serving:
        now = node.clock.reading()
        first = min(_first_due(node, each, now) for each in serving)
        yield Point("postroom_oldest_due_seconds", (now - first >> LOGICAL_BITS) / 1000)


def _first_due(node: Node, hosted: HostedRange, now: int) -> int:
    """Return when the first entry of the outboxes became due, and ``now`` if none is."""
    outboxes = hosted.messaging.outboxes
    found = (
        each.first_due(node.engine, now) for each in (outboxes.deliverable, outboxes.executable)
    )
    return min([now, *filter(None, found)])


def queues(node: Node) -> Iterator[Point]:
    """Read the queues: each over all ranges that this node leads."""
    serving = [each for each in node.replicas.hosted.values() if each.replica.serves]
    for hosted in serving:
        if hosted.is_root:
            sound, damaged = hosted.messaging.queues.number()
            yield Point("postroom_queues", sound, ("sound",))
            yield Point("postroom_queues", damaged, ("damaged",))
    names, told = _names(serving), defaultdict[str, list[QueueReport]](list)
    damage: QueueDamaged | None = None
    for hosted in serving:
        try:
            for each in hosted.messaging.queues.reports(names):
                told[each.name].append(each)
                yield from _counted(each, str(hosted.range_id))
        except QueueDamaged as error:
            damage = error
    for name in filter(told.get, names):
        yield from _state(joined(told[name]))
    if damage is not None:
        raise damage


def _names(serving: list[HostedRange]) -> list[str]:
    """Return the names of the first queues, those in use before others."""
    most = min(METRICS_QUEUES_MAX, METRICS_REPORTS_MAX // max(len(serving), 1))
    in_use, sound = set[str](), set[str]()
    for hosted in serving:
        names = hosted.messaging.queues.names()
        in_use |= names[0]
        sound |= names[1]
    return [*sorted(in_use), *sorted(sound - in_use)][:most]


def _state(report: QueueReport) -> Iterator[Point]:
    """Yield the present state of a queue in all ranges that the node leads."""
    name = report.name
    for state in _STATES:
        yield Point("postroom_queue_messages", getattr(report.counts, state), (name, state))
    for gauge, value in (
        ("oldest_ready_seconds", report.oldest_seconds or 0),
        ("longest_held_seconds", report.longest_held_seconds or 0),
        ("consumers", report.consumers), ("troubles", report.troubles),
    ):  # fmt: skip
        yield Point(f"postroom_queue_{gauge}", value, (name,))


def _counted(report: QueueReport, of: str) -> Iterator[Point]:
    """Yield all that only grows, by range: it would jump when the lease of one of several moves."""
    name = report.name
    for event in _EVENTS:
        yield Point("postroom_queue_events_total", getattr(report.counts, event), (name, event, of))
    if report.figures is None:
        return
    lateness, runs = report.figures.lateness, report.figures.runs
    for kind, counted in (("lateness", lateness), ("run", runs)):
        value = tuple(counted.counts), counted.total
        yield Point(f"postroom_queue_{kind}_seconds", value, (name, of))
    for task, number in report.figures.failures.items():
        yield Point("postroom_queue_task_failures_total", number, (name, task, of))
