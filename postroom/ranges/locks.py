"""Locks in the leaseholder's memory: they save work, they do not make anything correct.

``get_for_update`` locks a key. Others that ask for the lock, and all that write the key, wait for
the end of the transaction that has it, in the order in which they came. After a change of
leaseholder the locks are gone, and the check at commit still catches every conflict. How long a
transaction may hold its locks is the affair of :mod:`.holders`; how commits wait is told in
:mod:`.commit_waits`.

A lock is on a *token*: a key, or a span of keys as ``(start, end)``. A span is locked at once, and
its transaction then waits for the locks of others within it; so no new ones come.

Transactions that wait for each other in a circle would wait until their time is over. In one range
a circle is seen when it closes, and only then is anybody *wounded*: the youngest transaction of the
circle loses its locks and is told so. The oldest one of all is never wounded, and those that it
waits for end. So all make progress if those that begin anew keep their age.

Locks take memory, which is bounded (:mod:`.lock_memory`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from postroom.ranges.lock_memory import LockMemory
from postroom.ranges.locked_keys import LockedKeys
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.spans import Span, Spans
from postroom.ranges.waiting import Waiting

Bounds: TypeAlias = tuple[bytes, bytes | None]
Token: TypeAlias = bytes | Bounds


class LockTable:
    """Exclusive locks of tokens by transactions. Its length is how many locks there are.

    Args:
        waiting: the lines of those that wait.

    Attributes:
        held: who has locked each token; empty while there is no lock. Only to look at.
        passing: the transactions whose commits have waited, and are evaluated next.
        memory: what the locks take.
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
        """Lock ``token``; answers what the transaction must wait for, or ``None``: it has it.

        Args:
            now: a timestamp, kept with the first lock of the transaction (``locks_since``).

        Raises:
            TransactionTooLarge, Unavailable: there is no room for one more lock.
        """
        if not self._has(token, transaction_id):
            blocker = self._of_another(token, transaction_id)
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
                self._wide.add(Span(*token))
            else:
                self._keys.add(token)
        return self._key_within(token, transaction_id) if isinstance(token, tuple) else None

    def blocker(self, token: Token, transaction_id: bytes) -> Token | None:
        """What a transaction that only writes ``token`` must wait for; ``None``: nothing.

        It passes with others that only write, and does not overtake those that want the lock.
        """
        if self._has(token, transaction_id):
            return None
        found = self._of_another(token, transaction_id)
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
        """Whether a transaction has locked ``token``, or a span around that key."""
        if self.held.get(token) == transaction_id:
            return True
        if not self._spans or not isinstance(token, bytes):
            return False
        return any(self._spans[span] == transaction_id for span in self._wide.holding(token))

    def _of_another(self, token: Token, transaction_id: bytes) -> Token | None:
        """The lock of another transaction on this very token, or on a span that touches it."""
        if self.held.get(token, transaction_id) != transaction_id:
            return token
        for span in self._touching(token) if self._spans else ():
            if self._spans[span] != transaction_id:
                return span
        return None

    def _touching(self, token: Token) -> Iterable[Bounds]:
        """The locked spans that hold a key, or have one in common with a span."""
        if isinstance(token, bytes):
            return self._wide.holding(token)
        return [span for span in self._spans if _overlap(span, token)]

    def _key_within(self, span: Bounds, transaction_id: bytes) -> Token | None:
        """The first key of a span that another transaction has locked."""
        locked = self._keys.within(*span)
        return next((key for key in locked if self.held[key] != transaction_id), None)

    def _stands_behind_others(self, token: Token, transaction_id: bytes) -> bool:
        line = self._waiting.lines.get(token)
        return bool(line and next(iter(line)).request.transaction_id != transaction_id)

    def holder(self, token: Token) -> bytes | None:
        """Which transaction has locked ``token``; ``None``: it is free."""
        return self.held.get(token)

    def locks_since(self, transaction_id: bytes) -> int | None:
        """Since when a transaction holds locks without a break, and has lost none of them."""
        return self._since.get(transaction_id)

    # --- waiting

    @property
    def waits(self) -> int:
        """How many transactions are known to wait."""
        return len(self._waits)

    def wait(self, request: Any, token: Token, age: int) -> None:
        """The transaction of ``request`` waits for ``token``.

        Args:
            age: the timestamp at which it began, or began first if it is tried again.
        """
        transaction_id = request.transaction_id
        self._waits.setdefault(transaction_id, {})[id(request)] = token
        self._ages[transaction_id] = min(age, self._ages.get(transaction_id, age))

    def waits_no_more(self, request: Any) -> None:
        """The request does not wait any more, or is looked at again."""
        waits = self._waits.get(request.transaction_id)
        if waits is not None:
            waits.pop(id(request), None)
            if not waits:
                del self._waits[request.transaction_id]
                if request.transaction_id not in self._tokens:
                    self._ages.pop(request.transaction_id, None)

    def waited_for(self, transaction_id: bytes) -> list[Token]:
        """What a transaction waits for."""
        return list(self._waits.get(transaction_id, {}).values())

    def youngest_of_circle(self, transaction_id: bytes) -> bytes | None:
        """Of a circle of transactions that wait for each other, with this one: the youngest."""
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
        """Free what the transaction holds, and tell what that was."""
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
                self._wide.remove(Span(*token))
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
    """Whether two spans have a key in common."""
    return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])
