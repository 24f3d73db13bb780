"""Who holds which messages: claims in the leaseholder's memory.

Competing reapers get different messages instead of conflicts at commit. Like all locks here they
only save work: the commit checks that the messages are still there. How long a transaction may hold
its claims is the affair of :mod:`postroom.ranges.holders`.

For each inbox a *free mark* remembers that everything below it is claimed or gone, so that the
hundredth reaper need not step over what the other ninety-nine hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from postroom.messaging.tokens import Arrival


class Free(NamedTuple):
    """Where to look for messages: from ``start`` on, but not at those ``claimed``."""

    start: bytes
    claimed: dict[bytes, bytes]


@dataclass(slots=True)
class _Claimed:
    """The claims in one inbox: message id to transaction id."""

    messages: dict[bytes, bytes] = field(default_factory=dict)
    free_mark: bytes = b""


class Claims:
    """The claims of one range. Its length is how many messages are claimed."""

    def __init__(self) -> None:
        self._inboxes: dict[bytes, _Claimed] = {}
        self._holders: dict[bytes, dict[bytes, list[bytes]]] = {}

    def __len__(self) -> int:
        return sum(len(inbox.messages) for inbox in self._inboxes.values())

    def free(self, key: bytes, oldest: bytes) -> Free:
        """Where a transaction may take messages of ``key`` from. (Not twice, either, the same
        one.)
        """
        inbox = self._inboxes.get(key)
        if inbox is None:
            return Free(oldest, {})
        return Free(max(oldest, inbox.free_mark), inbox.messages)

    def held_by(self, transaction_id: bytes, key: bytes) -> int:
        """How many messages of ``key`` the transaction holds."""
        return len(self._holders.get(transaction_id, {}).get(key, ()))

    def claim(self, key: bytes, transaction_id: bytes, ids: list[bytes]) -> None:
        """The transaction takes the messages ``ids``, in their order."""
        inbox = self._inboxes.setdefault(key, _Claimed())
        inbox.messages.update(dict.fromkeys(ids, transaction_id))
        inbox.free_mark = max(inbox.free_mark, ids[-1] + b"\x00")
        held = self._holders.setdefault(transaction_id, {})
        held.setdefault(key, []).extend(ids)

    def arrived(self, key: bytes, first: bytes) -> None:
        """A message with an old id may have come in below the free mark."""
        inbox = self._inboxes.get(key)
        if inbox is not None:
            inbox.free_mark = min(inbox.free_mark, first)

    def release(self, transaction_id: bytes) -> list[object]:
        """The transaction has ended; answers whom to wake: its inboxes may have free messages."""
        held = self._holders.pop(transaction_id, {})
        for key, ids in held.items():
            inbox = self._inboxes[key]
            for id_ in ids:
                del inbox.messages[id_]
            inbox.free_mark = min(inbox.free_mark, *ids)
            if not inbox.messages:
                del self._inboxes[key]
        return [Arrival(key) for key in held]

    def clear(self) -> None:
        """Forget all claims."""
        self._inboxes.clear()
        self._holders.clear()
