"""The table of all metrics: names, kinds, labels and meanings.

Names follow the rules of Prometheus: the unit is last, a counter ends with ``_total``. A histogram
counts in whole units of its source, by powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Labels: TypeAlias = tuple[str, ...]
Counted: TypeAlias = tuple[Sequence[int], int]
"""A histogram that was read: its numbers by digits, and its total."""


class Point(NamedTuple):
    """A value of a metric, with the values of its labels."""

    name: str
    value: float | Counted
    labels: Labels = ()


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: the name, as it is exposed.
        kind: the kind, as Prometheus has it.
        meaning: the meaning, in a line.
        labels: the names of its labels.
        units: the number of units of its source in a second, of a histogram.
        digits: the first and the last power of two that bounds a bucket, of a histogram.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: Labels = ()
    units: int = 1
    digits: tuple[int, int] = (0, 0)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"postroom_{name}", "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"postroom_{name}_total", "counter", meaning, labels)


MILLISECONDS: Final = 1_000
MICROSECONDS: Final = 1_000_000

NODE: Final = (
    _gauge("up", "1: the node has answered within a second; 0: it hangs, or is closed"),
    _gauge("sample_age_seconds", "age of all other figures; large if the node hangs"),
    _gauge("unreadable", "groups of figures that could not be read: data is damaged"),
    _gauge("info", "always 1", "version", "engine", "node"),
    _gauge("has_leader", "1: this node knows a leader of the first range"),
    _gauge("leads", "1: this node leads the first range"),
    _gauge("ranges", "ranges of which this node has a replica", "state"),
    _gauge("term", "term of the first range"),
    _counter("elections", "elections in which this node stood, in all ranges"),
    _counter("proposals", "proposals that this node has made"),
    _counter("entries_applied", "log entries applied, in all ranges"),
    _gauge("peer_entries_behind", "entries of the first range that a node lacks", "peer"),
    _gauge("peer_silent_seconds", "time since a node was heard; told by the leader", "peer"),
    _counter("turns", "turns that were taken"),
    _counter("turn_seconds", "time of turns, from beginning to end"),
    _counter("evaluation_seconds", "the part of it until requests were evaluated"),
    Metric(
        "postroom_sync_seconds", "histogram", "time to write a turn durably", (),
        MICROSECONDS, (6, 24),
    ),
    _gauge("requests_waiting", "requests that wait for a turn", "kind"),
    _counter("requests_refused", "requests that were refused", "reason"),
    _gauge("held_entries", "entries in memory for clients: locks, claims, waits, timers", "kind"),
    _gauge("service_running", "1: the service runs here", "service"),
    _gauge("service_failures", "failures of a service since it was sound", "service"),
    _gauge("memory_budget_bytes", "the budget of memory", "share"),
    _gauge("memory_bytes", "memory of the process", "kind"),
    _gauge("descriptors", "open file descriptors of the process"),
    _gauge("descriptors_max", "the limit of these"),
    _gauge("disk_bytes", "size of the store"),
    _gauge("disk_free_bytes", "free room where the store lies"),
    _gauge("disk_reserve_bytes", "room below which writes are refused"),
    _gauge("writes_refused", "1: writes are refused, the device has hardly any room"),
    _gauge("disk_damaged", "1: this node knows of damage on its disk"),
    _gauge("tables", "table files of the engine"),
    _gauge("log_segments", "segments of the log"),
    _gauge("log_bytes", "size of the log"),
    _counter("compactions", "compactions of deleted data"),
    _counter("compaction_seconds", "time of these"),
    _gauge("clock_offset_seconds", "how far this clock is ahead of most others"),
    _gauge("peer_clock_offset_seconds", "how far this clock is ahead of a node's", "peer"),
)  # fmt: skip

CLIENTS: Final = (
    _gauge("sessions", "streams of clients"),
    _gauge("connections", "connections, of nodes too"),
    _gauge("requests_under_way", "requests of clients that were not answered yet"),
    _gauge("request_bytes", "memory of these"),
    _gauge("unread_answer_bytes", "answers that clients have not taken"),
    _gauge("certificate_expiry_timestamp_seconds", "when a certificate expires", "certificate"),
)

MESSAGES: Final = (
    _counter("messages_enqueued", "messages and updates that were committed"),
    _gauge("messages_delivered", "messages that reached their inbox"),
    _counter("messages_executed", "updates that were carried out"),
    _gauge("messages_pending", "messages and updates in outboxes", "kind"),
    _gauge("messages_dead", "dead letters there were"),
    _gauge("dead_letters", "dead letters to replay or discard"),
    _counter("messages_consumed", "messages that transactions consumed"),
    _counter("messages_received", "messages and updates taken from other ranges"),
    _counter("messages_handed", "messages and updates taken by other ranges"),
    _gauge("messages_unaccounted", "the conservation sum: always 0"),
    _gauge("oldest_due_seconds", "time since the oldest undelivered message became due"),
)

QUEUES: Final = (
    _gauge("queues", "queues; labels tell of the first 100 in use", "state"),
    _gauge("queue_messages", "messages of a queue", "queue", "state"),
    _counter("queue_events", "fired is an attempt; rejected and expired are failures",
             "queue", "event", "range"),
    _counter("queue_task_failures", "failed attempts by the kind of the message, its task",
             "queue", "task", "range"),
    _gauge("queue_oldest_ready_seconds", "time since the oldest ready message became due", "queue"),
    _gauge("queue_longest_held_seconds", "time for which one holder has a message", "queue"),
    _gauge("queue_consumers", "consumers that wait or hold messages", "queue"),
    _gauge("queue_troubles", "failures of the store's own work for a queue", "queue"),
    Metric(
        "postroom_queue_lateness_seconds", "histogram", "time from due to fired",
        ("queue", "range"), MILLISECONDS, (0, 22),
    ),
    Metric(
        "postroom_queue_run_seconds", "histogram", "time from fired to the end of the attempt",
        ("queue", "range"), MILLISECONDS, (0, 22),
    ),
)  # fmt: skip

METRICS: Final = {each.name: each for each in (*NODE, *CLIENTS, *MESSAGES, *QUEUES)}
