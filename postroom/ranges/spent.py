"""Large write sets that nobody needs any more, which are taken apart over turns.

Python frees a dictionary as a whole: of a proposal of some hundred thousand writes, that takes as
long as applying it.
"""

from __future__ import annotations

from itertools import islice

from postroom import limits
from postroom.kv.engine import WriteSet


class Spent:
    """See the module.

    Attributes:
        left: what is to be freed yet.
    """

    def __init__(self) -> None:
        self.left: list[WriteSet] = []

    def add(self, writes: WriteSet) -> None:
        """Nobody needs ``writes`` any more. Small ones are freed by whoever has them."""
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.left.append(writes)

    def go_on(self) -> None:
        """One turn's share."""
        if not self.left:
            return
        writes = self.left[-1]
        for key in list(islice(reversed(writes), limits.COMPLETED_AT_ONCE_MAX)):
            del writes[key]
        if not writes:
            self.left.pop()
