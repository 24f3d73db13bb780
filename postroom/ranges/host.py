"""What a replica asks of the node that it is on."""

from __future__ import annotations

from typing import Protocol

from postroom.kv.engine import BlockDamaged


class Host(Protocol):
    """The node, as its replicas see it.

    Attributes:
        lease_seconds: how long a lease lasts, which is how long another node waits for it.
        values_bytes: how much a replica keeps in memory of what it has read and written.
    """

    lease_seconds: float
    values_bytes: int

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def may_rest(self) -> bool:
        """Whether a replica that is alone may only read, and write nothing before it must."""

    def on_serving(self, serves: bool) -> None:
        """The replica has begun to serve under a new lease, or will not serve under this one."""

    def wake(self, *, urgent: bool) -> None:
        """A turn is wanted: now, or within a moment."""

    def on_damage(self, error: BlockDamaged) -> bool:
        """Some of the data cannot be read; whether another node is to serve instead."""


__all__ = ["Host"]
