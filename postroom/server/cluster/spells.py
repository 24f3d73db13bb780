"""What happens again and again, and is to be logged once: when a spell of it begins."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

QUIET_SECONDS: Final = 30.0
"""What has not happened for so long is over."""
KNOWN_MAX: Final = 1000


class Spells:
    """Knows what has happened lately."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._last: dict[Hashable, float] = {}

    def begins(self, what: Hashable, now: float) -> bool:
        """``what`` has happened; whether that is the first time for a while.

        Args:
            what: names it.
            now: seconds that never go back.
        """
        last = self._last.pop(what, None)
        self._last[what] = now
        if len(self._last) > KNOWN_MAX:
            del self._last[next(iter(self._last))]
        return last is None or now - last > QUIET_SECONDS
