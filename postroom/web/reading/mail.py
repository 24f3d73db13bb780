"""Pages of inboxes: keys with messages, one inbox, dead letters, and what waits for its time."""

from __future__ import annotations

from typing import Any

import postroom
import postroom.aio
from postroom.web.limits import CHOSEN_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when


async def inboxes(reader: PageReader) -> dict[str, Any]:
    """Return keys with waiting messages, in the order of the keys, page by page."""
    asked = reader.asked
    prefix, after, limit = asked.raw("prefix"), asked.raw("after"), asked.count()
    first, end = postroom.prefix(prefix) if prefix else (b"", None)
    start = max(first, after + b"\x00" if after else b"")

    async def read(db: postroom.aio.Database) -> list[postroom.InboxInfo]:
        return await db.inboxes(start, end, limit=limit, by_key=True)

    found = await reader.store.read(read)
    return {
        "prefix": name_of(prefix),
        "inboxes": [
            {
                "key": name_of(each.key),
                "messages": each.messages,
                "oldest": when(each.oldest),
                "held_up": each.held_up,
            }
            for each in found
        ],
        "next": name_of(found[-1].key) if len(found) == limit else None,
    }


async def inbox(reader: PageReader) -> dict[str, Any]:
    """Return the oldest messages of one inbox, without consuming any."""
    key, limit = reader.asked.raw("key"), reader.asked.count()

    async def read(db: postroom.aio.Database) -> list[postroom.Message]:
        return await db.peek(key, limit)

    return {
        "key": name_of(key),
        "messages": [
            {
                "id": str(each.id),
                "sent_at": when(each.sent_at),
                "delivered_at": when(each.delivered_at),
                "attempts": each.attempts,
                "last_error": each.last_error,
                "headers": reader.headers(each.headers),
                "payload": reader.payload(each.value, key),
            }
            for each in await reader.store.read(read)
        ],
    }


async def dead_letters(reader: PageReader) -> dict[str, Any]:
    """Return dead letters whose reason or key contains a text, the oldest first."""
    wanted = reader.asked.text("filter")

    async def read(db: postroom.aio.Database) -> list[postroom.DeadLetter]:
        return await db.dead_letters(limit=CHOSEN_MAX)

    found = [_letter(reader, each) for each in await reader.store.read(read)]
    matching = [each for each in found if wanted in each["reason"] or wanted in each["key"]["text"]]
    return {
        "filter": wanted,
        "looked_at": len(found),
        "is_all": len(found) < CHOSEN_MAX,
        "letters": matching,
    }


def _letter(reader: PageReader, letter: postroom.DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "key": name_of(letter.key or getattr(letter.request, "key", b"")),
        "source_key": name_of(letter.source_key),
        "transaction": letter.transaction_id.hex(),
        "attempts": letter.attempts,
        **_content(reader, letter),
    }


def _content(reader: PageReader, entry: postroom.DeadLetter | postroom.Scheduled) -> dict[str, Any]:
    """Return what a message or an update consists of."""
    if entry.request is not None:
        update = type(entry.request).__name__
        return {"deferred": update, "headers": {}, "payload": None}
    return {
        "deferred": None,
        "headers": reader.headers(entry.headers),
        "payload": reader.payload(entry.message, entry.key),
    }


async def scheduled(reader: PageReader) -> dict[str, Any]:
    """Return messages and updates of inboxes that wait for their time, the first due first."""
    limit = reader.asked.count()

    async def read(db: postroom.aio.Database) -> list[postroom.Scheduled]:
        return await db.scheduled(limit=limit)

    return {
        "scheduled": [
            {
                "id": each.id,
                "due": when(each.due),
                "key": name_of(each.key or getattr(each.request, "key", b"")),
                "source_key": name_of(each.source_key),
                "attempts": each.attempts,
                "last_error": each.last_error,
                **_content(reader, each),
            }
            for each in await reader.store.read(read)
        ]
    }
