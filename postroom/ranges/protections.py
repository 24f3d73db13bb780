"""What garbage collection must not pass: the timestamps of open snapshots and scans."""

from __future__ import annotations

from collections import Counter


class Protections:
    """Timestamps in use, counted, and how far collection has come.

    Attributes:
        collected: versions overwritten before this timestamp may be gone.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.collected = 0

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, timestamp: int) -> None:
        """Protects ``timestamp`` once more."""
        self._counts[timestamp] += 1

    def remove(self, timestamp: int) -> None:
        """Takes one protection back. Unknown ones are ignored: a new leaseholder knows none."""
        if self._counts[timestamp] <= 1:
            del self._counts[timestamp]
        else:
            self._counts[timestamp] -= 1

    def clear(self) -> None:
        """Forget all protections: whoever still needs one asks the new leaseholder for it."""
        self._counts.clear()

    def limit(self, threshold: int) -> int:
        """``threshold``, or the oldest protected timestamp if that is older."""
        return min(threshold, *self._counts) if self._counts else threshold
