"""The memory of a leaseholder: what transactions hold in it, and what ends that.

It is begun afresh from what is stored with each lease, and ends with it. It is also begun afresh
under the same lease, when everything stored is replaced.

Locks (:mod:`.locks`) and claims on messages save work. They do not make anything correct, and they
must not outlive the transactions that they serve. Code that takes one says so here (``hold``). All
that a transaction holds is released when

::

    commit, rollback ─▶ release_locks ─────────────┐
    its time is over ─▶ release_expired ─┐         ├─▶ the next in line goes on
    its client has gone ─▶ release_client ┴ vanished ┘

A transaction that *vanishes* has ended without a word: its messages were tried in vain. A
transaction whose commit is under way does not vanish.

Seconds are those of a monotonic clock: nothing is held longer because a wall clock was set back.
There is one deadline a transaction, however much it holds and however many wait for it. The first
half of a transaction's id names its client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

from postroom.kv.cache import Cache
from postroom.kv.engine import Reader
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.held_answers import HeldAnswers
from postroom.ranges.ports import Host, MemoryKeeper, SpanningTransactions
from postroom.ranges.requests import CLIENT_ID_BYTES
from postroom.ranges.waiting import COMMITS_ARE_PAUSED, Deadlines, Waiting

if TYPE_CHECKING:
    from postroom.ranges.commit_waits import CommitWaits
    from postroom.ranges.evaluators import RangeReads
    from postroom.ranges.feed import ChangeFeed
    from postroom.ranges.garbage import GarbageLists
    from postroom.ranges.transactions.intents import IntentTable
    from postroom.ranges.transactions.one_range import Committer

CLIENT_HAS_GONE: Final = "its consumer has gone without a word"
TIME_HAS_PASSED: Final = "the time of its consumer's transaction has passed"
_COMMITS_SECONDS: Final = 1.0


class Holders:
    """The transactions that hold something, each with one deadline. Its length is their number.

    Args:
        monotonic: a function that returns seconds that never go back.
        ring_at: a function that has ``take_expired`` called at a deadline. It is not called again
            before that deadline for one that is later.

    Attributes:
        clients: the deadlines of the transactions, by client; only to look at.
        rings_at: the time at which ``take_expired`` is to be called, perhaps in vain.
    """

    __slots__ = ("_expiries", "_monotonic", "_ring_at", "clients", "rings_at")

    def __init__(self, monotonic: Callable[[], float], ring_at: Callable[[float], object]) -> None:
        self._monotonic = monotonic
        self._ring_at = ring_at
        self.rings_at: float | None = None
        self._expiries: Deadlines[bytes] = Deadlines()
        self.clients: dict[bytes, dict[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._expiries)

    def hold(self, transaction_id: bytes, seconds: float) -> None:
        """Note that a transaction has taken something, and may stay open for ``seconds``."""
        expiry = self._monotonic() + min(TRANSACTION_SECONDS_MAX, seconds)
        of_client = self.clients.setdefault(transaction_id[:CLIENT_ID_BYTES], {})
        known = of_client.get(transaction_id)
        if known is not None and known >= expiry:
            return
        of_client[transaction_id] = expiry
        self._expiries.set(transaction_id, expiry)
        if self.rings_at is None or expiry < self.rings_at:
            self.rings_at = expiry
            self._ring_at(expiry)

    def knows(self, transaction_id: bytes) -> bool:
        """Return whether a transaction holds anything."""
        clients = self.clients
        return bool(clients) and transaction_id in clients.get(transaction_id[:CLIENT_ID_BYTES], ())

    def release(self, transaction_id: bytes) -> None:
        """Note that a transaction holds nothing any more."""
        self._expiries.cancel(transaction_id)
        client = transaction_id[:CLIENT_ID_BYTES]
        of_client = self.clients.get(client)
        if of_client is not None:
            of_client.pop(transaction_id, None)
            if not of_client:
                del self.clients[client]

    def of(self, client: bytes) -> list[bytes]:
        """Return the transactions of a client that hold something."""
        return list(self.clients.get(client, ()))

    def take_expired(self) -> list[bytes]:
        """Return the transactions whose time is over, which are to be released."""
        now = self._monotonic()
        if self.rings_at is None or self.rings_at > now:
            return []
        expired = self._expiries.take_due(now)
        self.rings_at = self._expiries.first()
        return expired

    @property
    def entries(self) -> int:
        """Return the number of deadlines kept, with those cancelled and not removed yet."""
        return self._expiries.entries

    def clear(self) -> None:
        """Forget all transactions."""
        self._expiries.clear()
        self.clients.clear()


class LeaseMemory:
    """The memory of one leaseholder; see the module.

    Args:
        stored: the node's engine.
        cache: the cache of the applied state.
        waiting: the lines of calls that wait.
        host: the node, whose services begin and end with the memory.
        committing: a function that returns the transactions whose commits are under way.

    Attributes:
        holders: the transactions that hold something.
        waiting: the lines of calls that wait.
        held: the answers of commits that other ranges have to carry out, by their names, and by
            the positions of the messages that are on their way.
        reads, committer, commit_waits, intents, feed, garbage: the parts of the range with a
            memory.
        transactions: the transactions over several ranges; ``None``: there is one range.
        keeper: the part of the program that keeps the rest of it.
        on_begun: called when memory has begun, under a new lease or anew.
    """

    reads: RangeReads
    committer: Committer
    commit_waits: CommitWaits
    intents: IntentTable
    feed: ChangeFeed
    garbage: GarbageLists
    keeper: MemoryKeeper

    def __init__(
        self,
        stored: Reader,
        cache: Cache,
        waiting: Waiting,
        host: Host,
        committing: Callable[[], Collection[bytes]],
    ) -> None:
        self.holders = Holders(host.monotonic, lambda _: host.wake(urgent=False))
        self.waiting = waiting
        self.held = HeldAnswers(host.monotonic)
        self._stored = stored
        self._cache = cache
        self._host = host
        self._committing = committing
        self._woken_later: list[object] | None = None
        self.transactions: SpanningTransactions | None = None
        self.on_begun: Callable[[], None] = lambda: None

    # --- with a lease

    def begin(self) -> None:
        """Begin from what is stored, under a new lease."""
        stored = self._stored
        self._cache.clear()
        self.holders.clear()
        self.reads.forget()
        self.committer.restart()
        self.intents.restart(stored)
        self.feed.begin_anew()
        self.garbage.restart(stored)
        self.held.open()
        self.keeper.begin_lease(stored)
        if self.transactions is not None:
            self.transactions.begin_lease(stored)
        self.on_begun()
        self._host.on_serving(True)

    def end(self) -> None:
        """Forget everything: the lease is over, or the node stops."""
        self.holders.clear()
        self.reads.end()
        self.commit_waits.clear()
        self.intents.clear()
        self.keeper.end_lease()
        self.held.close()
        if self.transactions is not None:
            self.transactions.end_lease()

    def begin_anew(self) -> None:
        """Begin anew under the same lease, because everything stored was replaced."""
        self._host.on_serving(False)
        self.end()
        self.begin()
        self.wake(list(self.waiting.lines))

    # --- the locks and waits in it

    def wake(self, tokens: Iterable[object]) -> None:
        """Evaluate the first in line for each of ``tokens``, which may be free."""
        if self._woken_later is not None:
            self._woken_later += tokens
            return
        for token in tokens if self.waiting.lines else ():
            self.waiting.wake(token)

    def pause_commits(self, is_paused: bool) -> None:
        """Let commits wait, or go on."""
        self.commit_waits.is_paused = is_paused
        if not is_paused:
            self.wake([COMMITS_ARE_PAUSED])

    def act_and_wake(self, acts: Iterable[Callable[[], None]]) -> None:
        """Do what follows from a proposal, and wake those that wait when all of it is done."""
        if not self.waiting.lines:
            for act in acts:
                act()
            return
        self._woken_later = woken = list[object]()
        try:
            for act in acts:
                act()
        finally:
            self._woken_later = None
        self.wake(woken)

    def release_locks(self, transaction_id: bytes) -> None:
        """Free what a transaction holds that has ended, and wake those that wait for it."""
        if not (self.waiting.lines or self.holders.knows(transaction_id)):
            return  # every transaction that takes something is among the holders
        self.holders.release(transaction_id)
        tokens = self.commit_waits.locks.release(transaction_id)
        tokens += self.keeper.release(transaction_id)
        self.wake(tokens)

    def given_up(self, request: object) -> None:
        """Hear that a request which had to wait is waited for no more."""
        self.reads.given_up(request)
        self.commit_waits.given_up(request)
        self.keeper.given_up(request)

    def release_client(self, client: bytes) -> None:
        """Free what the transactions of a client hold that has gone."""
        self._release_vanished(self.holders.of(client), CLIENT_HAS_GONE)
        self.keeper.client_gone(client)

    def release_expired(self) -> None:
        """Free what transactions hold whose time is over."""
        self._release_vanished(self.holders.take_expired(), TIME_HAS_PASSED)

    def _release_vanished(self, transaction_ids: list[bytes], why: str) -> None:
        committing = self._committing() if transaction_ids else ()
        for transaction_id in transaction_ids:
            if transaction_id in committing:
                # It has not ended without a word: its end releases it. If the commit is put off and
                # then given up, it has none, so it is looked at once more.
                self.holders.hold(transaction_id, _COMMITS_SECONDS)
                continue
            self.keeper.vanished(transaction_id, why)
            self.release_locks(transaction_id)

    def holds_for(self, client: bytes) -> bool:
        """Return whether anything is held for a client, or for its transactions."""
        return bool(self.holders.of(client)) or self.keeper.holds_for(client)

    def clients_that_hold(self) -> set[bytes]:
        """Return the clients that hold something by what is stored, connected or not."""
        return set(self.keeper.clients_that_hold())
