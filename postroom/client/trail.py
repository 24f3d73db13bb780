"""The calls about the trail of a store, which backups make (:mod:`postroom.messaging.trail`)."""

from __future__ import annotations

from postroom.client.commits import repeated
from postroom.client.sender import Sender
from postroom.messaging.trail_requests import KeepTrail, ReadTrail, TrailState


async def read_trail(sender: Sender) -> TrailState:
    """Return the state of the trail."""
    found: TrailState = await sender.send(ReadTrail())
    return found


async def keep_trail(sender: Sender, until: int = 0) -> TrailState:
    """Keep a trail from now on, if none is kept, or it has ended; forget it up to a timestamp.

    Raises:
        Invalid: the store has several ranges.
    """
    return await _change(sender, until, is_kept=True)


async def end_trail(sender: Sender) -> None:
    """End the trail, and forget all of it."""
    await _change(sender, 0, is_kept=False)


async def _change(sender: Sender, until: int, *, is_kept: bool) -> TrailState:
    found = await _step(sender, KeepTrail(is_kept, until))
    while found.cursor is not None:
        found = await _step(sender, KeepTrail(is_kept, until, found.cursor))
    return found


async def _step(sender: Sender, request: KeepTrail) -> TrailState:
    found: TrailState = await repeated(sender, lambda: request)
    return found
