"""Locks in the leaseholder's memory: they save work, they do not make anything correct.

``get_for_update`` locks a key so that competing transactions wait instead of failing at commit.
After a change of leaseholder the locks are gone, and the check at commit still catches every
conflict. How long a transaction may hold its locks is the affair of :mod:`.holders`.

Transactions that wait for each other in a circle would wait until their time is over: who would
close the circle is told so, and begins anew.
"""

from __future__ import annotations


class LockTable:
    """Exclusive locks of tokens by transactions. Waiting is the caller's affair.

    Its length is how many locks there are.
    """

    __slots__ = ("_holders", "_tokens", "_waits")

    def __init__(self) -> None:
        self._holders: dict[object, bytes] = {}
        self._tokens: dict[bytes, list[object]] = {}
        self._waits: dict[bytes, object] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def acquire(self, token: object, transaction_id: bytes) -> bool:
        """Lock ``token``; false if another transaction holds it, for which this one waits now."""
        holder = self._holders.get(token)
        if holder is None:
            self._holders[token] = transaction_id
            self._tokens.setdefault(transaction_id, []).append(token)
        elif holder != transaction_id:
            self._waits[transaction_id] = token
            return False
        self._waits.pop(transaction_id, None)
        return True

    def holder(self, token: object) -> bytes | None:
        """Which transaction has locked ``token``; ``None``: it is free."""
        return self._holders.get(token)

    @property
    def waits(self) -> int:
        """How many transactions are known to wait."""
        return len(self._waits)

    def waits_no_more(self, transaction_id: bytes) -> None:
        """The transaction has given up waiting."""
        self._waits.pop(transaction_id, None)

    def closes_circle(self, transaction_id: bytes) -> bool:
        """Whether ``transaction_id`` waits, in the end, for itself."""
        token, seen = self._waits.get(transaction_id), {transaction_id}
        while (holder := self._holders.get(token)) is not None:
            if holder in seen:
                return holder == transaction_id
            seen.add(holder)
            if holder not in self._waits:
                return False
            token = self._waits[holder]
        return False

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what the transaction holds, and tell what that was."""
        self._waits.pop(transaction_id, None)
        tokens = self._tokens.pop(transaction_id, [])
        for token in tokens:
            del self._holders[token]
        return tokens

    def clear(self) -> None:
        """Forget all locks."""
        self._holders.clear()
        self._tokens.clear()
        self._waits.clear()
