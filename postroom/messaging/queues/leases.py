"""The leases of the messages of a queue, in the memory of the leaseholder.

All that must last is stored, and read again with a new lease of the range. The duration of a
message's lease is measured on the monotonic clock. A lease that another leaseholder gave lasts for
the rest by its stored timestamps, but no longer than it was given for.

A consumer has *credit* for more messages while it holds less than it may. It knows of the messages
that it settles itself. A message can also be settled by its id, in another transaction or by an
operator. Only the leaseholder sees that. Therefore a consumer without credit asks it:
:class:`.ClaimQueue` with ``in_hand`` is answered once one of these attempts is over. Consumers that
wait make a commit no slower: the table of leases looks its consumer up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain, islice
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.kv.engine import Reader
from postroom.messaging.queues import records
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.queries import HeldMessage
from postroom.messaging.queues.records import AttemptName, Entry, Holding, Locator, QueueLayout
from postroom.messaging.queues.waits import CreditToken, TokenWaits
from postroom.ranges.requests import CLIENT_ID_BYTES
from postroom.ranges.waiting import Deadlines

AGAIN_SECONDS: Final = 1.0
"""The number of seconds after which an expired holding is reported again, if it is still held."""


class LeasedHolding:
    """The leaseholder's memory of a stored holding (:mod:`.records`): messages leased by one claim.

    Attributes:
        key: the engine key of the holding.
        stored: the holding.
        marks: the keys of the marks behind it.
        left: how many of its messages are still leased, as applied.
        deadline: when it ends, on the monotonic clock.
    """

    __slots__ = ("deadline", "key", "left", "marks", "stored")

    def __init__(self, key: bytes, stored: Holding, deadline: float) -> None:
        self.key = key
        self.stored = stored
        self.deadline = deadline
        self.left = len(stored.entries)
        self.marks: list[bytes] = []


class Lease(msgspec.Struct, gc=False, eq=False):
    """A lease of a message: the entry with this ``number`` in a holding."""

    entry: Entry
    holding: LeasedHolding
    number: int

    @property
    def until(self) -> int:
        """Return the timestamp at which it ends."""
        return self.holding.stored.until

    @property
    def fired_at(self) -> int:
        """Return the timestamp at which the message was fired; an extension does not change it."""
        return self.holding.stored.fired_at

    def told(self, now: int) -> HeldMessage:
        """Return which consumer holds which message, and since when."""
        consumer = self.consumer
        client, number = consumer[:CLIENT_ID_BYTES], consumer[CLIENT_ID_BYTES:]
        return HeldMessage(
            self.entry.id.decode(errors="backslashreplace"),
            self.entry.kind,
            f"{client.hex()}/{int.from_bytes(number, 'big')}",
            self.fired_at,
            max(now - self.fired_at >> LOGICAL_BITS, 0) / 1000,
        )

    @property
    def attempt(self) -> AttemptName:
        """Return the name of the attempt."""
        return self.entry.locator, self.fired_at

    @property
    def consumer(self) -> bytes:
        """Return the id of the consumer that holds the message."""
        return self.holding.stored.consumer


class LeaseTable:
    """The leases of one queue. Its length is their number, the promised ones included.

    A *promised* lease is one that the proposal under evaluation gives. There is one entry for each
    leased message; everything else is counted by holdings.

    Args:
        waits: the consumers that wait for credit; those that hold fewer messages are woken.
        on_client: called with a client whose consumers hold messages for the first time, or none
            any more.
        held: how many messages each consumer holds in all ranges of the node.
    """

    def __init__(
        self,
        waits: TokenWaits,
        on_client: Callable[[bytes], None] = lambda _: None,
        held: Counter[bytes] | None = None,
    ) -> None:
        self._waits = waits
        self._on_client = on_client
        self._leases: dict[Locator, Lease] = {}
        self._deadlines: Deadlines[LeasedHolding] = Deadlines()
        self._since: Deadlines[LeasedHolding] = Deadlines()
        self._of_consumers: dict[bytes, dict[LeasedHolding, None]] = {}
        self._of_transactions: dict[bytes, dict[LeasedHolding, None]] = {}
        self._held_by: Counter[bytes] = Counter() if held is None else held
        self._clients: Counter[bytes] = Counter()
        self._of_groups: Counter[str] = Counter()
        self._promised = 0
        self._promised_groups: Counter[str] = Counter()
        self._named: list[LeasedHolding] = []

    def __len__(self) -> int:
        return len(self._leases) + self._promised

    # --- applied leases

    def read(
        self,
        stored: Reader,
        layout: QueueLayout,
        monotonic: float,
        now: int,
        handed: dict[bytes, float],
    ) -> None:
        """Read the stored holdings, without the messages that the marks behind them name.

        Args:
            stored: the stored state.
            layout: the engine keys of the queue.
            monotonic: now, on the monotonic clock.
            now: the same as a timestamp.
            handed: the deadlines by the keys of holdings that come from a split of this node's.

        Raises:
            ValueError, LookupError, DecodeError: a record is not as it was written.
        """
        leased: list[tuple[LeasedHolding, set[int]]] = []
        for key, packed in stored.iterate(layout.leased, keys.after_prefix(layout.leased)):
            if layout.is_mark(key):
                holding, over = leased[-1]  # a mark without a holding is damage: `IndexError`
                holding.marks.append(key)
                over.update(records.marks.decode(packed))
            else:
                record = records.holdings.decode(packed)
                if layout.until_in(key) != record.until or not record.entries:
                    raise ValueError("a holding is not that of its key")
                deadline = handed.pop(key, None)
                if deadline is None:
                    deadline = monotonic + seconds_left(record, now)
                holding = LeasedHolding(key, record, deadline)
                leased.append((holding, set()))
        for holding, over in leased:
            if not over <= set(range(len(holding.stored.entries))):
                raise ValueError("a mark names messages that its holding does not have")
            self.add(holding, over)

    def add(self, holding: LeasedHolding, over: Set[int] = frozenset()) -> None:
        """Add a holding that is applied or was read, without the numbers that are ``over``."""
        given = {
            # Most messages have no group: their locators need no call.
            entry.locator if entry.group else (entry.key, entry.kind, entry.id): Lease(
                entry, holding, number
            )
            for number, entry in enumerate(holding.stored.entries)
            if number not in over
        }
        leases = self._leases
        if not leases.keys().isdisjoint(given):
            # Their leases were extended, or they are left of other holdings.
            self.remove_all([locator for locator in given if locator in leases])
        leases.update(given)
        self._of_groups.update([lease.entry.group for lease in given.values()])
        holding.left = len(given)
        if not given:
            return
        consumer, transaction = holding.stored.consumer, holding.stored.transaction
        self._of_consumers.setdefault(consumer, {})[holding] = None
        if transaction:
            self._of_transactions.setdefault(transaction, {})[holding] = None
        client = consumer[:CLIENT_ID_BYTES]
        is_new = client not in self._clients
        self._held_by[consumer] += holding.left
        self._clients[client] += holding.left
        if is_new:
            self._on_client(client)
        self._deadlines.set(holding, holding.deadline)
        self._since.set(holding, holding.stored.fired_at)

    def remove_all(
        self, locators: list[Locator], on_ended: Callable[[LeasedHolding, int], None] | None = None
    ) -> list[str]:
        """Remove leases that are over, as applied; return their groups, each once.

        Args:
            locators: the messages.
            on_ended: called with each holding, and the number of its attempts that have ended.
        """
        removed: dict[str, None] = {}
        by_holding: dict[LeasedHolding, int] = {}
        pop, groups = self._leases.pop, self._of_groups
        for locator in locators:
            lease = pop(locator, None)
            if lease is None:
                continue
            holding, group = lease.holding, lease.entry.group
            by_holding[holding] = by_holding.get(holding, 0) + 1
            removed[group] = None
            groups[group] -= 1
        for group in removed:
            if not groups[group]:
                del groups[group]
        for holding, number in by_holding.items():
            self._leave(holding, number)
            if on_ended is not None:
                on_ended(holding, number)
        return list(removed)

    def _leave(self, holding: LeasedHolding, number: int) -> None:
        """Subtract a number of ended messages from a holding."""
        holding.left -= number
        consumer, transaction = holding.stored.consumer, holding.stored.transaction
        _subtract(self._held_by, consumer, number)
        client = consumer[:CLIENT_ID_BYTES]
        _subtract(self._clients, client, number)
        if len(self._waits):
            self._waits.wake(CreditToken(consumer))
        if client not in self._clients:
            self._on_client(client)
        if holding.left:
            return
        self._deadlines.cancel(holding)
        self._since.cancel(holding)
        _drop(self._of_consumers, consumer, holding)
        if transaction:
            _drop(self._of_transactions, transaction, holding)

    # --- promised leases

    def promise(self, group: str, number: int = 1) -> None:
        """Promise leases of messages of a group for the proposal under evaluation."""
        self._promised += number
        self._promised_groups[group] += number

    def break_promises(self) -> None:
        """Forget the promised leases: the proposal was aborted, or its leases were added."""
        self._promised = 0
        self._promised_groups.clear()

    def end(self) -> None:
        """Count nothing here any more, since the range does not serve the queue."""
        for consumer, leased in self._of_consumers.items():
            _subtract(self._held_by, consumer, sum([each.left for each in leased]))
        self._held_by = Counter()

    # --- questions

    def get(self, locator: Locator) -> Lease | None:
        """Return the lease of a message, as applied, or `None`."""
        return self._leases.get(locator)

    def in_group(self, group: str) -> int:
        """Return how many messages of a group are leased, the promised ones included."""
        return self._of_groups.get(group, 0) + self._promised_groups.get(group, 0)

    def holds_for(self, client: bytes) -> bool:
        """Return whether the consumers of a client hold any message."""
        return client in self._clients

    def clients(self) -> list[bytes]:
        """Return the clients whose consumers hold any message."""
        return list(self._clients)

    def _held(self, leased: Iterable[LeasedHolding]) -> Iterator[Lease]:
        """Iterate over the leases that are left of holdings."""
        for holding in leased:
            for entry in holding.stored.entries:
                lease = self._leases.get(entry.locator)
                if lease is not None and lease.holding is holding:
                    yield lease

    def of_holding(self, holding: LeasedHolding) -> list[Lease]:
        """Return the leases that are left of a holding."""
        return list(self._held([holding]))

    def of_client(self, client: bytes) -> list[Lease]:
        """Return the leases of the consumers of a client."""
        if client not in self._clients:
            return []
        found = (leased for each, leased in self._of_consumers.items() if each.startswith(client))
        return list(self._held(chain.from_iterable(found)))

    def of_claim(self, consumer: bytes, claim: int) -> list[Lease]:
        """Return the leases that a consumer got by one of its claims."""
        leased = self._of_consumers.get(consumer, ())
        return list(self._held(each for each in leased if each.stored.claim == claim))

    def of_transaction(self, transaction_id: bytes) -> list[Lease]:
        """Return the leases that were claimed in a transaction."""
        return list(self._held(self._of_transactions.get(transaction_id, ())))

    @property
    def transactions(self) -> list[bytes]:
        """Return the transactions in which messages were claimed that are still leased."""
        return list(self._of_transactions)

    @property
    def consumers(self) -> set[bytes]:
        """Return the consumers that hold any message."""
        return set(self._of_consumers)

    def all(self) -> list[Lease]:
        """Return all leases, as applied."""
        return list(self._leases.values())

    def longest(self) -> Lease | None:
        """Return the lease of the message that is leased for longest, as applied, or `None`."""
        holding = self._since.first_due(math.inf)
        return None if holding is None else next(self._held([holding]), None)

    # --- time

    def deadlines(self) -> Iterator[tuple[bytes, float]]:
        """Iterate over the deadlines of the holdings, with their engine keys."""
        for leased in self._of_consumers.values():
            for holding in leased:
                yield holding.key, holding.deadline

    def next_deadline(self) -> float | None:
        """Return when the first holding expires, on the monotonic clock, or `None`."""
        return self._deadlines.first()

    def take_expired(self, now: float, leases_max: int) -> list[Lease]:
        """Return at most ``leases_max`` leases that have expired.

        The leases of a holding are returned together, and not again before a second has passed. If
        there is no room for all of a large holding, the rest follows with the next call.
        """
        expired: list[Lease] = []
        while len(expired) < leases_max:
            first = self._deadlines.first_due(now)
            if first is None:
                break
            self._named.append(first)
            expired += islice(self._held([first]), leases_max - len(expired))
            if len(expired) < leases_max:
                self.watch_again(first, now + AGAIN_SECONDS)
        return expired

    def begin_naming(self) -> None:
        """Forget which holdings were reported as expired."""
        self._named.clear()

    def name_again(self) -> None:
        """Report the holdings again that were reported as expired by an aborted evaluation."""
        for holding in self._named:
            self.watch_again(holding, holding.deadline)
        self._named.clear()

    def watch_again(self, holding: LeasedHolding, deadline: float) -> None:
        """Report this holding as expired again at ``deadline`` if part of it is still leased."""
        if holding.left:
            self._deadlines.set(holding, deadline)


def attempt_of(message: StoredQueueMessage) -> AttemptName:
    """Return the name of the attempt for which a message was fired."""
    return message.locator, message.fired_at


def seconds_left(record: Holding, now: int) -> float:
    """Return how long a holding that another leaseholder gave still lasts, by its timestamps."""
    given = record.until - record.since
    left = min(max(record.until - now, 0), given)
    return (left >> LOGICAL_BITS) / 1000


def _drop(
    holders: dict[bytes, dict[LeasedHolding, None]], holder: bytes, holding: LeasedHolding
) -> None:
    held = holders.get(holder)
    if held is not None:
        held.pop(holding, None)
        if not held:
            del holders[holder]


def _subtract(counter: Counter[bytes], name: bytes, number: int) -> None:
    counter[name] -= number
    if not counter[name]:
        del counter[name]
