"""Space in reserve on the device: writes are refused before it is full, and the log says so.

A device that fills up in the middle of a write stops the store, so some of it is kept in reserve.
A leader can refuse in time; a follower writes what the leader has proposed for as long as it can.

Each change is logged once. Free space that goes up and down around the limit counts as one change.
"""

from __future__ import annotations

import logging
from typing import Final

from postroom.errors import Unavailable

STEADY_SECONDS: Final = 5.0
"""Free space must stay above the reserve for so long before that is logged."""

_log = logging.getLogger(__name__)


class DiskReserve:
    """See the module.

    Args:
        reserve_bytes: writes are refused when less is free.
    """

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._is_told = False
        self._scarce_at = 0.0

    def refusal(self, free_bytes: int) -> Unavailable | None:
        """What those who want to write are told; ``None``: nothing."""
        if free_bytes >= self._reserve_bytes:
            return None
        return Unavailable(
            f"only {free_bytes} bytes are free where the store lies, {self._reserve_bytes} are "
            "kept in reserve; nothing was changed: free some space, then try again",
            retry_after=1.0,
        )

    def tell(self, free_bytes: int, now: float) -> None:
        """Say in the log when that has changed."""
        if free_bytes < self._reserve_bytes:
            self._scarce_at = now
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "only %d bytes are free where the store lies, %d are kept in reserve: this "
                    "node takes no writes of clients, and ends if it cannot write what a leader "
                    "sends; free some space",
                    free_bytes, self._reserve_bytes,
                )  # fmt: skip
        elif self._is_told and now - self._scarce_at >= STEADY_SECONDS:
            self._is_told = False
            _log.warning(
                "%d bytes are free again where the store lies, %d are kept in reserve: writes are "
                "accepted", free_bytes, self._reserve_bytes,
            )  # fmt: skip
