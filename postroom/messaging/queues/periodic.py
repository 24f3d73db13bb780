"""Periodic schedules: a message a tick of ``cron``, once, whatever fails.

::

    SetSchedule ─▶ stored, with its next tick ── due ─▶ message "name@tick" + next tick, one write

Of ticks that were missed, because nobody led for a while, only the latest is made up for. The id of
a message names its tick, so a tick is enqueued once even if the schedule is set again in the
meantime. The time zone decides what becomes of hours that come twice a year, or not at all: as
``cronsim`` says, which follows Debian's cron.
"""

from __future__ import annotations

import datetime
import logging
from itertools import islice, takewhile
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from postroom.errors import Invalid, how_to_install
from postroom.kv import keys
from postroom.kv.clock import Timestamp, from_datetime, from_seconds
from postroom.kv.engine import Reader
from postroom.limits import QUEUE_NAME_BYTES_MAX, SCHEDULES_MAX, UPKEEP_BYTES
from postroom.messaging.queues.damage import damaged, decoded
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.requests import Enqueue, SetSchedule
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import Evaluation

TRY_AGAIN_SECONDS: Final = 60.0
TICKS_AN_HOUR: Final = 3600
"""No schedule has more: it is asked for seconds, at most."""

_log = logging.getLogger("postroom.queues")


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is stored, and the timestamp of its next tick."""

    request: SetSchedule
    next: int


_decoder = msgspec.msgpack.Decoder(Schedule)
_encode = msgspec.msgpack.encode


class Queues(Protocol):
    """What ticks ask of the queues of their range."""

    def enqueue_once(self, ctx: Evaluation, request: Enqueue) -> Any:
        """Enqueues a message, unless there is one of its kind and id."""


def _cron(expression: str, after: datetime.datetime, *, reverse: bool = False) -> Any:
    """The ticks after a moment, or (``reverse``) before it, latest first."""
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
            f"{expression!r} is no cron expression: {error}; nothing was changed"
        ) from None


def _moment(timestamp: int, timezone: str) -> datetime.datetime:
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(f"there is no time zone {timezone!r}; nothing was changed") from None
    return Timestamp(timestamp).datetime.astimezone(zone)


def _next_tick(request: SetSchedule, after: int) -> int:
    """The first tick after a timestamp; 0: there is none any more. (In an hour that comes twice,
    the second time, the library begins with ticks of the first time.)
    """
    assert request.cron is not None
    found = _cron(request.cron, _moment(after, request.timezone))
    ticks = (from_datetime(each) for each in islice(found, TICKS_AN_HOUR + 1))
    return next((each for each in ticks if each > after), 0)


def _latest_tick(request: SetSchedule, now: int) -> int:
    """The last tick that is not after a timestamp; 0: there was none. (In such an hour the library
    leaves some out.)
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


def set_schedule(ctx: Evaluation, manager: Manager, request: SetSchedule) -> None:
    """``SetSchedule``.

    Raises:
        Invalid: no cron expression, no time zone; its name is too long, or its headers are nested
            too deep; or the queue has too many schedules.
        ValueTooLarge: its headers are.
    """
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
    tick = _next_tick(request, ctx.timestamp)
    ctx.writes[key] = stored = _encode(Schedule(request, tick))
    ctx.grow(len(key) + len(stored))
    if tick:
        ctx.notes.append((manager, (), Manager.tick_set, tick, None))


def read_all(reader: Reader | Evaluation, manager: Manager) -> list[Schedule]:
    """The schedules of a queue."""
    prefix = manager.layout.ticks
    found = []
    for key, packed in reader.iterate(prefix, keys.after_prefix(prefix)):
        schedule = decoded(_decoder, packed, manager.name)
        if key != manager.layout.tick_key(schedule.request.name):
            told = f"it is that of {schedule.request.name!r}"
            raise damaged(manager.name, "a stored schedule", told)
        found.append(schedule)
    return found


def first_tick(reader: Reader | Evaluation, manager: Manager) -> int:
    """When the next one is; 0: never."""
    return min((each.next for each in read_all(reader, manager) if each.next), default=0)


def tick(ctx: Evaluation, manager: Manager, queues: Queues) -> bool:
    """Enqueues for the ticks that are due, and finds the next ones; whether more are due.

    A schedule whose ticks cannot be found (this node has no such time zone, or no cron library)
    waits, and nothing else does: it is tried again after ``TRY_AGAIN_SECONDS``.
    """
    now, bytes_max, first = ctx.timestamp, ctx.bytes + UPKEEP_BYTES, 0
    for schedule in read_all(ctx, manager):
        ctx.steps += 8
        due = schedule.next
        if due and due <= now and ctx.bytes < bytes_max:
            try:
                due = _tick(ctx, manager, queues, schedule)
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


def _tick(ctx: Evaluation, manager: Manager, queues: Queues, schedule: Schedule) -> int:
    """Enqueues for a schedule that is due; answers its next tick."""
    now, request = ctx.timestamp, schedule.request
    latest = max(_latest_tick(request, now), schedule.next)
    after = Schedule(request, _next_tick(request, now))
    name = f"{request.name}@{Timestamp(latest).datetime.isoformat()}".encode()
    queues.enqueue_once(
        ctx,
        Enqueue(
            manager.name, name, request.kind, name, request.payload, request.headers,
            request.priority, latest, request.group,
        ),
    )  # fmt: skip
    ctx.writes[manager.layout.tick_key(request.name)] = stored = _encode(after)
    ctx.grow(len(stored))
    return after.next
