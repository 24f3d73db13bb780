"""The ports of a replica: the parts of the program that it asks or tells, and does not know.

::

    node ◀── Host ── replica ──┬── Companion ──▶ what goes along with its proposals
                               └── MemoryKeeper ─────▶ what is kept in memory along with its lease

A range does not know messaging. Messaging takes part in each proposal as its companion, and keeps
claims and queues in memory as its keeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from postroom.kv.engine import BlockDamaged, Reader, WriteSet
from postroom.ranges.evaluation import Evaluation


class Host(Protocol):
    """The node, as its replicas see it.

    Attributes:
        lease_seconds: the length of a lease, for which another node has to wait.
        values_bytes: the size of a replica's cache of values.
    """

    lease_seconds: float
    values_bytes: int

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def may_rest(self) -> bool:
        """Return whether a replica that is alone may only read, and write nothing yet."""

    def on_serving(self, serves: bool) -> None:
        """Hear that the replica has begun to serve under a new lease, or will not serve again."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""

    def on_damage(self, error: BlockDamaged) -> bool:
        """Note that data is unreadable; return whether another node is to serve instead."""


class Rider(Protocol):
    """The addition to any proposal that is made, whatever its requests are.

    Attributes:
        is_wanted: whether there may be something to add. A proposal whose requests have left notes
            is looked at in any case.
    """

    is_wanted: bool

    def has_to_fire(self, ctx: Evaluation) -> bool:
        """Return whether ``fire`` has something to do."""

    def fire(self, ctx: Evaluation) -> None:
        """Add writes to a proposal. A failure leaves no trace in it."""


class Companion(Protocol):
    """The part of a proposal that is not the requests' own.

    Attributes:
        rider: the addition to any proposal that is made.
    """

    rider: Rider

    def deliver_sent(self, ctx: Evaluation) -> Iterator[None] | None:
        """Deliver the messages that the requests have sent.

        Returns:
            A generator that goes on over turns, if a turn has no room for all; or ``None``.
        """

    def execute_deferred(self, ctx: Evaluation) -> Iterator[None] | None:
        """Carry out the updates that the requests have deferred; returns as ``deliver_sent``."""

    def sum_up(self, ctx: Evaluation) -> None:
        """Stage the records that sum up the tally and the notes of a proposal."""

    def hear(self, written: WriteSet) -> None:
        """Hear what is applied, before any call is answered. Calls stand in line."""


class MemoryKeeper(Protocol):
    """The owner of what a leaseholder keeps in memory beside the range's own locks."""

    def begin_lease(self, stored: Reader) -> None:
        """Begin afresh from what is stored, under a new lease."""

    def end_lease(self) -> None:
        """Forget all that is kept for clients: this replica serves no longer."""

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what a transaction holds, and return the tokens that may be free."""

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Hear that a transaction ended without a word, before it is released."""

    def client_gone(self, client: bytes) -> None:
        """Hear that a client (the first bytes of its transactions' ids) has gone."""

    def holds_for(self, client: bytes) -> bool:
        """Return whether something else is held for a client than by its transactions."""

    def clients_that_hold(self) -> Iterable[bytes]:
        """Return the clients that hold something by what is stored."""

    def given_up(self, request: object) -> None:
        """Hear that a request which had to wait is waited for no more."""


__all__ = ["Companion", "Host", "MemoryKeeper", "Rider"]
