"""What is asked of queues without changing anything: definitions, messages, numbers.

All of it is a read, answered by the leaseholder from what is applied; messages also as of a
timestamp. What changes something is in :mod:`.requests`.
"""

from __future__ import annotations

import msgspec

from postroom.messaging.queues.requests import Kind, QueueMessage, QueueMessageId, QueueName
from postroom.ranges.requests import UNBOUNDED, Count, Moment, Request


class ReadQueues(Request, frozen=True, array_like=True, tag="read_queues", gc=False):
    """The definitions of the queue ``name``, or of all (``""``): ``list[QueueDefinition]``."""

    name: str = ""


class ReadQueueMessage(Request, frozen=True, array_like=True, tag="read_queue_message", gc=False):
    """The messages with an id, of whatever kind (``None``) or of one: ``list[QueueMessage]``."""

    queue: QueueName
    id: QueueMessageId
    kind: Kind | None = None


class ListQueueMessages(Request, frozen=True, array_like=True, tag="list_queue_messages", gc=False):
    """A page of a queue's messages, by state.

    Attributes:
        state: one of those of ``QueueMessage``; ``""``: all that live (not done, not dead).
        after: the ``next`` of the page before; ``b""``: from the start.
        start, end: of ``done_at`` (``done``, ``archived``, ``dead``), else of ``scheduled``:
            timestamps, ``end=0`` is unbounded.
        timestamp: as of when; 0: now.
    """

    queue: QueueName
    state: str = ""
    after: bytes = b""
    start: Moment = 0
    end: Moment = 0
    messages_max: Count = 100
    bytes_max: Count = UNBOUNDED
    timestamp: Moment = 0


class QueuePage(msgspec.Struct, frozen=True, array_like=True):
    """Some messages; ``next``: where the next page goes on (``b""``: there is none)."""

    messages: list[QueueMessage]
    next: bytes = b""


class ReadSchedules(Request, frozen=True, array_like=True, tag="read_schedules", gc=False):
    """The periodic schedules of a queue: ``list[SetSchedule]``."""

    queue: QueueName


class ReadQueueStats(Request, frozen=True, array_like=True, tag="read_queue_stats", gc=False):
    """What a queue has done, and holds: ``QueueStats``."""

    queue: QueueName


class QueueStats(msgspec.Struct, frozen=True, array_like=True):
    """Of one queue. What is counted is stored, and changes with what it counts; ``fired`` and the
    like only grow. ``consumers`` and lateness are what this leaseholder has seen.

    Attributes:
        lateness_p50, lateness_p99: seconds from due to fired, of the last ones (``None``: none).
        oldest: the timestamp at which the oldest ready message became due, of those in memory; 0:
            none is ready. ``oldest_age``: how many seconds ago that was (``None``: none is).
        retried: how many of those fired had been fired before, and failed.
        failures: how often firing, or what else the store does by itself with this queue, has
            failed since it was sound; ``trouble``: why it failed last.
    """

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    archived: int = 0
    enqueued: int = 0
    fired: int = 0
    acknowledged: int = 0
    rejected: int = 0
    expired: int = 0
    buried: int = 0
    replayed: int = 0
    cancelled: int = 0
    purged: int = 0
    consumers: int = 0
    oldest: int = 0
    lateness_p50: float | None = None
    lateness_p99: float | None = None
    oldest_age: float | None = None
    retried: int = 0
    failures: int = 0
    trouble: str = ""
