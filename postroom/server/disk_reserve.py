"""The space in reserve on the device: writes are refused before it is full, and the log says so.

::

    free ──────────────────────────────────────────────────────────────────────────────▶ 0
         all writes   │ writes that free room, upkeep │ those that free room │ the same, into memory
                      reserve + working               reserve / 4            full
                                                    + working

*Working* bytes are the room that flushes and compactions of the stored data may need. They are
taken for a time and given back. Writes that free room may use them, too: a flush or a compaction
that finds no room stops nothing, since the state stays in memory then. A leader can refuse in time;
a follower writes the leader's proposals for as long as it can.

Each change is logged once. Free space that goes up and down around the limit counts as one change.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from postroom.errors import Unavailable
from postroom.ranges.admission import RefusedCalls

STEADY_SECONDS: Final = 5.0
"""The time for which free space must stay above the reserve before that is logged."""

UPKEEP_SHARE: Final = 4

_log = logging.getLogger(__name__)


class Space(NamedTuple):
    """The room of a device.

    Attributes:
        free_bytes: the bytes that are free for this process.
        working_bytes: the part of them that the engine may need at most to go on with its data.
        full: why the state cannot be written; empty: it can.
        takes_deletions: whether a full device can still take writes that free room.
    """

    free_bytes: int
    working_bytes: int = 0
    full: str = ""
    takes_deletions: bool = True


class DiskReserve:
    """The reserve on a node's device; see the module.

    Args:
        reserve_bytes: writes are refused when less is free beside the working bytes; 0: they are
            refused only when the device is full.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._is_told = self._is_full_told = False
        self._scarce_at = 0.0

    def _wanted(self, space: Space) -> int:
        return self._reserve_bytes + space.working_bytes if self._reserve_bytes else 0

    def is_near(self, space: Space, near_bytes: int) -> bool:
        """Return whether writes would be refused with ``near_bytes`` less room."""
        return bool(space.full) or space.free_bytes < self._wanted(space) + near_bytes

    def refusal(self, space: Space) -> RefusedCalls | None:
        """Return the writes that are refused and the error for them, or ``None`` for no refusal."""
        free, working, wanted = space.free_bytes, space.working_bytes, self._wanted(space)
        if space.full:
            left = "deletions and acknowledgements" if space.takes_deletions else "nothing"
            return RefusedCalls(
                Unavailable(
                    "the device where the store lies is full: what is stored can be read, and "
                    f"{left} written; nothing was changed: free some space on it, then try again",
                    retry_after=1.0,
                ),
                upkeep=True, deletions=not space.takes_deletions,
                everything=not space.takes_deletions,
            )  # fmt: skip
        if free >= wanted:
            return None
        return RefusedCalls(
            Unavailable(
                f"only {free} bytes are free where the store lies, {wanted} are kept in reserve "
                "(deletions and acknowledgements may use some of it); nothing was changed: free "
                "some space, or delete something and wait until it is collected, then try again",
                retry_after=1.0,
            ),
            upkeep=free < working + self._reserve_bytes // UPKEEP_SHARE,
        )

    def tell(self, space: Space, now: float) -> None:
        """Log that free space has fallen below the reserve, or is above it again."""
        free, wanted = space.free_bytes, self._wanted(space)
        if free < wanted:
            self._scarce_at = now
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "only %d bytes are free where the store lies, %d are kept in reserve: this "
                    "node takes no writes of clients but deletions and acknowledgements, and ends "
                    "if it cannot write what a leader sends; free some space", free, wanted,
                )  # fmt: skip
        elif self._is_told and now - self._scarce_at >= STEADY_SECONDS:
            self._is_told = False
            _log.warning(
                "%d bytes are free again where the store lies, %d are kept in reserve: writes are "
                "accepted", free, wanted,
            )  # fmt: skip

    def tell_full(self, full: str) -> None:
        """Log that the device is full, or has room again."""
        if full and not self._is_full_told:
            _log.error("the device is full, and the store can only be read: %s", full)
        elif not full and self._is_full_told:
            _log.warning("the device has room again: the store is written again")
        self._is_full_told = bool(full)
