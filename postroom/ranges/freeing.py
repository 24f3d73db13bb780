"""The freeing of large write sets that are needed no more, over several turns.

Python frees a dictionary as a whole: for a proposal of some hundred thousand writes, that takes as
long as applying it.
"""

from __future__ import annotations

from itertools import islice

from postroom import limits
from postroom.kv.engine import WriteSet


class Freeing:
    """The write sets to free.

    Attributes:
        left: the write sets that are not freed yet.
    """

    def __init__(self) -> None:
        self.left: list[WriteSet] = []

    def add(self, writes: WriteSet) -> None:
        """Free ``writes`` later if they are many. Small sets are freed by their owner."""
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.left.append(writes)

    def go_on(self) -> None:
        """Free one turn's share."""
        if not self.left:
            return
        writes = self.left[-1]
        for key in list(islice(reversed(writes), limits.COMPLETED_AT_ONCE_MAX)):
            del writes[key]
        if not writes:
            self.left.pop()
