"""Locks in the leaseholder's memory: they save work, they do not make anything correct.

``get_for_update`` locks a key. Other transactions that ask for the lock, and all that write the
key, wait for the end of its holder, in the order in which they came. After a change of leaseholder
the locks are gone, and the check at commit still catches every conflict. A lock ends with its
transaction (:mod:`.memory`). Commits wait for locks in :mod:`.commit_waits`.

A lock is on a *token*: a key, or a span of keys as ``(start, end)``. A span is locked at once, and
its transaction then waits for the locks of others within it, so that no new ones come.

Transactions that wait for each other in a circle would wait until their time is over. In one range
a circle is seen when it closes, and only then is a transaction *wounded*: the youngest one of the
circle loses its locks and is told so. The oldest one of all is never wounded, and those that it
waits for end. All therefore make progress if those that begin anew keep their age.

*Memory.* A transaction has a number of locks at most, and a number of bytes of them. All
transactions of a range share ``LOCKED_BYTES_MAX``. Its share is all of that, divided by the clients
that have locks. When it is used up, a client with less than its share gets more all the same, and
one with its share is told to come back. No client can thus keep others from locking, and no more
than about twice as much is ever taken.

*Order.* Few transactions ask for spans, and all that lock would pay for the order of keys. New keys
therefore wait in a list, and are sorted in when a span is asked for. A key that is free again stays
until half of the keys are free. Each key costs the same however many there are, but for sorting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from postroom.counted import counted
from postroom.errors import TransactionTooLarge, Unavailable
from postroom.limits import (
    LOCK_BYTES,
    LOCKED_BYTES_MAX,
    LOCKED_SPANS_MAX,
    LOCKS_MAX,
    TRANSACTION_BYTES_MAX,
)
from postroom.ranges.requests import CLIENT_ID_BYTES, CommitTransaction
from postroom.ranges.waiting import Spans, UserSpan, Waiting

Bounds: TypeAlias = tuple[bytes, bytes | None]
Token: TypeAlias = bytes | Bounds

NEVER: Final = (1 << 64) - 1
"""A timestamp that is above all others."""
_RETRY_SECONDS: Final = 0.1


class _Taken:
    """The locks that a transaction has taken."""

    __slots__ = ("bytes", "locks", "spans")

    def __init__(self) -> None:
        self.locks = self.spans = self.bytes = 0


class LockMemory:
    """The memory that locks take, and its limits; see the module.

    Attributes:
        bytes: the memory that all locks take.
    """

    __slots__ = ("_by_client", "_by_transaction", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._by_transaction: dict[bytes, _Taken] = {}
        self._by_client: dict[bytes, int] = {}

    def take(self, token: Token, transaction_id: bytes) -> None:
        """Let a transaction lock ``token``.

        Raises:
            TransactionTooLarge: it has too many locks.
            Unavailable: its client has its share.
        """
        taken = self._by_transaction.get(transaction_id) or _Taken()
        is_span = isinstance(token, tuple)
        size = LOCK_BYTES + _key_bytes(token)
        client = transaction_id[:CLIENT_ID_BYTES]
        of_client = self._by_client.get(client, 0)
        if (
            taken.locks >= LOCKS_MAX
            or taken.bytes + size > TRANSACTION_BYTES_MAX
            or (is_span and taken.spans >= LOCKED_SPANS_MAX)
        ):
            raise _too_many(taken)
        if self.bytes + size > LOCKED_BYTES_MAX:
            clients = len(self._by_client) + (not of_client)
            if of_client + size > LOCKED_BYTES_MAX // clients:
                raise self._no_room(of_client)
        self._by_transaction[transaction_id] = taken
        taken.locks += 1
        taken.spans += is_span
        taken.bytes += size
        self.bytes += size
        self._by_client[client] = of_client + size

    def give_back(self, transaction_id: bytes) -> None:
        """Give back what the locks of a transaction took."""
        taken = self._by_transaction.pop(transaction_id, None)
        if taken is None:
            return
        client = transaction_id[:CLIENT_ID_BYTES]
        self.bytes -= taken.bytes
        self._by_client[client] -= taken.bytes
        if not self._by_client[client]:
            del self._by_client[client]

    def clear(self) -> None:
        """Give back everything."""
        self.bytes = 0
        self._by_transaction.clear()
        self._by_client.clear()

    def _no_room(self, of_client: int) -> Unavailable:
        return Unavailable(
            f"locks of all clients take {self.bytes:,} bytes of the leader's memory, those of this "
            f"client {of_client:,}, and it gets no more; nothing was changed: end some of its "
            "transactions, or try again after a moment (run() does)",
            retry_after=_RETRY_SECONDS,
        )


def _key_bytes(token: Token) -> int:
    return len(token) if isinstance(token, bytes) else len(token[0]) + len(token[1] or b"")


def _too_many(taken: _Taken) -> TransactionTooLarge:
    return TransactionTooLarge(
        f"the transaction has locked {counted(taken.locks, 'key')} and spans "
        f"({counted(taken.spans, 'span')}, {taken.bytes:,} bytes), and gets no more: a transaction "
        f"locks at most {LOCKS_MAX:,}, {LOCKED_SPANS_MAX} spans among them, of "
        f"{TRANSACTION_BYTES_MAX:,} bytes; nothing was changed: read keys without locking them, or "
        "do the work in smaller transactions"
    )


_LEFTOVERS_MIN: Final = 64


class LockedKeys:
    """The locked keys in order, to find those within a span; see the module.

    Args:
        held: what holds each token: a key that is not in it is free.
    """

    __slots__ = ("_held", "_new", "_sorted")

    def __init__(self, held: Mapping[Any, object]) -> None:
        self._held = held
        self._sorted: list[bytes] = []
        self._new: list[bytes] = []

    def add(self, key: bytes) -> None:
        """Add a key that was locked."""
        self._new.append(key)

    def shrink(self) -> None:
        """Forget the keys that are free, if they are too many."""
        if len(self._sorted) + len(self._new) > 2 * len(self._held) + _LEFTOVERS_MIN:
            self._sorted, self._new = [], [key for key in self._held if isinstance(key, bytes)]

    def within(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """Yield the locked keys with ``start <= key < end``, in order."""
        if self._new:
            self._sorted += self._new
            self._sorted.sort()  # mostly it is sorted already: what is new is merged in
            self._new = []
        keys, at = self._sorted, bisect_left(self._sorted, start)
        while at < len(keys) and (end is None or keys[at] < end):
            if keys[at] in self._held:
                yield keys[at]
            at += 1


class LockTable:
    """Exclusive locks of tokens by transactions. Its length is how many locks there are.

    Args:
        waiting: the lines of calls that wait.

    Attributes:
        held: the transaction that has locked each token; empty while there is no lock. Only to
            look at.
        passing: the transactions whose commits have waited, and are evaluated next.
        memory: the memory that the locks take.
    """

    __slots__ = (
        "_ages", "_keys", "_since", "_spans", "_tokens", "_waiting", "_waits", "_wide", "held",
        "memory", "passing",
    )  # fmt: skip

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.held: dict[Token, bytes] = {}
        self.passing: set[bytes] = set()
        self.memory = LockMemory()
        self._keys = LockedKeys(self.held)
        self._spans: dict[Bounds, bytes] = {}
        self._wide = Spans()
        self._tokens: dict[bytes, list[Token]] = {}
        self._since: dict[bytes, int] = {}
        self._ages: dict[bytes, int] = {}
        self._waits: dict[bytes, dict[int, Token]] = {}

    def __len__(self) -> int:
        return len(self.held)

    # --- locking

    def acquire(self, token: Token, transaction_id: bytes, now: int = 0) -> Token | None:
        """Lock ``token``; return what the transaction must wait for, or ``None`` if it has it.

        Args:
            token: the key or the span.
            transaction_id: the transaction.
            now: a timestamp, kept with the first lock of the transaction (``locks_since``).

        Raises:
            TransactionTooLarge, Unavailable: there is no room for one more lock.
        """
        if not self._has(token, transaction_id):
            blocker = self._lock_of_another(token, transaction_id)
            if blocker is not None:
                return blocker
            if isinstance(token, bytes) and self._stands_behind_others(token, transaction_id):
                return token
            self.memory.take(token, transaction_id)
            self.held[token] = transaction_id
            self._tokens.setdefault(transaction_id, []).append(token)
            self._since.setdefault(transaction_id, now)
            if isinstance(token, tuple):
                self._spans[token] = transaction_id
                self._wide.add(UserSpan(*token))
            else:
                self._keys.add(token)
        return self._key_within(token, transaction_id) if isinstance(token, tuple) else None

    def blocker(self, token: Token, transaction_id: bytes) -> Token | None:
        """Return what a transaction that only writes ``token`` must wait for; ``None``: nothing.

        It passes with others that only write, and does not overtake those that want the lock.
        """
        if self._has(token, transaction_id):
            return None
        found = self._lock_of_another(token, transaction_id)
        if found is not None:
            return found
        if isinstance(token, tuple):
            return self._key_within(token, transaction_id)
        line = self._waiting.lines.get(token)
        if not line or transaction_id in self.passing:
            return None
        last = next(reversed(line)).request
        passes = type(last) is CommitTransaction and last.transaction_id in self.passing
        return None if passes else token

    def _has(self, token: Token, transaction_id: bytes) -> bool:
        """Return whether a transaction has locked ``token``, or a span around that key."""
        if self.held.get(token) == transaction_id:
            return True
        if not self._spans or not isinstance(token, bytes):
            return False
        return any(self._spans[span] == transaction_id for span in self._wide.holding(token))

    def _lock_of_another(self, token: Token, transaction_id: bytes) -> Token | None:
        """Return the lock of another transaction on this token, or on a span that touches it."""
        if self.held.get(token, transaction_id) != transaction_id:
            return token
        for span in self._touching(token) if self._spans else ():
            if self._spans[span] != transaction_id:
                return span
        return None

    def _touching(self, token: Token) -> Iterable[Bounds]:
        """Return the locked spans that hold a key, or have one in common with a span."""
        if isinstance(token, bytes):
            return self._wide.holding(token)
        return [span for span in self._spans if _overlap(span, token)]

    def _key_within(self, span: Bounds, transaction_id: bytes) -> Token | None:
        """Return the first key of a span that another transaction has locked."""
        locked = self._keys.within(*span)
        return next((key for key in locked if self.held[key] != transaction_id), None)

    def _stands_behind_others(self, token: Token, transaction_id: bytes) -> bool:
        line = self._waiting.lines.get(token)
        return bool(line and next(iter(line)).request.transaction_id != transaction_id)

    def holder(self, token: Token) -> bytes | None:
        """Return the transaction that has locked ``token``; ``None``: it is free."""
        return self.held.get(token)

    def locks_since(self, transaction_id: bytes) -> int | None:
        """Return since when a transaction holds locks without having lost any.

        ``NEVER``: it may have lost one, by a split.
        """
        return self._since.get(transaction_id)

    def keys_have_left(self) -> None:
        """Have no transaction of now hold all that it has locked: some may lie elsewhere."""
        self._since = dict.fromkeys(self._since, NEVER)

    # --- waiting

    @property
    def waits(self) -> int:
        """Return the number of transactions that are known to wait."""
        return len(self._waits)

    def wait(self, request: Any, token: Token, age: int) -> None:
        """Note that the transaction of ``request`` waits for ``token``.

        Args:
            request: the request that waits.
            token: the token.
            age: the timestamp at which it began, or began first if it is tried again.
        """
        transaction_id = request.transaction_id
        self._waits.setdefault(transaction_id, {})[id(request)] = token
        self._ages[transaction_id] = min(age, self._ages.get(transaction_id, age))

    def waits_no_more(self, request: Any) -> None:
        """Note that the request waits no more, or is looked at again."""
        waits = self._waits.get(request.transaction_id)
        if waits is not None:
            waits.pop(id(request), None)
            if not waits:
                del self._waits[request.transaction_id]
                if request.transaction_id not in self._tokens:
                    self._ages.pop(request.transaction_id, None)

    def waited_for(self, transaction_id: bytes) -> list[Token]:
        """Return the tokens that a transaction waits for."""
        return list(self._waits.get(transaction_id, {}).values())

    def youngest_of_circle(self, transaction_id: bytes) -> bytes | None:
        """Return the youngest of the circle of waiting transactions that this one closes."""
        came_from: dict[bytes, bytes] = {}
        look_at = [transaction_id]
        while look_at:
            one = look_at.pop()
            for token in self._waits.get(one, {}).values():
                holder = self.held.get(token)
                if holder == transaction_id:
                    return self._youngest(came_from, one, transaction_id)
                if holder is not None and holder not in came_from:
                    came_from[holder] = one
                    look_at.append(holder)
        return None

    def _youngest(self, came_from: dict[bytes, bytes], last: bytes, first: bytes) -> bytes:
        circle = [first]
        while last != first:
            circle.append(last)
            last = came_from[last]
        return max(circle, key=lambda each: (self._ages.get(each, 0), each))

    # --- the end

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what the transaction holds, and return its tokens."""
        self._since.pop(transaction_id, None)
        self._ages.pop(transaction_id, None)
        self._waits.pop(transaction_id, None)
        tokens = self._tokens.pop(transaction_id, [])
        if not tokens:
            return []
        for token in tokens:
            del self.held[token]
            if isinstance(token, tuple):
                del self._spans[token]
                self._wide.remove(UserSpan(*token))
        self._keys.shrink()
        self.memory.give_back(transaction_id)
        return list(tokens)

    def clear(self) -> None:
        """Forget all locks."""
        for each in (self.held, self._spans, self._tokens, self._since, self._ages, self._waits):
            each.clear()
        self.passing.clear()
        self._keys.shrink()
        self._wide.clear()
        self.memory.clear()


def _overlap(one: Bounds, other: Bounds) -> bool:
    """Return whether two spans have a key in common."""
    return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])
