"""Pages of queues: all of them, one, one message, and the consumers that hold messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import postroom
import postroom.aio
from postroom.errors import AccessDenied
from postroom.web.asked import BadRequest
from postroom.web.limits import QUEUES_SUMMED_MAX, ROWS_MAX
from postroom.web.reading import PageReader
from postroom.web.reading.traces import events_of
from postroom.web.texts import name_of, when

_DEPTHS = ("ready", "scheduled", "leased", "dead", "done", "archived")
_TOTALS = (
    "enqueued", "fired", "acknowledged", "rejected", "expired", "buried", "replayed", "cancelled",
    "purged",
)  # fmt: skip


async def queues(reader: PageReader) -> dict[str, Any]:
    """Return the queues with their depths, in the order of their names, page by page."""
    after = reader.asked.text("after")

    async def read(db: postroom.aio.Database) -> tuple[list[Any], list[Any]]:
        infos = await db.queues(after=after, limit=QUEUES_SUMMED_MAX)
        asked = (None if each.damaged else db.queue(each.name).stats() for each in infos)
        return infos, await asyncio.gather(*(each or _none() for each in asked))

    infos, stats = await reader.store.read(read)
    return {
        "queues": [_summary(info, each) for info, each in zip(infos, stats, strict=True)],
        "next": _next(infos),
    }


def _next(infos: list[postroom.QueueInfo]) -> str | None:
    """Return the name behind which the next page begins; ``None``: there is none."""
    return infos[-1].name if len(infos) == QUEUES_SUMMED_MAX else None


async def _none() -> None:
    """Return the statistics of a queue that is damaged: there are none."""


def _summary(info: postroom.QueueInfo, stats: postroom.QueueStats | None) -> dict[str, Any]:
    summary = {"name": info.name, "paused": info.paused, "damaged": info.damaged}
    return summary if stats is None else summary | _numbers(stats)


def _numbers(stats: postroom.QueueStats) -> dict[str, Any]:
    return {
        **{name: getattr(stats, name) for name in (*_DEPTHS, *_TOTALS)},
        "consumers": stats.consumers,
        "oldest_seconds": stats.oldest_age,
        "lateness_p50_seconds": stats.lateness_p50,
        "lateness_p99_seconds": stats.lateness_p99,
        "trouble": stats.trouble,
    }


async def queue(reader: PageReader) -> dict[str, Any]:
    """Return one queue: its depths, who holds messages, why messages failed, and messages."""
    name, state, limit = _name(reader), reader.asked.state(), reader.asked.count()

    async def read(db: postroom.aio.Database) -> tuple[Any, ...]:
        made = db.queue(name)
        found: tuple[Any, ...] = await asyncio.gather(
            made.info(), made.stats(), made.messages(state, limit), made.schedules(),
            made.dead_letters(limit=ROWS_MAX),
        )  # fmt: skip
        return found

    info, stats, messages, schedules, dead = await reader.store.read(read)
    numbers = _numbers(stats)
    reader.history.note(f"queue {name}", {each: numbers[each] for each in _DEPTHS[:4]})
    reasons = Counter(each.last_error or "no reason was given" for each in dead)
    return {
        "name": name,
        "paused": info.paused,
        "created_at": when(info.created_at),
        "settings": {
            each: getattr(info.settings, each) for each in info.settings.__struct_fields__
        },
        "numbers": numbers,
        "longest_held": _held(stats.longest_held),
        "failures": [{"reason": each, "messages": n} for each, n in reasons.most_common()],
        "state": state or "",
        "messages": [_row(each) for each in messages],
        "schedules": [
            {"name": each.name, "cron": each.cron, "timezone": each.timezone, "kind": each.kind}
            for each in schedules
        ],
    }


def _name(reader: PageReader) -> str:
    name = reader.asked.text("queue")
    if not name:
        raise BadRequest("queue is the name of a queue")
    return name


def _held(held: Any) -> dict[str, Any] | None:
    if held is None:
        return None
    return {
        "id": name_of(held.id),
        "kind": held.kind,
        "consumer": held.consumer,
        "since": when(held.since),
        "seconds": held.seconds,
    }


def _row(message: postroom.aio.QueueMessage) -> dict[str, Any]:
    return {
        "id": name_of(message.id),
        "kind": message.kind,
        "state": message.state,
        "scheduled": when(message.scheduled),
        "leased_until": when(message.leased_until),
        "attempts": message.epoch,
        "last_error": message.last_error,
    }


async def message(reader: PageReader) -> dict[str, Any]:
    """Return one message of a queue: its life so far, and its payload."""
    name, message_id = _name(reader), reader.asked.raw("id")
    kind = reader.asked.given.get("kind")

    async def read(db: postroom.aio.Database) -> tuple[Any, list[postroom.MessageTrace]]:
        return await asyncio.gather(
            db.queue(name).get(message_id, kind), _traces(db, message_id, name)
        )

    found, traces = await reader.store.read(read)
    if found is None:
        return {"queue": name, "id": name_of(message_id), "message": None}
    return {
        "queue": name,
        "id": name_of(message_id),
        "message": {
            **_row(found),
            "key": name_of(found.key),
            "group": found.group,
            "priority": found.priority,
            "life": next((events_of(each) for each in traces if each.kind == found.kind), []),
            "headers": reader.headers(found.headers),
            "payload": reader.payload(found.payload, found.key),
        },
    }


async def _traces(
    db: postroom.aio.Database, message_id: bytes, queue: str
) -> list[postroom.MessageTrace]:
    """Return the time lines of a message; none, if the visitor has no right to them."""
    try:
        return await db.trace(message_id, queue=queue)
    except AccessDenied:
        return []


async def workers(reader: PageReader) -> dict[str, Any]:
    """Return the messages that consumers hold, queue by queue, and until when, page by page."""
    after = reader.asked.text("after")

    async def read(db: postroom.aio.Database) -> dict[str, Any]:
        every = await db.queues(after=after, limit=QUEUES_SUMMED_MAX)
        infos = [each for each in every if not each.damaged]
        stats = await asyncio.gather(*(db.queue(each.name).stats() for each in infos))
        busy = [each.name for each, numbers in zip(infos, stats, strict=True) if numbers.leased]
        held = await asyncio.gather(*(db.queue(each).messages("leased", ROWS_MAX) for each in busy))
        numbers = {each.name: n for each, n in zip(infos, stats, strict=True)}
        rows = [
            {
                "queue": name,
                "consumers": numbers[name].consumers,
                "leased": numbers[name].leased,
                "longest_held": _held(numbers[name].longest_held),
                "messages": [_row(each) for each in messages],
            }
            for name, messages in zip(busy, held, strict=True)
        ]
        return {"queues": rows, "next": _next(every)}

    return await reader.store.read(read)
