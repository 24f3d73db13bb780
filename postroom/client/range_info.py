"""The ranges of a store, as its operator sees them."""

from __future__ import annotations

from typing import NamedTuple

from postroom.client.sender import Sender
from postroom.ranges.listing import ListedRange, ListRanges


class RangeInfo(NamedTuple):
    """A range: the span of keys that one group of replicas contains.

    Attributes:
        id: its id; never used twice.
        start: its first key.
        end: the first key after it; ``None``: it has no bound.
        generation: the number of its changes. Of two ranges that have contained a key, the later
            one has the higher generation.
        size_bytes: the number of bytes of its data on the device, as far as it is known.
        leader: the node that leads it.
        copies: the nodes that have a copy, in order.
        splitting: whether a split of it is being prepared.
    """

    id: int
    start: bytes
    end: bytes | None
    generation: int
    size_bytes: int
    leader: int
    copies: tuple[int, ...]
    splitting: bool


async def list_ranges(sender: Sender, start: bytes, end: bytes | None) -> list[RangeInfo]:
    """Return the ranges that contain a part of ``[start, end)``, in the order of their keys."""
    found: list[ListedRange] = await sender.send(ListRanges(start, end))
    return [
        RangeInfo(
            each.range_id, each.start, each.end, each.generation, each.size_bytes, each.leader,
            each.copies, each.splitting,
        )
        for each in found
    ]  # fmt: skip
