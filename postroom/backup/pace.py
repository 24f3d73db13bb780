"""The pace of a backup: a limit of bytes in a second, and a share of the store's time.

While others write, a backup sleeps nine times as long as it works. While nobody does, it does not
sleep. Others are seen by the entries of the logs, of which a backup makes none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from postroom.client.sender import Sender

OTHERS_SHARE: Final = 0.9
_LOOK_SECONDS: Final = 0.05
_BUSY_ENTRIES_A_SECOND: Final = 20.0
_SLEEP_SECONDS_LONGEST: Final = 2.0


class Pace:
    """The pace of one backup.

    Args:
        sender: its clock, and its sleep.
        entries: returns the number of entries in the logs.
        rate: the bytes that it reads in a second at most; ``None``: no limit.
    """

    def __init__(
        self, sender: Sender, entries: Callable[[], Awaitable[int]], rate: int | None
    ) -> None:
        self._sender = sender
        self._entries = entries
        self._rate = rate
        self._looked_at = float("-inf")
        self._known = 0
        self._is_busy = False
        self._began = self._resumed = sender.monotonic()
        self._bytes = 0

    async def after(self, read_bytes: int) -> None:
        """Sleep as long as the pace wants after so many bytes were read."""
        now = self._sender.monotonic()
        worked = now - self._resumed
        if now - self._looked_at >= _LOOK_SECONDS:
            await self._look(now)
        pause = worked * OTHERS_SHARE / (1 - OTHERS_SHARE) if self._is_busy else 0.0
        pause = min(pause, _SLEEP_SECONDS_LONGEST)
        self._bytes += read_bytes
        if self._rate is not None:
            pause = max(pause, self._began + self._bytes / self._rate - now)
        if pause > 0:
            await self._sender.sleep(pause)
        self._resumed = self._sender.monotonic()

    async def _look(self, now: float) -> None:
        entries = await self._entries()
        if self._looked_at >= 0:
            rate = (entries - self._known) / (now - self._looked_at)
            self._is_busy = rate >= _BUSY_ENTRIES_A_SECOND
        self._looked_at, self._known = now, entries
