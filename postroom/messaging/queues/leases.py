"""Who holds which messages of a queue: the leaseholder's memory of the part *leased*.

What counts is stored: this is read anew with a lease of the range. How long the leases last is
measured on the monotonic clock; for those that another leader has made, from the time that is left
by the stored timestamps, but no longer than they were given for.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from postroom.kv.clock import LOGICAL_BITS
from postroom.messaging.queues.records import Lease, Locator
from postroom.ranges.deadlines import Deadlines
from postroom.ranges.requests import CLIENT_ID_BYTES

LEASED_MAX: Final = 100_000
"""So many messages of a queue are leased at a time in one range."""


class LeaseTable:
    """The leases of one queue. Its length is their number, those included that are on their way
    (``promised``): a proposal under evaluation has made them.
    """

    def __init__(self) -> None:
        self._leases: dict[Locator, Lease] = {}
        self._deadlines: Deadlines[float] = Deadlines()
        self._until: dict[Locator, float] = {}
        self._ending: dict[float, dict[Locator, None]] = {}
        self._of_consumers: dict[bytes, dict[Locator, None]] = {}
        self._of_transactions: dict[bytes, dict[Locator, None]] = {}
        self._clients: Counter[bytes] = Counter()
        self._of_groups: Counter[str] = Counter()
        self._promised: dict[Locator, Lease] = {}
        self._extended: dict[Locator, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases) + len(self._promised)

    # --- as applied

    def add(self, lease: Lease, deadline: float) -> None:
        """A lease is applied."""
        self.add_all([(lease.entry.locator, lease)], deadline)

    def add_all(self, leased: list[tuple[Locator, Lease]], deadline: float) -> None:
        """Leases of one consumer, and of one transaction if of any, are applied."""
        leases, promised, first = self._leases, self._promised, leased[0][1]
        held = self._of_consumers.setdefault(first.consumer, {})
        new = 0
        for locator, lease in leased:
            was_promised = promised.pop(locator, None) is not None
            if locator not in leases:
                new += 1
                if not was_promised:
                    self._of_groups[lease.entry.group] += 1
                held[locator] = None
                if lease.transaction:
                    self._of_transactions.setdefault(lease.transaction, {})[locator] = None
            leases[locator] = lease
            self._end_at(locator, deadline)
        self._clients[first.consumer[:CLIENT_ID_BYTES]] += new

    def _end_at(self, locator: Locator, deadline: float) -> None:
        """Those that end at one moment share a deadline."""
        if locator in self._until:
            self._end_never(locator)
        self._until[locator] = deadline
        ending = self._ending.get(deadline)
        if ending is None:
            self._ending[deadline] = ending = {}
            self._deadlines.set(deadline, deadline)
        ending[locator] = None

    def _end_never(self, locator: Locator) -> None:
        deadline = self._until.pop(locator, None)
        if deadline is None:
            return
        ending = self._ending[deadline]
        del ending[locator]
        if not ending:
            del self._ending[deadline]
            self._deadlines.cancel(deadline)

    def remove(self, locator: Locator) -> Lease | None:
        """It is over, and that is applied."""
        lease = self._leases.pop(locator, None)
        if lease is None:
            return None
        self._end_never(locator)
        _drop(self._of_consumers, lease.consumer, locator)
        if lease.transaction:
            _drop(self._of_transactions, lease.transaction, locator)
        client, group = lease.consumer[:CLIENT_ID_BYTES], lease.entry.group
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        self._release_group(group)
        return lease

    def remove_all(self, locators: list[Locator]) -> list[str]:
        """They are over, and that is applied; answers of which groups they were, each once."""
        removed = map(self.remove, locators)
        return list(dict.fromkeys(lease.entry.group for lease in removed if lease is not None))

    def clear(self) -> None:
        """Nothing is known any more."""
        self.__init__()  # type: ignore[misc]  # what a new one is

    # --- as promised by a proposal in the making

    def promise(self, locator: Locator, lease: Lease) -> None:
        """The proposal in the making leases a message."""
        if locator not in self._promised:
            self._of_groups[lease.entry.group] += 1
        self._promised[locator] = lease

    def extend(self, lease: Lease) -> None:
        """It gives one that is held another end."""
        self._extended[lease.entry.locator] = lease

    def break_promises(self) -> None:
        """That proposal was not made; or it is applied, and what it kept of them was added."""
        for lease in self._promised.values():
            self._release_group(lease.entry.group)
        self._promised.clear()
        self._extended.clear()

    def _release_group(self, group: str) -> None:
        self._of_groups[group] -= 1
        if not self._of_groups[group]:
            del self._of_groups[group]

    # --- asked

    def get(self, locator: Locator) -> Lease | None:
        """Who holds a message, as applied."""
        return self._leases.get(locator)

    def promised(self, locator: Locator) -> Lease | None:
        """Who will hold it, or for longer, if the proposal in the making is applied as it was when
        it was evaluated.
        """
        if not (self._promised or self._extended):
            return None
        return self._extended.get(locator) or self._promised.get(locator)

    def in_group(self, group: str) -> int:
        """How many of a group are held."""
        return self._of_groups.get(group, 0)

    def held_by(self, consumer: bytes) -> int:
        """How many a consumer holds."""
        return len(self._of_consumers.get(consumer, ()))

    def holds_for(self, client: bytes) -> bool:
        """Whether a client's consumers hold any."""
        return client in self._clients

    def clients(self) -> list[bytes]:
        """The clients whose consumers hold any."""
        return list(self._clients)

    def of_client(self, client: bytes) -> list[Locator]:
        """What the consumers of a client hold."""
        if client not in self._clients:
            return []
        return [
            locator
            for consumer, held in self._of_consumers.items()
            if consumer.startswith(client)
            for locator in held
        ]

    def of_claim(self, consumer: bytes, claim: int) -> list[Lease]:
        """What a consumer holds by one of its claims."""
        held = (self._leases[locator] for locator in self._of_consumers.get(consumer, ()))
        return [lease for lease in held if lease.claim == claim]

    def of_transaction(self, transaction_id: bytes) -> list[Locator]:
        """What was claimed in a transaction."""
        return list(self._of_transactions.get(transaction_id, ()))

    @property
    def transactions(self) -> list[bytes]:
        """The transactions that have claimed something."""
        return list(self._of_transactions)

    @property
    def consumers(self) -> set[bytes]:
        """Who holds anything."""
        return set(self._of_consumers)

    def all(self) -> list[Lease]:
        """Every one that is applied."""
        return list(self._leases.values())

    # --- time

    def next_deadline(self) -> float | None:
        """When the first of them runs out."""
        return self._deadlines.first()

    def take_expired(self, now: float, leases_max: int) -> list[Locator]:
        """Those that have run out, a number of them at most; they are not named again."""
        expired: list[Locator] = []
        while len(expired) < leases_max:
            first = self._deadlines.first()
            if first is None or first > now:
                break
            due = list(islice(self._ending[first], leases_max - len(expired)))
            for locator in due:
                self._end_never(locator)
            expired += due
        return expired

    def watch_again(self, locator: Locator, deadline: float) -> None:
        """One that was named is held yet: it is named again, then."""
        if locator in self._leases:
            self._end_at(locator, deadline)


def seconds_left(lease: Lease, now: int) -> float:
    """How long a lease of another leader lasts: by what is stored, whatever the clocks say."""
    given = lease.until - lease.since
    left = min(max(lease.until - now, 0), given)
    return (left >> LOGICAL_BITS) / 1000


def _drop(holders: dict[bytes, dict[Locator, None]], holder: bytes, locator: Locator) -> None:
    held = holders.get(holder)
    if held is not None:
        held.pop(locator, None)
        if not held:
            del holders[holder]
