"""The page of the machines: nodes, ranges and leases, disks, services, positions of readers."""

from __future__ import annotations

import asyncio
from typing import Any

import postroom.aio
from postroom.web.limits import ROWS_MAX
from postroom.web.reading import PageReader
from postroom.web.texts import name_of, when


async def cluster(reader: PageReader) -> dict[str, Any]:
    """Return the nodes of the store, and its ranges in the order of their keys."""
    after = reader.asked.raw("after")

    async def read_ranges(db: postroom.aio.Database) -> dict[str, Any]:
        found = await db.ranges(after)
        rows = [
            {
                "id": each.id,
                "start": name_of(each.start),
                "end": None if each.end is None else name_of(each.end),
                "size_bytes": each.size_bytes,
                "leader": each.leader,
                "copies": list(each.copies),
                "splitting": each.splitting,
            }
            for each in found[:ROWS_MAX]
        ]
        more = len(found) > ROWS_MAX
        return {"rows": rows, "next": name_of(found[ROWS_MAX].start) if more else None}

    status, ranges = await asyncio.gather(
        reader.store.known(_status), reader.store.known(read_ranges)
    )
    return {"status": status, "ranges": ranges}


async def _status(db: postroom.aio.Database) -> dict[str, Any]:
    status = await db.status()
    return {
        "path": status.path,
        "node_id": status.node_id,
        "leader": status.leader,
        "term": status.term,
        "applied_index": status.applied_index,
        "disk_bytes": status.disk_bytes,
        "refused": status.refused,
        "storage": dict(status.storage._asdict()),
        "nodes": [dict(each._asdict()) for each in status.nodes],
        "services": [dict(each._asdict()) for each in status.services],
        "positions": [
            {
                "name": each.name,
                "position": when(each.position),
                "behind_seconds": each.behind_seconds,
                "protected_until": when(each.protected_until),
            }
            for each in status.positions
        ],
    }
