"""The port from the manager of a queue to the queues of its range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from postroom.messaging.queues.consumers import Waiter
from postroom.messaging.queues.damage import QueueDamaged
from postroom.messaging.queues.leases import CreditWaits

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager


class QueueHost(Protocol):
    """The clocks of a range, and the calls that a manager makes to the queues of its range.

    Attributes:
        kept: how long the past can be read, in timestamp units.
        credit: the consumers that wait for credit.
    """

    kept: int
    credit: CreditWaits

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def reading(self) -> int:
        """Return about now, as a timestamp."""

    def by_wall(self) -> int:
        """Return about now by the trusted wall clock, as a timestamp."""

    def look_at(self, manager: Manager) -> None:
        """Look at a queue with the next proposal: its waiting claims may be served."""

    def wake_by(self, manager: Manager, moment: float) -> None:
        """Wake the service at that moment of the monotonic clock for a queue."""

    def poll(self, manager: Manager) -> None:
        """Poll the stored state of a queue with waiting claims, if it is time."""

    def plan(self, manager: Manager) -> None:
        """Plan anew when something is due in a queue, since its memory has changed."""

    def holds(self, manager: Manager, client: bytes) -> None:
        """Note that a client's consumers began or ceased to hold messages of a queue."""

    def answer(self, waiter: Waiter) -> None:
        """Answer a claim that waits."""

    def set_aside(self, error: QueueDamaged) -> None:
        """Set aside the queue of an error, which is damaged."""

    def current(self, manager: Manager) -> Manager:
        """Return the manager that its queue has now."""
