"""The figures of messages and queues.

The counters of messages are those that this node has applied, in all ranges of which it has a
replica. Each node of a cluster tells nearly the same, with and without a leader. Queues, and the
age of the oldest message that is due, are told by the leaseholder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import METRICS_QUEUES_MAX
from postroom.messaging.counters import counters_of
from postroom.messaging.queues.figures import QueueReport
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
    """Read the queues."""
    for hosted in node.replicas.hosted.values():
        if hosted.is_root and hosted.replica.serves:
            sound, damaged = hosted.messaging.queues.number()
            yield Point("postroom_queues", sound, ("sound",))
            yield Point("postroom_queues", damaged, ("damaged",))
            for each in hosted.messaging.queues.reports(METRICS_QUEUES_MAX):
                yield from _queue(each)


def _queue(report: QueueReport) -> Iterator[Point]:
    name = report.name
    for state in _STATES:
        yield Point("postroom_queue_messages", getattr(report.counts, state), (name, state))
    for event in _EVENTS:
        yield Point("postroom_queue_events_total", getattr(report.counts, event), (name, event))
    for gauge, value in (
        ("oldest_ready_seconds", report.oldest_seconds or 0),
        ("longest_held_seconds", report.longest_held_seconds or 0),
        ("consumers", report.consumers), ("troubles", report.troubles),
    ):  # fmt: skip
        yield Point(f"postroom_queue_{gauge}", value, (name,))
    if report.figures is not None:
        lateness, runs = report.figures.lateness, report.figures.runs
        yield Point(
            "postroom_queue_lateness_seconds", (tuple(lateness.counts), lateness.total), (name,)
        )
        yield Point("postroom_queue_run_seconds", (tuple(runs.counts), runs.total), (name,))
        for task, number in report.figures.failures.items():
            yield Point("postroom_queue_task_failures_total", number, (name, task))
