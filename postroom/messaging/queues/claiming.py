"""Claims on the queues of a range: who waits, is answered, gives up, or has gone.

::

    claim ─▶ waits ─▶ a proposal leases something to it ─▶ answered
      │        └─ nobody waits any more ─▶ what it got goes back, uncounted
      └─ sent again, as its answer was lost ─▶ what it holds
    its transaction has ended, its client has gone ─▶ its attempts have failed

What goes back is noted with the manager; it goes with the next ``AdvanceQueues``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.advance import CONSUMER_HAS_GONE, TRANSACTION_HAS_ENDED
from postroom.messaging.queues.consumers import Waiter
from postroom.messaging.queues.leases import Lease
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import leased_message
from postroom.messaging.queues.requests import Claimed, ClaimQueue, QueueMessage
from postroom.messaging.queues.surroundings import Surroundings
from postroom.ranges.evaluation import MustWait, View
from postroom.ranges.registry import Registry
from postroom.ranges.requests import CLIENT_ID_BYTES


class Claiming:
    """See the module.

    Args:
        by_name: the managers of the queues there are.
        known: the queue of a name, or ``Invalid``.
        around: clocks, and whom to wake.
    """

    def __init__(
        self,
        by_name: Mapping[str, Manager],
        known: Callable[[str], Manager],
        around: Surroundings,
    ) -> None:
        self._by_name = by_name
        self._known = known
        self._around = around
        self._claiming: dict[bytes, dict[Manager, None]] = {}  # in an order that repeats

    def register(self, registry: Registry) -> None:
        """Adds it to ``registry``."""
        registry.reads[ClaimQueue] = self.claim
        registry.locking.add(ClaimQueue)
        registry.on_release.append(self.release)
        registry.on_given_up.append(self.given_up)
        registry.on_client_gone.append(self.client_gone)
        registry.holds.append(self.holds_for)
        registry.holders.append(self.holders)
        registry.sizes |= {
            "queue waits": lambda: sum(len(each.consumers) for each in self._by_name.values()),
            "queue claims": lambda: len(self._claiming),
        }

    def clear(self) -> None:
        """Nobody waits here any more."""
        self._claiming.clear()
        self._around.refusals.clear()

    # --- under a new lease

    def remember_transactions(self, manager: Manager) -> None:
        """What was claimed in transactions under another leader ends with them all the same."""
        for transaction_id in manager.leases.transactions:
            self._around.hold(transaction_id, TRANSACTION_SECONDS_MAX)
            self._claiming.setdefault(transaction_id, {})[manager] = None

    def forget_strangers(self, manager: Manager) -> None:
        """What was held by who cannot be there any more goes back."""
        for lease in manager.leases.all():
            client = lease.consumer[:CLIENT_ID_BYTES]
            if not self._around.may_be_there(client):
                attempt = (lease.entry.locator, lease.entry.epoch)
                manager.to_give_back[attempt] = CONSUMER_HAS_GONE

    # --- who waits

    def claim(self, view: View, request: ClaimQueue) -> Claimed:
        """``ClaimQueue``: waits until a proposal has leased something to it.

        Raises:
            Invalid: there is no such queue, or it was dropped.
        """
        manager = self._by_name.get(request.queue)
        waiter = None if manager is None else manager.consumers.of(request)
        if waiter is not None:
            if not waiter.granted:
                raise MustWait(waiter)
            assert manager is not None
            manager.consumers.remove(waiter)
            return Claimed(waiter.messages)
        refusal = self._around.refusals.pop(id(request), None)
        if refusal is not None:
            raise refusal
        manager = self._known(request.queue)
        if request.again:
            held = self._held_by(view, manager, request)
            if held or not request.messages_max:
                return Claimed(held)
        self._around.seen(request.consumer[:CLIENT_ID_BYTES])
        if request.transaction_id is not None:
            self._around.hold(request.transaction_id, TRANSACTION_SECONDS_MAX)
            self._claiming.setdefault(request.transaction_id, {})[manager] = None
        waiter = manager.wait(request)
        if not request.wait or not manager.ready.is_complete or len(manager.ready):
            manager.around.look_at(manager)
        raise MustWait(waiter)

    def _held_by(self, view: View, manager: Manager, request: ClaimQueue) -> list[QueueMessage]:
        """What a claim has got already, if its answer was lost: but for what goes back just now."""
        return [
            leased_message(view, manager, lease.entry, lease.until, lease.fired_at)
            for lease in manager.leases.of_claim(request.consumer, request.number)
            if (lease.entry.locator, lease.entry.epoch) not in manager.to_give_back
        ]

    def answer(self, waiter: Waiter) -> None:
        """A claim that waits can be answered."""
        if waiter.refused is not None:
            self._around.refusals[id(waiter.request)] = waiter.refused
        self._around.answer(waiter)

    def given_up(self, request: object) -> None:
        """Nobody waits for the answer of a claim any more."""
        if type(request) is not ClaimQueue:
            return
        self._around.refusals.pop(id(request), None)
        manager = self._by_name.get(request.queue)
        waiter = None if manager is None else manager.consumers.of(request)
        if manager is None or waiter is None:
            return
        manager.consumers.remove(waiter)
        if waiter.granted:
            for message in waiter.messages:
                locator = (message.key, message.kind, message.id)
                manager.to_give_back[locator, message.epoch] = None
            self._around.wake()

    def release(self, transaction_id: bytes) -> list[object]:
        """A transaction has ended: what it has claimed and not settled goes back."""
        for manager in self._claiming.pop(transaction_id, ()):
            for lease in manager.leases.of_transaction(transaction_id):
                self._fail(manager, lease, TRANSACTION_HAS_ENDED)
        return []

    def client_gone(self, client: bytes) -> None:
        """A client was not heard of for too long: what its consumers hold has failed."""
        for manager in self._by_name.values():
            for lease in manager.leases.of_client(client):
                self._fail(manager, lease, CONSUMER_HAS_GONE)

    def _fail(self, manager: Manager, lease: Lease, why: str) -> None:
        manager.to_give_back[lease.entry.locator, lease.entry.epoch] = why
        self._around.wake()

    def holders(self) -> set[bytes]:
        """The clients whose consumers hold anything."""
        return {client for each in self._by_name.values() for client in each.leases.clients()}

    def holds_for(self, client: bytes) -> bool:
        """Whether those of a client do."""
        return any(manager.leases.holds_for(client) for manager in self._by_name.values())
