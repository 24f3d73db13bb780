"""The history of a store with several ranges, whose clocks go their own ways.

Timestamps of different ranges say nothing about what came first, and two commits may have one. All
else is as :mod:`.history` has it: what a commit did is there, whole, in whatever ranges; a read
returned what the versions say for its timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from postroom.kv import keys
from postroom.messaging.requests import ReapMessages
from tests.sim.checkers import Content
from tests.sim.history import Attempt, History


@dataclass
class RangesHistory(History):
    """The history of what clients of several ranges asked and were told.

    Attributes:
        ranges_max: the highest id of a range, once all is over.
    """

    ranges_max: int = 1
    _reaped: Counter[bytes] = field(default_factory=Counter)

    def _check_moment(self, attempt: Attempt) -> None:
        """Check nothing: other ranges have other clocks."""

    def _check_alone(self, timestamp: int, id_: bytes) -> None:
        """Check nothing: transactions of other ranges may have the timestamp."""

    def _settle_commit(self, attempt: Attempt) -> None:
        super()._settle_commit(attempt)
        for write in attempt.request.writes:
            if isinstance(write, ReapMessages):
                self._reaped[write.key] = max(self._reaped[write.key], attempt.timestamp)

    def _settled_for(self, key: bytes) -> int:
        return self._reaped[key]

    def _message_ids(self, content: Content, stamp: bytes, ordinal: int) -> Iterable[bytes]:
        last = ordinal.to_bytes(4, "big")
        return (stamp + keys.u64(sender) + last for sender in range(1, self.ranges_max + 1))
