"""The page of rights: who may do what, and what was refused."""

from __future__ import annotations

import asyncio
from typing import Any

import postroom.aio
from postroom.web.limits import ROWS_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when


async def access(reader: PageReader) -> dict[str, Any]:
    """Return the first grants in the order of their names, and the last lines of the audit log."""
    grants, entries = await asyncio.gather(
        reader.store.known(_grants), reader.store.known(_audit_log)
    )
    return {"grants": grants, "audit_log": entries}


async def _grants(db: postroom.aio.Database) -> dict[str, Any]:
    found = await db.access.grants()
    return {
        "count": len(found),
        "rows": [
            {
                "name": each.name,
                "verbs": each.verbs,
                "prefix": None if each.queue else name_of(each.prefix),
                "queue": each.queue or None,
            }
            for each in found[:ROWS_MAX]
        ],
    }


async def _audit_log(db: postroom.aio.Database) -> dict[str, Any]:
    return {
        "rows": [
            {
                "at": when(each.at),
                "by": each.by,
                "action": each.action,
                "what": each.what,
                "times": each.times,
            }
            for each in reversed(await db.access.audit_log(limit=ROWS_MAX))
        ]
    }
