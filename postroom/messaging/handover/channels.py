"""The channels between ranges: each hands over its entries one batch after the other.

::

    outbox of range 1 ─┬─ messages, lane 0 ──▶ range 2, range 3, ...
                       ├─ ...
                       ├─ messages, lane 7 ──▶
                       └─ updates ───────────▶

The messages of a key are always in one lane, so they keep their order. Several lanes let batches
for one range be under way at once. Updates have one lane only: those of a span of keys are in order
with those of its keys.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, NamedTuple

import msgspec

LANES: Final = 8
"""The number of lanes of messages."""


class Channel(NamedTuple):
    """A channel, as its receivers know it.

    Attributes:
        sender: the id of the range whose outbox it empties.
        has_updates: whether it hands over updates, and not messages.
        lane: the lane of messages; 0 for updates.
    """

    sender: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    has_updates: bool
    lane: Annotated[int, msgspec.Meta(ge=0, lt=LANES)]


def lane_of(key: bytes) -> int:
    """Return the lane of the messages for a key; all versions of the program must agree."""
    return zlib.crc32(key) % LANES
