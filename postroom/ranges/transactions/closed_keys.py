"""The keys for which a range prepares no transaction, because a split waits for those prepared.

::

    Split ─▶ transactions concern the right half ─▶ closed ─▶ they end ─▶ Split ─▶ open
                                                      │
                       no further one is prepared there, or begins to commit there

A split therefore waits for what was prepared before it, and does not starve. A transaction that is
refused has changed nothing, and its client sends it again. A split that waits for something else
does not keep keys closed for ever: after a time they are open for as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from postroom.ranges.contract import KeySet

CLOSED_SECONDS: Final = 4.0
"""The time for which keys stay closed. Whatever is prepared ends before that, or is found dead."""


class ClosedKeys:
    """The closed keys of one range; see the module.

    Args:
        monotonic: a function that returns seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._from: bytes | None = None
        self._since = -math.inf

    def __bool__(self) -> bool:
        """Return whether any key is closed."""
        return self._from is not None and self._monotonic() - self._since < CLOSED_SECONDS

    def close(self, key: bytes) -> None:
        """Close the keys from ``key`` on, unless they were closed and are just open again."""
        now = self._monotonic()
        if self._from != key or now - self._since >= 2 * CLOSED_SECONDS:
            self._from, self._since = key, now

    def open(self) -> None:
        """Open all keys."""
        self._from = None

    def contain(self, concern: KeySet) -> bool:
        """Return whether any of some keys and spans is closed."""
        first = self._from
        if first is None or not self:
            return False
        return any(key >= first for key in concern.keys) or any(
            end is None or end > first for _, end in concern.spans
        )
