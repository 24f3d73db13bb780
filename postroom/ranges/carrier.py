"""The port of the way between ranges: their leaseholders talk to each other through it.

::

    range 1 ── carry(recipient, request) ──▶ Carrier ──▶ leaseholder of the recipient
      ◀──────────── answered(answer) ─────────┘

A carrier may lose requests and answers, double them and delay them. A range that asks another one
therefore asks again, and each request between ranges may arrive several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from postroom.ranges.contract import Request


class Recipient(NamedTuple):
    """A range, with the keys that it contains as far as is known."""

    range_id: int
    start: bytes
    end: bytes | None


class Carrier(Protocol):
    """The way to the leaseholders of other ranges, and of the range itself."""

    @property
    def version(self) -> int:
        """Return a number that changes whenever it has learned of other ranges."""

    def recipient_of(self, key: bytes) -> Recipient:
        """Return the range that contains a key."""

    def carry(
        self, recipient: Recipient, request: Request, answered: Callable[[Any], None]
    ) -> None:
        """Carry a request to a range.

        ``answered`` is called with the answer or the error, at most once, perhaps never.
        """
