"""The service of a leaseholder for transactions over several ranges.

::

    coordinator   runs commits whose anchors lie in the range
    resolver      tells other ranges how they have ended
    pusher        asks other ranges how those have ended that are prepared here

The three decide, step by step; this module lets them go on when something has happened, or when it
is time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from postroom.kv.engine import Reader
from postroom.ranges.calls import Call
from postroom.ranges.carrier import Carrier
from postroom.ranges.ports import ServiceWakeUp
from postroom.ranges.replica import Replica
from postroom.ranges.transactions.coordinator import Coordinator
from postroom.ranges.transactions.intents import Intent
from postroom.ranges.transactions.push import Pusher
from postroom.ranges.transactions.requests import Resolve
from postroom.ranges.transactions.resolver import Resolver


class _Ending(Call):
    """A request that ends an intent of the own range."""

    __slots__ = ("_ended",)

    def __init__(self, request: Resolve, ended: Callable[[BaseException | None], None]) -> None:
        super().__init__(request)
        self._ended = ended

    def complete(self, result: Any, error: BaseException | None) -> None:
        del result
        self._ended(error)


class TransactionService:
    """The service of one range; see the module. It implements ``SpanningTransactions``.

    Args:
        replica: the replica of the range.
        carrier: the way to other ranges.
        monotonic: a function that returns seconds that never go back.
        wake_up: the wake-up for which it waits.
    """

    def __init__(
        self,
        replica: Replica,
        carrier: Carrier,
        monotonic: Callable[[], float],
        wake_up: ServiceWakeUp,
    ) -> None:
        self._replica = replica
        self._wake_up = wake_up
        self._is_awake = False
        wake = self._wake
        self.resolver = Resolver(
            replica.range_id, replica.bounds, carrier, monotonic, wake, replica.submit
        )
        self.resolver.hurries = replica.intents.closed.__bool__
        self.coordinator = Coordinator(
            replica, carrier, monotonic, wake, self.resolver.tell, self.resolver.died
        )
        self.resolver.carried_out = self.coordinator.carried_out
        self.pusher = Pusher(
            replica.intents, carrier, monotonic, wake, self._end, replica.refuse_commit
        )
        replica.intents.on_met = wake
        replica.pushes.coordinator = self.coordinator
        self.takes = self.coordinator.takes
        replica.span(self)

    def begin_lease(self, stored: Reader) -> None:
        """Begin afresh from what is stored, under a new lease."""
        self._is_awake = False
        self.coordinator.restart()
        self.pusher.restart()
        self.resolver.restart(stored)

    def end_lease(self) -> None:
        """End all runs: this replica serves no longer."""
        self._is_awake = False
        self.coordinator.end()
        self.pusher.restart()
        self.resolver.end()

    def is_committing(self) -> bool:
        """Return whether a commit is under way that is not decided."""
        return any(not run.is_decided for run in self.coordinator.runs.values())

    def step(self) -> float:
        """Do what there is to do; return in how many seconds there is more at the latest."""
        self._is_awake = False
        pause = min(self.coordinator.step(), self.pusher.step(), self.resolver.step())
        self._replica.protections.of_node.look_again(self._replica.reading())
        return pause

    async def run(self) -> None:
        """Take steps for ever."""
        while True:
            await self._wake_up.wait(self.step())

    def _wake(self) -> None:
        """Have a step taken soon; a store that rests takes none until it begins to work."""
        if not self._is_awake:  # else it was woken, and has taken no step since
            self._is_awake = True
            self._replica.rouse()
            self._wake_up.set(urgent=True)

    def _end(self, intent: Intent, timestamp: int) -> None:
        """End an intent of this range: committed at a timestamp, or dead (0)."""
        bounds = self._replica.bounds
        request = Resolve(intent.transaction_id, intent.ballot, timestamp, bounds.start, bounds.end)
        self._replica.submit(_Ending(request, partial(self.pusher.ended, intent)))
