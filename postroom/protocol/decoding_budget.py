"""The memory that requests may take while they are decoded.

A request takes several times its own bytes at most: a short one cannot become a large one. The
memory of all of them together is reserved before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom import limits
from postroom.errors import ValueTooLarge
from postroom.protocol.failures import Failure, failure_from


class BudgetExceeded(Exception):
    """The finding that a request takes more memory than there is for it.

    Attributes:
        failure: the failure that its client is told.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure[1])
        self.failure = failure


class DecodingBudget:
    """The memory for one request at a time, while it is decoded.

    Args:
        reserve: reserves so many bytes more; answers why they are not available, or ``None``.

    Attributes:
        taken: the bytes reserved for the request.
    """

    __slots__ = ("_bytes_max", "_reserve", "taken")

    def __init__(self, reserve: Callable[[int], Failure | None]) -> None:
        self._reserve = reserve
        self._bytes_max = self.taken = 0

    def begin(self, packed_bytes: int) -> None:
        """Begin another request of ``packed_bytes`` bytes.

        The owner of the last request counts the bytes that it has taken.
        """
        self.taken = 0
        self._bytes_max = min(
            max(limits.DECODED_TIMES_MAX * packed_bytes, limits.DECODED_BYTES_MIN),
            limits.DECODED_BYTES_MAX,
        )

    def check(self, size: int) -> None:
        """Check whether so much more may be decoded.

        Raises:
            NoRoom: this request may not take that much.
        """
        if self.taken + size > self._bytes_max:
            raise BudgetExceeded(failure_from(ValueTooLarge(
                f"the request is too large: it takes more than {self._bytes_max} bytes of memory; "
                "nothing was done: ask for less at a time"
            )))  # fmt: skip

    def take(self, size: int) -> None:
        """Take so much more memory.

        Raises:
            NoRoom: this request may not take that much, or not now.
        """
        self.check(size)
        failure = self._reserve(size)
        if failure is not None:
            raise BudgetExceeded(failure)
        self.taken += size
