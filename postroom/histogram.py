"""A histogram of lengths of time by powers of two, so that counting one costs two additions."""

from __future__ import annotations

from typing import Final

DIGITS: Final = 64
"""The binary digits of the longest time: no timestamp has more."""


class Histogram:
    """A count of lengths of time, in a whole unit that its user chooses.

    Attributes:
        counts: the number of those with so many binary digits: at ``n``, less than ``2**n`` units.
        total: the sum of all of them, in units.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (DIGITS + 1)
        self.total = 0

    def count(self, units: int, times: int = 1) -> None:
        """Count a length of time, which occurred ``times`` times."""
        self.counts[units.bit_length()] += times
        self.total += units * times
