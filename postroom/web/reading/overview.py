"""The first page: whether no message is lost, how many wait, how fast they go, what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import postroom
import postroom.aio
from postroom.web.limits import QUEUES_SUMMED_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import when

STORE = "store"
"""The name of the store's own chart."""

SILENT_SECONDS: Final = 10.0
"""A node that is silent for longer is in trouble."""

_CHARTED: Final = ("enqueued", "delivered", "executed", "dead")


async def overview(reader: PageReader) -> dict[str, Any]:
    """Return the state of the store, and the sums over its queues."""
    store = reader.store
    status, queues, ranges = await asyncio.gather(
        store.known(_status), store.known(_queues), store.known(_ranges)
    )
    sums = status.get("conservation")
    if sums is not None:
        reader.history.note(STORE, {name: sums[name] for name in _CHARTED})
        status["rates"] = reader.history.rates(STORE)
    return {"status": status, "queues": queues, "ranges": ranges}


async def chart(reader: PageReader) -> dict[str, Any]:
    """Return the points of a chart: of a queue, or of the store."""
    queue = reader.asked.text("queue")
    return reader.history.series(f"queue {queue}" if queue else STORE)


async def _status(db: postroom.aio.Database) -> dict[str, Any]:
    status = await db.status()
    counters = status.counters
    return {
        "path": status.path,
        "node_id": status.node_id,
        "leader": status.leader,
        "term": status.term,
        "timestamp": when(status.timestamp),
        "disk_bytes": status.disk_bytes,
        "refused": status.refused,
        "conservation": {
            "enqueued": counters.enqueued,
            "received": counters.received,
            "delivered": counters.delivered,
            "executed": counters.executed,
            "pending": counters.pending,
            "dead": counters.dead,
            "handed": counters.handed,
            "holds": counters.conserved(),
        },
        "dead_letters": status.dead_letters,
        "reaped": status.reaped,
        "troubles": troubles(status),
    }


def troubles(status: postroom.Status) -> list[str]:
    """Return what is wrong with the store, in sentences."""
    found = [f"Writes are refused: {status.refused}."] if status.refused else []
    if status.nodes and status.leader is None:
        found.append("No node leads, as far as the answering node knows.")
    if not status.counters.conserved():
        found.append("The numbers of messages do not add up.")
    found += [
        f"Node {each.node_id} has been silent for {each.silent_seconds:.0f} s."
        for each in status.nodes
        if not each.retired
        and each.silent_seconds is not None
        and each.silent_seconds > SILENT_SECONDS
    ]
    found += [f"{each.name}: {each.trouble}" for each in status.services if each.trouble]
    return found


async def _queues(db: postroom.aio.Database) -> dict[str, Any]:
    infos = await db.queues(limit=QUEUES_SUMMED_MAX + 1)
    has_more, infos = len(infos) > QUEUES_SUMMED_MAX, infos[:QUEUES_SUMMED_MAX]
    sound = [each for each in infos if not each.damaged]
    stats = await asyncio.gather(*(db.queue(each.name).stats() for each in sound))
    return {
        "count": len(infos),
        "has_more": has_more,
        "damaged": [each.name for each in infos if each.damaged],
        "paused": [each.name for each in infos if each.paused],
        **{
            name: sum(getattr(each, name) for each in stats)
            for name in ("ready", "scheduled", "leased", "dead", "consumers")
        },
        "oldest_seconds": max((each.oldest_age or 0.0 for each in stats), default=0.0),
    }


async def _ranges(db: postroom.aio.Database) -> dict[str, Any]:
    found = await db.ranges()
    led: dict[str, int] = {}
    for each in found:
        led[str(each.leader)] = led.get(str(each.leader), 0) + 1
    return {"count": len(found), "size_bytes": sum(each.size_bytes for each in found), "led": led}
