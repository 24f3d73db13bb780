"""The page of the time line of a message, as far as the store still knows it."""

from __future__ import annotations

from typing import Any

import postroom
import postroom.aio
from postroom.web.asked import BadRequest
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when


async def trace(reader: PageReader) -> dict[str, Any]:
    """Return the time lines of the messages with an id, of inboxes and of queues."""
    message_id, key = reader.asked.text("id"), reader.asked.raw("key") or None
    if not message_id:
        raise BadRequest("id is the id of a message, of something scheduled, or of a dead letter")

    async def read(db: postroom.aio.Database) -> list[postroom.MessageTrace]:
        return await db.trace(message_id, key=key)

    return {
        "id": message_id,
        "traces": [
            {
                "state": each.state,
                "key": name_of(each.key) if each.key else None,
                "queue": each.queue or None,
                "kind": each.kind,
                "events": events_of(each),
                "unknown": list(each.unknown),
            }
            for each in await reader.store.read(read)
        ],
    }


def events_of(found: postroom.MessageTrace) -> list[dict[str, Any]]:
    """Return what has happened to a message, in the order of time."""
    return [
        {
            "at": when(each.at),
            "what": each.what,
            "transaction": each.transaction_id.hex(),
            "detail": each.detail,
        }
        for each in found.events
    ]
