"""Periodic schedules: one message for each tick of ``cron``, whatever fails.

::

    SetSchedule ─▶ stored, with its next tick ── due ─▶ message "name@tick" + next tick, one write

If ticks were missed because there was no leader for a while, only the latest of them is enqueued.
The id of a message names its tick. Thus a tick is enqueued once even if the schedule is set again
in the meantime. An hour may come twice, or not at all, when clocks change; ``cronsim`` decides its
ticks by the time zone. It follows Debian's cron.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from postroom.errors import Invalid, how_to_install
from postroom.kv import keys
from postroom.kv.clock import Timestamp, from_datetime, from_seconds
from postroom.kv.engine import Reader
from postroom.limits import QUEUE_NAME_BYTES_MAX, SCHEDULES_MAX, UPKEEP_BYTES
from postroom.messaging import due as times
from postroom.messaging.queues.definition_requests import QueueSettings, SetSchedule
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import damaged, decoded
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import Evaluation

TRY_AGAIN_SECONDS: Final = 60.0
SET_BACK_SECONDS: Final = 60.0
"""The seconds by which a wall clock must be set back for new ticks to be found."""
TICKS_AN_HOUR: Final = 3600
"""The number of ticks in an hour at most: the finest unit of a schedule is a second."""

Enqueue: TypeAlias = Callable[[Evaluation, EnqueueInQueue], object]
"""A function that enqueues a message, unless there is one of its kind and id."""

_log = logging.getLogger("postroom.queues")


class PeriodicSchedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is stored, its next tick, and when that was found: by the wall clock."""

    request: SetSchedule
    next: int
    found_at: int = 0

    def next_at(self, now: int) -> int:
        """Return the next tick; one found by a clock that was set back since is due at once."""
        return (
            1 if self.next and self.found_at > now + from_seconds(SET_BACK_SECONDS) else self.next
        )


_decoder = msgspec.msgpack.Decoder(PeriodicSchedule)
_encode = msgspec.msgpack.encode


def _cron(expression: str, after: datetime.datetime, *, reverse: bool = False) -> Any:
    """Return the ticks after a moment, or (``reverse``) before it, latest first."""
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only who uses it needs it
    except ImportError:
        raise Invalid(
            f"schedules need the library cronsim on the nodes: {how_to_install('cron')}"
        ) from None
    try:
        return CronSim(expression, after, reverse=reverse)
    except CronSimError as error:
        raise Invalid(
            f"{expression!r} is no cron expression ({error}); nothing was changed: write five "
            "fields, such as '0 3 * * *'"
        ) from None


def _moment(timestamp: int, timezone: str) -> datetime.datetime:
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"there is no time zone {timezone!r}; nothing was changed: give one such as "
            "Europe/Berlin, or UTC"
        ) from None
    return Timestamp(timestamp).datetime.astimezone(zone)


def _next_tick(request: SetSchedule, after: int) -> int:
    """Return the first tick after a timestamp; 0: there is none any more.

    The second time of an hour that comes twice, the library begins with ticks of the first time.
    """
    assert request.cron is not None
    found = _cron(request.cron, _moment(after, request.timezone))
    ticks = (from_datetime(each) for each in islice(found, TICKS_AN_HOUR + 1))
    return next((each for each in ticks if each > after), 0)


def _latest_tick(request: SetSchedule, now: int) -> int:
    """Return the last tick that is not after a timestamp; 0: there was none.

    The library leaves out some ticks of an hour that comes twice.
    """
    assert request.cron is not None
    moment = _moment(now, request.timezone) + datetime.timedelta(milliseconds=1)
    found = next(iter(_cron(request.cron, moment, reverse=True)), None)
    if found is None:
        return 0
    latest = from_datetime(found)
    onward = _cron(request.cron, _moment(latest, request.timezone))
    ticks = (from_datetime(each) for each in islice(onward, 2 * TICKS_AN_HOUR))
    return max(takewhile(lambda tick: tick <= now, ticks), default=latest)


def set_schedule(
    find: Callable[[Evaluation, str], tuple[Manager, QueueSettings]],
    ctx: Evaluation,
    request: SetSchedule,
) -> None:
    """Evaluate ``SetSchedule``.

    Raises:
        Invalid: no cron expression, no time zone; its name is too long, or its headers are nested
            too deep; or the queue has too many schedules.
        ValueTooLarge: its headers are too large.
    """
    manager, _ = find(ctx, request.queue)
    check_headers(request.headers, manager.name.encode())
    if len(request.name.encode()) > QUEUE_NAME_BYTES_MAX:
        raise Invalid(
            f"the name of a schedule has up to {QUEUE_NAME_BYTES_MAX} bytes; nothing was changed"
        )
    key = manager.layout.tick_key(request.name)
    known = ctx.get(key)
    if request.cron is None:
        if known is not None:
            ctx.writes[key] = None
        return
    if known is None and len(read_all(ctx, manager)) >= SCHEDULES_MAX:
        raise Invalid(
            f"the queue {manager.name!r} has {SCHEDULES_MAX} schedules already; nothing was "
            "changed: use another queue"
        )
    now = manager.host.by_wall()
    tick = _next_tick(request, now)
    ctx.writes[key] = stored = _encode(PeriodicSchedule(request, tick, now))
    ctx.grow(len(key) + len(stored))
    if tick:
        ctx.notes.append((manager, (), Manager.tick_set, tick, None))


def read_all(reader: Reader | Evaluation, manager: Manager) -> list[PeriodicSchedule]:
    """Return the schedules of a queue."""
    prefix = manager.layout.ticks
    found = []
    for key, packed in reader.iterate(prefix, keys.after_prefix(prefix)):
        schedule = decoded(_decoder, packed, manager.name)
        if key != manager.layout.tick_key(schedule.request.name):
            told = f"it is that of {schedule.request.name!r}"
            raise damaged(manager.name, "a stored schedule", told)
        found.append(schedule)
    return found


def next_of(packed: bytes, now: int) -> int:
    """Return the next tick of a stored schedule; 0: there is none.

    Args:
        packed: the stored schedule.
        now: the time by the wall clock.
    """
    return _decoder.decode(packed).next_at(now)


def first_tick(reader: Reader | Evaluation, manager: Manager) -> int:
    """Return the first next tick of all schedules, by the wall clock; 0: there is none."""
    now = manager.host.by_wall()
    ticks = [each.next_at(now) for each in read_all(reader, manager)]
    return times.earliest(*ticks)


def tick(ctx: Evaluation, manager: Manager, enqueue: Enqueue) -> bool:
    """Enqueue for the ticks that are due, and find the next ones; return whether more are due.

    A schedule whose ticks cannot be found (this node has no such time zone, or no cron library)
    waits, and nothing else does: it is tried again after ``TRY_AGAIN_SECONDS``.
    """
    now, bytes_max, first = manager.host.by_wall(), ctx.bytes + UPKEEP_BYTES, 0
    for schedule in read_all(ctx, manager):
        ctx.steps += 8
        due = schedule.next_at(now)
        if due and due <= now and ctx.bytes < bytes_max:
            try:
                due = _tick(ctx, manager, enqueue, schedule, now)
            except Invalid as error:
                _log.warning(
                    "the schedule %s of queue %s waits: %s",
                    schedule.request.name, manager.name, error,
                )  # fmt: skip
                due = now + from_seconds(TRY_AGAIN_SECONDS)
        if due:
            first = min(first or due, due)
    ctx.notes.append((manager, (), Manager.ticked, first, None))
    return 0 < first <= now


def _tick(
    ctx: Evaluation, manager: Manager, enqueue: Enqueue, schedule: PeriodicSchedule, now: int
) -> int:
    """Enqueue for a schedule that is due, and return its next tick."""
    request = schedule.request
    after = PeriodicSchedule(request, _next_tick(request, now), now)
    if schedule.next <= now:
        latest = max(_latest_tick(request, now), schedule.next)
        name = f"{request.name}@{Timestamp(latest).datetime.isoformat()}".encode()
        enqueue(
            ctx,
            EnqueueInQueue(
                manager.name, name, request.kind, name, request.payload, request.headers,
                request.priority, times.at(latest), request.group,
            ),
        )  # fmt: skip
    ctx.writes[manager.layout.tick_key(request.name)] = stored = _encode(after)
    ctx.grow(len(stored))
    return after.next
