"""Who holds which messages of a queue: the leaseholder's memory of the part *leased*.

What counts is stored: this is read anew with a lease of the range. How long the leases last is
measured on the monotonic clock; for those that another leader has made, from the time that is left
by the stored timestamps, but no longer than they were given for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import chain, islice
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.kv.engine import Reader
from postroom.messaging.queues import records
from postroom.messaging.queues.records import Entry, Holding, Layout, Locator
from postroom.ranges.deadlines import Deadlines
from postroom.ranges.requests import CLIENT_ID_BYTES

AGAIN_SECONDS: Final = 1.0
"""What has run out, and was named to no effect, is named again after so long."""


class Hold:
    """A holding (:mod:`.records`) as the leaseholder has it in memory.

    Attributes:
        key: where it is stored; ``marks``: the keys of the marks behind it.
        left: how many of its messages are held yet, as applied.
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
    """Who holds a message: the entry of this ``number`` in a hold."""

    entry: Entry
    hold: Hold
    number: int

    @property
    def until(self) -> int:
        """The timestamp at which it ends."""
        return self.hold.stored.until

    @property
    def since(self) -> int:
        """The timestamp at which it was given."""
        return self.hold.stored.since

    @property
    def fired_at(self) -> int:
        """The timestamp at which it was handed out, however often it was extended since."""
        return self.hold.stored.fired_at

    @property
    def consumer(self) -> bytes:
        """Whose it is."""
        return self.hold.stored.consumer


class LeaseTable:
    """The leases of one queue. Its length is their number, those included that are on their way
    (``promised``): a proposal under evaluation has made them.

    Who holds which message is told by one entry for each; all else is counted by holds.
    """

    def __init__(self) -> None:
        self._leases: dict[Locator, Lease] = {}
        self._deadlines: Deadlines[Hold] = Deadlines()
        self._of_consumers: dict[bytes, dict[Hold, None]] = {}
        self._of_transactions: dict[bytes, dict[Hold, None]] = {}
        self._held_by: Counter[bytes] = Counter()
        self._clients: Counter[bytes] = Counter()
        self._of_groups: Counter[str] = Counter()
        self._promised = 0
        self._promised_groups: Counter[str] = Counter()
        self._named: list[Hold] = []

    def __len__(self) -> int:
        return len(self._leases) + self._promised

    # --- as applied

    def read(self, stored: Reader, layout: Layout, monotonic: float, now: int) -> None:
        """What is stored: of each holding, what is not in a mark behind it.

        Raises:
            ValueError, LookupError, DecodeError: it is not what was written.
        """
        holds: list[tuple[Hold, set[int]]] = []
        for key, packed in stored.iterate(layout.leased, keys.after_prefix(layout.leased)):
            if layout.is_mark(key):
                hold, over = holds[-1]  # of none: that is damage as well, an ``IndexError``
                hold.marks.append(key)
                over.update(records.marks.decode(packed))
            else:
                holding = records.read_holding(packed)
                if layout.until_in(key) != holding.until or not holding.entries:
                    raise ValueError("a holding is not that of its key")
                hold = Hold(key, holding, monotonic + seconds_left(holding, now))
                holds.append((hold, set()))
        for hold, over in holds:
            if not over <= set(range(len(hold.stored.entries))):
                raise ValueError("a mark names messages that its holding does not have")
            self.add(hold, over)

    def add(self, hold: Hold, over: Set[int] = frozenset()) -> None:
        """What a claim was given is applied, or read: but for the numbers that are ``over``."""
        leases, groups = self._leases, self._of_groups
        given = [Lease(each, hold, n) for n, each in enumerate(hold.stored.entries)]
        if over:
            given = [lease for lease in given if lease.number not in over]
        for lease in given:
            locator = lease.entry.locator
            if locator in leases:  # it was extended, or it is left of a hold
                self.remove_all([locator])
            leases[locator] = lease
            groups[lease.entry.group] += 1
        hold.left = len(given)
        if not given:
            return
        consumer, transaction = hold.stored.consumer, hold.stored.transaction
        self._of_consumers.setdefault(consumer, {})[hold] = None
        if transaction:
            self._of_transactions.setdefault(transaction, {})[hold] = None
        self._held_by[consumer] += hold.left
        self._clients[consumer[:CLIENT_ID_BYTES]] += hold.left
        self._deadlines.set(hold, hold.deadline)

    def remove_all(self, locators: list[Locator]) -> list[str]:
        """They are over, and that is applied; answers of which groups they were, each once."""
        removed: dict[str, None] = {}
        of_holds: dict[Hold, int] = {}
        pop, groups = self._leases.pop, self._of_groups
        for locator in locators:
            lease = pop(locator, None)
            if lease is None:
                continue
            hold, group = lease.hold, lease.entry.group
            of_holds[hold] = of_holds.get(hold, 0) + 1
            removed[group] = None
            groups[group] -= 1
        for group in removed:
            if not groups[group]:
                del groups[group]
        for hold, number in of_holds.items():
            self._leave(hold, number)
        return list(removed)

    def _leave(self, hold: Hold, number: int) -> None:
        """So many of a hold are over."""
        hold.left -= number
        consumer, transaction = hold.stored.consumer, hold.stored.transaction
        _subtract(self._held_by, consumer, number)
        _subtract(self._clients, consumer[:CLIENT_ID_BYTES], number)
        if hold.left:
            return
        self._deadlines.cancel(hold)
        _drop(self._of_consumers, consumer, hold)
        if transaction:
            _drop(self._of_transactions, transaction, hold)

    def clear(self) -> None:
        """Nothing is known any more."""
        self.__init__()  # type: ignore[misc]  # what a new one is

    # --- as promised by a proposal in the making

    def promise(self, group: str) -> None:
        """The proposal in the making leases a message of a group."""
        self._promised += 1
        self._promised_groups[group] += 1

    def break_promises(self) -> None:
        """That proposal was not made; or it is applied, and what it kept of them was added."""
        self._promised = 0
        self._promised_groups.clear()

    # --- asked

    def get(self, locator: Locator) -> Lease | None:
        """Who holds a message, as applied."""
        return self._leases.get(locator)

    def in_group(self, group: str) -> int:
        """How many of a group are held."""
        return self._of_groups.get(group, 0) + self._promised_groups.get(group, 0)

    def held_by(self, consumer: bytes) -> int:
        """How many a consumer holds."""
        return self._held_by.get(consumer, 0)

    def holds_for(self, client: bytes) -> bool:
        """Whether a client's consumers hold any."""
        return client in self._clients

    def clients(self) -> list[bytes]:
        """The clients whose consumers hold any."""
        return list(self._clients)

    def _held(self, holds: Iterable[Hold]) -> Iterator[Lease]:
        """What is held yet of what was given together."""
        for hold in holds:
            for entry in hold.stored.entries:
                lease = self._leases.get(entry.locator)
                if lease is not None and lease.hold is hold:
                    yield lease

    def of_hold(self, hold: Hold) -> list[Lease]:
        """What is held yet of what was given together."""
        return list(self._held([hold]))

    def of_client(self, client: bytes) -> list[Lease]:
        """What the consumers of a client hold."""
        if client not in self._clients:
            return []
        found = (holds for each, holds in self._of_consumers.items() if each.startswith(client))
        return list(self._held(chain.from_iterable(found)))

    def of_claim(self, consumer: bytes, claim: int) -> list[Lease]:
        """What a consumer holds by one of its claims."""
        holds = self._of_consumers.get(consumer, ())
        return list(self._held(each for each in holds if each.stored.claim == claim))

    def of_transaction(self, transaction_id: bytes) -> list[Lease]:
        """What was claimed in a transaction."""
        return list(self._held(self._of_transactions.get(transaction_id, ())))

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

    def take_expired(self, now: float, leases_max: int) -> list[Lease]:
        """Those that have run out, a number of them at most. What is over of a hold is named
        together, and not again before a second has passed; of a large one as much as there is room
        for, and the rest at once.
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
        """What was named so far is done with."""
        self._named.clear()

    def name_again(self) -> None:
        """What was named since came to nothing: it is named again at once."""
        for hold in self._named:
            self.watch_again(hold, hold.deadline)
        self._named.clear()

    def watch_again(self, hold: Hold, moment: float) -> None:
        """Some of it was named, and is held yet: it is named again, then."""
        if hold.left:
            self._deadlines.set(hold, moment)


def seconds_left(holding: Holding, now: int) -> float:
    """How long a holding of another leader lasts: by what is stored, whatever the clocks say."""
    given = holding.until - holding.since
    left = min(max(holding.until - now, 0), given)
    return (left >> LOGICAL_BITS) / 1000


def _drop(holders: dict[bytes, dict[Hold, None]], holder: bytes, hold: Hold) -> None:
    held = holders.get(holder)
    if held is not None:
        held.pop(hold, None)
        if not held:
            del holders[holder]


def _subtract(counter: Counter[bytes], name: bytes, number: int) -> None:
    counter[name] -= number
    if not counter[name]:
        del counter[name]
