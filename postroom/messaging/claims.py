"""Who holds which messages: claims in the leaseholder's memory.

Competing reapers get different messages instead of conflicts at commit. A claim ends with its
transaction, or when that has expired. Like all locks here they only save work: the commit checks
that the messages are still there.

For each inbox a *free mark* remembers that everything below it is claimed or gone, so that the
hundredth reaper need not step over what the other ninety-nine hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from postroom.messaging.tokens import Arrival

_NEVER: Final = 1 << 64


class Free(NamedTuple):
    """Where to look for messages: from ``start`` on, but not at those ``claimed``."""

    start: bytes
    claimed: dict[bytes, bytes]


@dataclass(slots=True)
class _Claimed:
    """The claims in one inbox: message id to transaction id."""

    messages: dict[bytes, bytes] = field(default_factory=dict)
    free_mark: bytes = b""


@dataclass(slots=True)
class _Holder:
    expires: int
    messages: dict[bytes, list[bytes]] = field(default_factory=dict)


class Claims:
    """The claims of one range."""

    def __init__(self) -> None:
        self._inboxes: dict[bytes, _Claimed] = {}
        self._holders: dict[bytes, _Holder] = {}
        self._first_expiry = _NEVER

    def free(self, key: bytes, oldest: bytes, now: int) -> Free:
        """Where a transaction may take messages of ``key`` from. (Not twice, either, the same
        one.)
        """
        if now >= self._first_expiry:
            self._expire(now)
        inbox = self._inboxes.get(key)
        if inbox is None:
            return Free(oldest, {})
        return Free(max(oldest, inbox.free_mark), inbox.messages)

    def held_by(self, transaction_id: bytes, key: bytes) -> int:
        """How many messages of ``key`` the transaction holds."""
        holder = self._holders.get(transaction_id)
        return 0 if holder is None else len(holder.messages.get(key, ()))

    def first_expiry(self) -> int:
        """When the first of the claims may end for being forgotten; 0 if there are none."""
        return self._first_expiry if self._holders else 0

    def _expire(self, now: int) -> None:
        """Dead clients hold nothing."""
        for transaction_id, holder in list(self._holders.items()):
            if holder.expires <= now:
                self.release(transaction_id)
        self._first_expiry = min((each.expires for each in self._holders.values()), default=_NEVER)

    def claim(self, key: bytes, transaction_id: bytes, ids: list[bytes], expires: int) -> None:
        """The transaction takes the messages ``ids``, in their order."""
        inbox = self._inboxes.setdefault(key, _Claimed())
        inbox.messages.update(dict.fromkeys(ids, transaction_id))
        inbox.free_mark = max(inbox.free_mark, ids[-1] + b"\x00")
        holder = self._holders.setdefault(transaction_id, _Holder(expires))
        self._first_expiry = min(self._first_expiry, holder.expires)
        holder.messages.setdefault(key, []).extend(ids)

    def arrived(self, key: bytes, first: bytes) -> None:
        """A message with an old id may have come in below the free mark."""
        inbox = self._inboxes.get(key)
        if inbox is not None:
            inbox.free_mark = min(inbox.free_mark, first)

    def release(self, transaction_id: bytes) -> list[object]:
        """The transaction has ended; answers whom to wake: its inboxes may have free messages."""
        holder = self._holders.pop(transaction_id, None)
        if holder is None:
            return []
        for key, ids in holder.messages.items():
            inbox = self._inboxes[key]
            for id_ in ids:
                del inbox.messages[id_]
            inbox.free_mark = min(inbox.free_mark, *ids)
            if not inbox.messages:
                del self._inboxes[key]
        return [Arrival(key) for key in holder.messages]

    def clear(self) -> None:
        """Forget all claims."""
        self._inboxes.clear()
        self._holders.clear()
