"""The updates that wait to be carried out, in a store with any number of ranges, at one timestamp.

::

    outbox of range 1: updates that wait, and those on their way to others ─┐ without those
    marks of all ranges: the updates that they have taken from others ──────┴─ that were taken ─▶

A range drops an update some time after another one has taken it. Without the marks it would be
found twice, or after it was carried out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.kv import keys
from postroom.messaging.handover.transit import StoreMarks, Transit
from postroom.messaging.requests import Executable
from postroom.ranges.listing import RangeInfo

if TYPE_CHECKING:
    from postroom.client.bulk import Bulk

_UPDATES: Final = keys.RANGE + keys.EXECUTABLE
_BEHIND_UPDATES: Final = keys.after_prefix(_UPDATES)
_decode: Final = msgspec.msgpack.Decoder(Executable).decode


async def waiting_updates(
    bulk: Bulk, ranges: Sequence[RangeInfo], at: int
) -> AsyncGenerator[Any, None]:
    """Yield the requests of the updates that wait, those of a range in the order of their places.

    Args:
        bulk: the tables of the store.
        ranges: all ranges.
        at: a timestamp that is protected as a whole.
    """
    taken = StoreMarks()
    for each in ranges:
        async for page in bulk.records("marks", each.start, at=at):
            taken.add(page)
    for each in ranges:
        transit = Transit(each.id, taken)
        async with aclosing(bulk.records("range_image", each.start, at=at)) as pages:
            async for page in pages:
                if not page:
                    continue
                names, stored = zip(*page, strict=True)
                for name, value in zip(*transit.of((names, stored)), strict=True):
                    if name.startswith(_UPDATES):
                        yield _decode(value or b"").request
                if names[-1] >= _BEHIND_UPDATES:
                    break
