"""The claims on the queues of a range, and the return of messages whose claim or holder is gone.

::

    claim ─▶ waits ─▶ a proposal leases something to it ─▶ answered
      │        └─ nobody waits any more ─▶ what it got goes back, uncounted
      └─ sent again, as its answer was lost ─▶ what it holds
    its transaction has not committed ─▶ what it got goes back, uncounted
    its client has gone, or its transaction's time is over ─▶ its attempts have failed
    its consumer has no credit ─▶ told once one of its attempts is over (:mod:`.leases`)

The manager notes which attempts go back; the next ``AdvanceQueues`` gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from postroom.kv.clock import Timestamp
from postroom.kv.engine import Reader
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, StoredQueueMessage
from postroom.messaging.queues.consumers import WaitingClaim, Wish
from postroom.messaging.queues.leases import Lease, attempt_of
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.news import DefinitionNews
from postroom.messaging.queues.node_claims import NodeClaim, NodeClaims
from postroom.messaging.queues.places import is_named_by, leased_message
from postroom.messaging.queues.requests import Attempt
from postroom.messaging.queues.waits import CreditToken, TokenWaits
from postroom.ranges.bounds import Bounds, WrongRange
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry, ServiceWakeUp
from postroom.ranges.requests import CLIENT_ID_BYTES

CONSUMER_HAS_GONE: Final = "the consumer has gone"
CLIENTS_REMEMBERED: Final = 10_000


@dataclass(kw_only=True, slots=True, eq=False)
class QueueEnvironment:
    """The environment of the queues of a range: clocks, chance, and calls that wake others.

    Attributes:
        bounds: the bounds of the range.
        monotonic: the seconds of a clock that never goes back.
        reading: about now, as a timestamp.
        by_wall: the same by the wall clock alone. After a leader whose clock was ahead, timestamps
            go on from its own, and that has ended no lease.
        seconds_until: a function that returns how long it takes until a timestamp has come.
        chance: a random number from 0 up to 1.
        check_age: a function that refuses timestamps that cannot be read at.
        wake_tokens: a function that answers requests that wait for tokens.
        holders: the transactions that hold messages.
        reader: the stored state at a timestamp that is protected as a whole.
        may_purge: the timestamp up to which nobody reads the past, at most a threshold.
        kept: returns how long the past can be read, in timestamp units.
        wake_up: the flag that wakes the service.
        news: the definitions of queues that the node has heard of.
        node_claims: the claims that wait for all ranges of the node.
        handed: the deadlines of message leases on the monotonic clock, by ranges and the keys of
            their holdings: a range begins with those that were given here.
        seen_clients: the clients that any range of the node has seen, the first ones first.
        forgets_strangers: whether a client that was not seen since the start of the node is gone.
            This is so in an embedded store, whose clients are in its process.
        rouse: a function that lets a store that rests begin to work.
        refusals: the errors of claims that are about to be answered, by the identity of their
            requests.
        waits: the requests that wait for credit, or for results.
        sleeps_until: until when the service sleeps, if it is not woken.
        serves: returns whether no other node can serve the range, which this one leads: its lease
            is not over, or the store is embedded.
        is_prepared: returns whether a transaction over several ranges is prepared that changes what
            lies at a key: it is left alone.
    """

    bounds: Bounds
    monotonic: Callable[[], float]
    reading: Callable[[], int]
    by_wall: Callable[[], int]
    seconds_until: Callable[[int], float]
    chance: Callable[[], float]
    check_age: Callable[[View, int], None]
    wake_tokens: Callable[[list[object]], None]
    holders: Holders
    reader: Callable[[Reader, int], Reader]
    may_purge: Callable[[Evaluation, int], int]
    kept: Callable[[], int]
    wake_up: ServiceWakeUp
    news: DefinitionNews
    forgets_strangers: bool
    rouse: Callable[[], None]
    node_claims: NodeClaims = field(default_factory=NodeClaims)
    handed: dict[int, dict[bytes, float]] = field(default_factory=dict)
    seen_clients: dict[bytes, None] = field(default_factory=dict)
    refusals: dict[int, Exception] = field(default_factory=dict)
    waits: TokenWaits = field(default_factory=TokenWaits)
    sleeps_until: float = 0.0
    serves: Callable[[], bool] = lambda: True
    is_prepared: Callable[[bytes], bool] = lambda _: False

    def wake(self, *, urgent: bool = False) -> None:
        """Wake the service: it has something to do now, and perhaps a claim waits for it."""
        self.rouse()
        self.wake_up.set(urgent=urgent)

    def wake_by(self, deadline: float) -> None:
        """Wake the service if it would sleep beyond a time at which it has something to do."""
        if deadline < self.sleeps_until:
            self.wake_up.set()

    def answer(self, waiter: WaitingClaim) -> None:
        """Answer a claim that waits."""
        self.wake_tokens([waiter])

    def answer_woken(self, _: object = None) -> None:
        """Answer the requests whose tokens were woken."""
        woken = self.waits.take_woken()
        if woken:
            self.wake_tokens(woken)

    def seen(self, client: bytes) -> None:
        """Note that a client is there."""
        seen = self.seen_clients
        if len(seen) >= CLIENTS_REMEMBERED and client not in seen:
            del seen[next(iter(seen))]
        seen[client] = None

    def may_be_there(self, client: bytes) -> bool:
        """Return whether a client that holds messages may still be there."""
        return not self.forgets_strangers or client in self.seen_clients


@dataclass(eq=False)
class Claiming:
    """The claims on the queues of a range.

    Attributes:
        by_name: the managers of the queues in use.
        known: a function that returns the manager of a queue, or raises ``Invalid``.
        environment: the clocks, and the service to wake.
    """

    by_name: Mapping[str, Manager]
    known: Callable[[str], Manager]
    environment: QueueEnvironment
    # Dictionaries, not sets, in an order that repeats.
    _claiming: dict[bytes, dict[Manager, None]] = field(default_factory=dict)
    _holding: dict[bytes, dict[Manager, None]] = field(default_factory=dict)

    def register(self, registry: Registry) -> None:
        """Register the claims."""
        registry.reads[ClaimQueue] = self.claim
        registry.sizes |= {
            "queue waits": lambda: sum(each.consumers.of_range for each in self.by_name.values()),
            "queue claims": lambda: len(self._claiming),
            "queue token waits": lambda: len(self.environment.waits),
        }

    def clear(self) -> None:
        """Forget all claims and holders, at the end of the lease."""
        self._claiming.clear()
        self._holding.clear()
        self.environment.refusals.clear()
        self.environment.waits.clear()

    # --- under a new lease

    def remember(self, manager: Manager) -> None:
        """Take over the claims that were made under another leader.

        Messages that were claimed in a transaction still end with it. Messages of a client that
        cannot be there any more go back.
        """
        for client in manager.leases.clients():
            self.holds(manager, client)
        for transaction_id in manager.leases.transactions:
            self.environment.holders.hold(transaction_id, TRANSACTION_SECONDS_MAX)
            self._claiming.setdefault(transaction_id, {})[manager] = None
        for lease in manager.leases.all():
            client = lease.consumer[:CLIENT_ID_BYTES]
            if not self.environment.may_be_there(client):
                manager.give_back_later([lease.attempt], CONSUMER_HAS_GONE)

    # --- waiting claims

    def claim(self, view: View, request: ClaimQueue) -> Claimed:
        """Evaluate ``ClaimQueue``: wait until a proposal has leased a message to it.

        Raises:
            Invalid: there is no such queue, or it was dropped.
            MustWait: nothing is leased to it yet.
            WrongRange: it waits for all ranges of the node, which has no other one.
        """
        if request.at_node:
            raise WrongRange(self.environment.bounds.descriptor)
        manager = self.by_name.get(request.queue)
        waiter = None if manager is None else manager.consumers.of(request)
        if waiter is not None:
            if not waiter.granted:
                raise MustWait(waiter)
            assert manager is not None
            manager.consumers.remove(waiter)
            return Claimed(waiter.messages)
        refusal = self.environment.refusals.pop(id(request), None)
        if refusal is not None:
            raise refusal
        manager = self.known(request.queue)
        if request.in_hand is not None:
            return self._over(manager, request, request.in_hand)
        if request.again:
            held = self._held_by(view, manager, request)
            if held or not request.messages_max:
                return Claimed(held)
        if not request.wait and manager.has_none_for(wish := manager.wish_of(request.selection)):
            return self._none(view, request, wish)
        self._begins(manager, request)
        raise MustWait(manager.wait(request))

    def _none(self, view: View, request: ClaimQueue, wish: Wish | None) -> Claimed:
        """Return the answer to a claim that gets nothing here."""
        of_node, end = self.environment.node_claims, self.environment.bounds.end
        looked_at, without = of_node.without(end, request.queue, wish)
        view.steps += looked_at
        return Claimed([], without=without)

    def _begins(self, manager: Manager, request: ClaimQueue) -> None:
        """Note that a client claims, perhaps in a transaction."""
        self.environment.seen(request.consumer[:CLIENT_ID_BYTES])
        if request.transaction_id is not None:
            self.environment.holders.hold(request.transaction_id, TRANSACTION_SECONDS_MAX)
            self._claiming.setdefault(request.transaction_id, {})[manager] = None

    def _over(self, manager: Manager, request: ClaimQueue, in_hand: list[Attempt]) -> Claimed:
        """Return which attempts of a consumer without credit are over.

        Raises:
            MustWait: none is, and the consumer waits for one.
        """
        over = [index for index, each in enumerate(in_hand) if not self._is_held(manager, each)]
        if not over and request.wait:
            raise MustWait(self.environment.waits.add(request, CreditToken(request.consumer)))
        self.environment.waits.remove(request)
        return Claimed([], over)

    def _is_held(self, manager: Manager, attempt: Attempt) -> bool:
        lease = manager.leases.get((attempt.home, attempt.kind, attempt.id))
        return lease is not None and is_named_by(attempt, lease)

    def _held_by(
        self, view: View, manager: Manager, request: ClaimQueue
    ) -> list[StoredQueueMessage]:
        """Return the messages that a claim got before, if its answer was lost.

        Messages that are being given back are left out.
        """
        now, messages = self.environment.monotonic(), []
        for lease in manager.leases.of_claim(request.consumer, request.number):
            if lease.attempt not in manager.to_give_back:
                lasts = max(int((lease.holding.deadline - now) * 1000), 0)
                times = (lease.until, lease.fired_at, lasts)
                messages.append(leased_message(view, manager, lease.entry, times))
        return messages

    def answer(self, waiter: WaitingClaim) -> None:
        """Answer a claim that waits."""
        if waiter.of_node is not None:
            self._answer_at_node(waiter.of_node, waiter)
            return
        if waiter.refused is not None:
            self.environment.refusals[id(waiter.request)] = waiter.refused
        self.environment.answer(waiter)

    def _answer_at_node(self, claim: NodeClaim, waiter: WaitingClaim) -> None:
        """Answer a claim for all ranges of the node with the messages of this one."""
        environment, descriptor = self.environment, self.environment.bounds.descriptor
        self._begins(self.by_name[waiter.request.queue], waiter.request)
        asked = descriptor.start, descriptor.end
        environment.node_claims.answer(claim, Claimed(waiter.messages, asked=asked))

    def given_up(self, request: object) -> None:
        """Forget a claim for whose answer nobody waits any more, and give back what it got."""
        self.environment.waits.remove(request)
        if type(request) is not ClaimQueue:
            return
        self.environment.refusals.pop(id(request), None)
        manager = self.by_name.get(request.queue)
        waiter = None if manager is None else manager.consumers.of(request)
        if manager is None or waiter is None:
            return
        manager.consumers.remove(waiter)
        if waiter.granted:
            manager.give_back_later(map(attempt_of, waiter.messages), None)
            self.environment.wake()

    def release(self, transaction_id: bytes) -> list[object]:
        """Give back what a transaction that ended without a commit has claimed and not settled.

        Nothing has failed, so no attempt is counted. :meth:`vanished` is called before it, if at
        all.
        """
        for manager in self._claiming.pop(transaction_id, ()):
            self._give_back(manager, manager.leases.of_transaction(transaction_id), None)
        return []

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Fail the attempts of a transaction that has ended without a word.

        Its messages may be what ended its client, or keeps it busy for ever.
        """
        for manager in self._claiming.get(transaction_id, ()):
            self._give_back(manager, manager.leases.of_transaction(transaction_id), why)

    def client_gone(self, client: bytes) -> None:
        """Fail the attempts of a client that was not heard of for too long."""
        for manager in self._holding.get(client, ()):
            self._give_back(manager, manager.leases.of_client(client), CONSUMER_HAS_GONE)

    def _give_back(self, manager: Manager, leases: list[Lease], why: str | None) -> None:
        if leases:
            manager.give_back_later((each.attempt for each in leases), why)
            self.environment.wake()

    def holds(self, manager: Manager, client: bytes) -> None:
        """Note that a client's consumers began or ceased to hold messages of a queue."""
        if manager.leases.holds_for(client):
            self._holding.setdefault(client, {})[manager] = None
        else:
            self._holds_nothing(manager, client)

    def refuse(self, name: str, number: int, manager: Manager | None, refusal: Exception) -> None:
        """Refuse the claims on a queue that is dropped, or set aside, and end its memory."""
        self.environment.waits.wake_results(name)
        if manager is not None:
            self._forget(manager)
            manager.end(refusal)
        self.environment.node_claims.refuse_queue(name, number, refusal)
        self.environment.wake()

    def _forget(self, manager: Manager) -> None:
        """Forget the holders of messages; wake the consumers without credit, to be refused."""
        for client in manager.leases.clients():
            self._holds_nothing(manager, client)
        for consumer in manager.leases.consumers:
            self.environment.waits.wake(CreditToken(consumer))
        self.environment.answer_woken()

    def _holds_nothing(self, manager: Manager, client: bytes) -> None:
        managers = self._holding.get(client, {})
        managers.pop(manager, None)
        if not managers:
            self._holding.pop(client, None)

    def note(self) -> str:
        """Return which message of all queues is leased longest, and by whom; empty: none is."""
        managers = {manager for each in self._holding.values() for manager in each}
        leases = [(manager.leases.longest(), manager.name) for manager in managers]
        held = [(lease, queue) for lease, queue in leases if lease is not None]
        if not held:
            return ""
        lease, queue = min(held, key=lambda each: each[0].fired_at)
        told = lease.told(self.environment.reading())
        since = Timestamp(told.since).datetime.isoformat(timespec="seconds")
        return (
            f"held for longest is the message {told.id!r} of the queue {queue!r}: for "
            f"{told.seconds:.0f} s, since {since}, by {told.consumer}"
        )

    def holders(self) -> set[bytes]:
        """Return the clients whose consumers hold any message."""
        return set(self._holding)

    def holds_for(self, client: bytes) -> bool:
        """Return whether the consumers of a client hold any message."""
        return client in self._holding
