"""The limits of decoding: the memory that requests take, and the bytes that are read at a time.

:mod:`.incremental_decoder` decodes within them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from itertools import repeat, starmap
from typing import Final

import msgpack

from postroom import limits
from postroom.errors import ValueTooLarge
from postroom.protocol.failures import Failure, WireError, failure_from


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

    A request takes several times its own bytes at most: a short one cannot become a large one. The
    memory of all of them together is reserved before it is taken.

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


ARRAYS: Final = (range(0x90, 0xA0), 0xDC, 0xDD)
MAPS: Final = (range(0x80, 0x90), 0xDE, 0xDF)
"""The first bytes of arrays and maps."""


class PackedWalk:
    """A walk over MessagePack item by item, which stops for a moment after each stretch.

    Args:
        packed: the bytes that are gone over.
    """

    __slots__ = ("_fed", "_left_at", "_skip", "_unpacker", "packed")

    def __init__(self, packed: memoryview) -> None:
        self.packed = packed
        self._unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
        self._skip = self._unpacker.skip
        self._fed = 0
        self._left_at = 0

    @property
    def at(self) -> int:
        """Return where the next item begins, if the last one has been gone over."""
        at: int = self._unpacker.tell()
        return at

    def next_is(self, *kinds: range | int) -> bool:
        """Return whether the next item begins with one of these bytes."""
        first = self.packed[self.at : self.at + 1]
        return bool(first) and any(
            first[0] in kind if isinstance(kind, range) else first[0] == kind for kind in kinds
        )

    def array(self) -> Generator[None, None, int]:
        """Go over the header of an array, and return its length."""
        while True:
            try:
                length: int = self._unpacker.read_array_header()
            except msgpack.OutOfData:
                yield from self._feed()
            else:
                return length

    def skip(self, count: int) -> Generator[None, None, tuple[int, int]]:
        """Go over ``count`` items, and return where they began and where they end."""
        begin = self.at
        skips = starmap(self._skip, repeat((), count))
        while True:
            try:
                deque(skips, maxlen=0)
            except msgpack.OutOfData:
                yield from self._feed()
                yield from self._finish()
            else:
                return begin, self.at

    def _finish(self) -> Generator[None, None, None]:
        """Go on with an item that was there in part."""
        while True:
            try:
                self._skip()
            except msgpack.OutOfData:
                yield from self._feed()
            else:
                return

    def _feed(self) -> Generator[None, None, None]:
        """Feed the next stretch, since the fed bytes have been gone over.

        The body of a long value has not: it is passed at once as soon as all of it is there.
        """
        if self._fed >= len(self.packed):
            raise WireError("not a frame of this protocol: it ends early")
        if self.at != self._left_at:
            yield
        self._left_at = self.at
        end = self._fed + limits.FRAME_STRETCH_BYTES
        self._unpacker.feed(self.packed[self._fed : end])
        self._fed = end
