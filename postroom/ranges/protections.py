"""What garbage collection must not pass: the timestamps of open snapshots and scans.

A timestamp may be protected *as a whole*: then there is a snapshot of the engine as it was then,
taken between two proposals. It is for what has no versions: outboxes, dead letters, sums. Like
protections it is in the leaseholder's memory and gone with the lease; unlike them it cannot be
asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.engine import EngineSnapshot, Reader
from postroom.limits import ENGINE_SNAPSHOTS_MAX


class Protections:
    """Timestamps in use, counted, and how far collection has come.

    Args:
        snapshot: takes one of the engine; ``None``: nothing is protected as a whole.

    Attributes:
        collected: versions overwritten before this timestamp may be gone.
    """

    def __init__(self, snapshot: Callable[[], EngineSnapshot] | None = None) -> None:
        self._snapshot = snapshot
        self._counts: Counter[int] = Counter()
        self._whole: dict[int, EngineSnapshot] = {}
        self.collected = 0

    def __len__(self) -> int:
        return self._counts.total()

    @property
    def whole(self) -> int:
        """How many are protected as a whole."""
        return len(self._whole)

    def add(self, timestamp: int) -> None:
        """Protects ``timestamp`` once more."""
        self._counts[timestamp] += 1

    def add_whole(self, timestamp: int) -> None:
        """Protects ``timestamp``, which is now, as a whole.

        Raises:
            Unavailable: there are too many.
        """
        if self._snapshot is None:
            raise Invalid("nothing can be protected as a whole here")
        if timestamp not in self._whole:
            if len(self._whole) >= ENGINE_SNAPSHOTS_MAX:
                raise Unavailable(
                    f"{ENGINE_SNAPSHOTS_MAX} timestamps are protected as a whole already, which is "
                    "as many as a range keeps; nothing was protected: wait until one of them is "
                    "given back"
                )
            self._whole[timestamp] = self._snapshot()
        self.add(timestamp)

    def reader(self, now: Reader, timestamp: int) -> Reader:
        """What was stored at ``timestamp``, whether it has versions or not; 0: what is ``now``.

        Raises:
            SnapshotTooOld: it is not protected as a whole, or not any more.
        """
        if not timestamp:
            return now
        found = self._whole.get(timestamp)
        if found is None:
            raise SnapshotTooOld(
                f"outboxes, dead letters and sums have no versions, and {timestamp} is not "
                "protected as a whole, or was so under another leader: take a new timestamp "
                "with hold(whole=True), and read again"
            )
        return found

    def remove(self, timestamp: int) -> None:
        """Takes one protection back. Unknown ones are ignored: a new leaseholder knows none."""
        if self._counts[timestamp] > 1:
            self._counts[timestamp] -= 1
            return
        del self._counts[timestamp]
        whole = self._whole.pop(timestamp, None)
        if whole is not None:
            whole.close()

    def clear(self) -> None:
        """Forget all protections: whoever still needs one asks the new leaseholder for it."""
        self._counts.clear()
        while self._whole:
            self._whole.popitem()[1].close()

    def limit(self, threshold: int) -> int:
        """``threshold``, or the oldest protected timestamp if that is older."""
        return min(threshold, *self._counts) if self._counts else threshold
