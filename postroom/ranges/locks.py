"""Locks in the leaseholder's memory: they save work, they do not make anything correct.

``get_for_update`` locks a key so that competing transactions wait instead of failing at commit.
After a change of leaseholder the locks are gone, and the check at commit still catches every
conflict. A lock ends with its transaction, or when that has expired (its client died).

Transactions that wait for each other in a circle would wait until then: who would close the circle
is told so, and begins anew. A transaction that does not wait any more may be taken for one that
does; then a circle is seen where there is none, which costs a repetition and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Held:
    transaction_id: bytes
    expires: int


@dataclass(slots=True)
class LockTable:
    """Exclusive locks of tokens by transactions. Waiting is the caller's affair."""

    _locks: dict[object, _Held] = field(default_factory=dict)
    _tokens: dict[bytes, list[object]] = field(default_factory=dict)
    _waits: dict[bytes, object] = field(default_factory=dict)

    def acquire(self, token: object, transaction_id: bytes, now: int, expires: int) -> bool:
        """Lock ``token``; false if another live transaction holds it."""
        held = self._locks.get(token)
        if held is not None and held.transaction_id == transaction_id:
            return True
        if held is not None and held.expires > now:
            self._waits[transaction_id] = token
            return False
        if held is not None:
            self.release(held.transaction_id)
        self._waits.pop(transaction_id, None)
        self._locks[token] = _Held(transaction_id, expires)
        self._tokens.setdefault(transaction_id, []).append(token)
        return True

    def expiry(self, token: object) -> int:
        """When the lock of ``token`` ends at the latest; 0 if it is free."""
        held = self._locks.get(token)
        return 0 if held is None else held.expires

    def closes_circle(self, transaction_id: bytes) -> bool:
        """Whether ``transaction_id`` waits, in the end, for itself."""
        token, seen = self._waits.get(transaction_id), {transaction_id}
        while (held := self._locks.get(token)) is not None:
            if held.transaction_id in seen:
                return held.transaction_id == transaction_id
            seen.add(held.transaction_id)
            if held.transaction_id not in self._waits:
                return False
            token = self._waits[held.transaction_id]
        return False

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what the transaction holds, and tell what that was."""
        self._waits.pop(transaction_id, None)
        tokens = self._tokens.pop(transaction_id, [])
        for token in tokens:
            del self._locks[token]
        return tokens

    def clear(self) -> None:
        """Forget all locks."""
        self._locks.clear()
        self._tokens.clear()
        self._waits.clear()
