"""Who holds which messages: claims in the leaseholder's memory.

Competing reapers get different messages instead of conflicts at commit. Like all locks here they
only save work: the commit checks that the messages are still there. How long a transaction may hold
its claims is the affair of :mod:`postroom.ranges.holders`.

For each inbox a *free mark* remembers that everything below it is claimed or gone, so that the
hundredth reaper need not step over what the other ninety-nine hold.

A claim also keeps what was *found*: the messages themselves, as the reap has read them. While it is
kept, it proves that they are still there: nobody else is given them, so the commit need not read
them again. It is dropped

* when any transaction reaps one of them without having it (its own claim may have been released
  before it commits): at once, for those that are evaluated after it, and once more when that is
  applied, for those who have claimed them in between;
* when its transaction reaps more of the inbox, or commits: it is good for one commit;
* with the claim, and with the lease.

Messages may arrive among those that were found; then they do not follow each other any more. What
comes after them is remembered as well, until it is reaped, or something arrives before it.

What was read along with that, and was given to nobody yet, is kept as well (:mod:`.ahead`).

A transaction that vanishes with its messages leaves them to an *heir*, who holds them until it is
written down what has become of them (:mod:`postroom.messaging.attempts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from postroom.limits import CLAIMED_BYTES_MAX
from postroom.messaging.ahead import Ahead
from postroom.messaging.tokens import Arrival


class Taken(NamedTuple):
    """What a transaction holds of one inbox; ``attempts_max``: as its reap said (0: nothing)."""

    key: bytes
    ids: list[bytes]
    attempts_max: int


class Free(NamedTuple):
    """Where to look for messages: from ``start`` on, but not at those ``claimed``."""

    start: bytes
    claimed: dict[bytes, bytes]


@dataclass(slots=True)
class Found:
    """What one reap has found, in order.

    Attributes:
        messages: (id, stored).
        size_bytes: of the messages.
        is_gapless: whether no other message lies between the first and the last.
        following: the id of the message that comes right after them; empty: that is not known, or
            there is none.
    """

    messages: list[tuple[bytes, bytes]]
    size_bytes: int
    is_gapless: bool
    following: bytes = b""


@dataclass(slots=True)
class _Claimed:
    """The claims in one inbox: message id to transaction id.

    Attributes:
        last: no message after that is claimed.
        found: by transaction.
    """

    messages: dict[bytes, bytes] = field(default_factory=dict)
    free_mark: bytes = b""
    last: bytes = b""
    found: dict[bytes, Found] = field(default_factory=dict)


class Claims:
    """The claims of one range. Its length is how many messages are claimed.

    Attributes:
        ahead: what was read and is not claimed.
    """

    def __init__(self) -> None:
        self.ahead = Ahead()
        self._inboxes: dict[bytes, _Claimed] = {}
        self._holders: dict[bytes, dict[bytes, list[bytes]]] = {}
        self._attempts_max: dict[tuple[bytes, bytes], int] = {}
        self._found_bytes = 0

    def __len__(self) -> int:
        return sum(len(inbox.messages) for inbox in self._inboxes.values())

    def free(self, key: bytes, oldest: bytes) -> Free:
        """Where a transaction may take messages of ``key`` from. (Not twice, either, the same
        one.)
        """
        inbox = self._inboxes.get(key)
        if inbox is None:
            return Free(oldest, {})
        start = max(oldest, inbox.free_mark)
        return Free(start, {} if start > inbox.last else inbox.messages)

    def held_by(self, transaction_id: bytes, key: bytes) -> int:
        """How many messages of ``key`` the transaction holds."""
        return len(self._holders.get(transaction_id, {}).get(key, ()))

    def holder(self, key: bytes, id_: bytes) -> bytes | None:
        """The transaction that holds the message; ``None``: nobody does."""
        inbox = self._inboxes.get(key)
        return None if inbox is None else inbox.messages.get(id_)

    def claim(
        self,
        key: bytes,
        transaction_id: bytes,
        messages: list[tuple[bytes, bytes]],
        following: bytes = b"",
        attempts_max: int = 0,
    ) -> None:
        """The transaction takes ``messages`` (id, stored), in their order: the first free ones.

        Args:
            following: the id of the one that comes right after them, if it is known.
            attempts_max: how many attempts they have; 0: any number.
        """
        if attempts_max:
            self._attempts_max[transaction_id, key] = attempts_max
        ids = [id_ for id_, _ in messages]
        inbox = self._inboxes.setdefault(key, _Claimed())
        inbox.messages.update(dict.fromkeys(ids, transaction_id))
        inbox.free_mark = max(inbox.free_mark, ids[-1] + b"\x00")
        is_gapless = ids[0] > inbox.last  # nothing that is claimed was passed over
        inbox.last = max(inbox.last, ids[-1])
        held = self._holders.setdefault(transaction_id, {})
        if key in held:
            held[key] += ids
            self._drop(inbox, transaction_id)
            return
        held[key] = ids
        size_bytes = sum([len(stored) for _, stored in messages])
        if self._found_bytes + size_bytes <= CLAIMED_BYTES_MAX:
            self._found_bytes += size_bytes
            inbox.found[transaction_id] = Found(messages, size_bytes, is_gapless, following)

    def take_found(self, key: bytes, transaction_id: bytes, ids: list[bytes]) -> Found | None:
        """What the transaction has found in the inbox, if that is ``ids``, and all still there."""
        held = self._holders.get(transaction_id)
        if held is None or held.get(key) != ids:
            return None
        return self._drop(self._inboxes[key], transaction_id)

    def gone(self, key: bytes, ids: list[bytes]) -> None:
        """Messages are reaped: whoever else has found one of them has to look again."""
        if not ids:
            return
        self.ahead.gone(key, ids)
        inbox = self._inboxes.get(key)
        if inbox is not None and inbox.found:
            holders = inbox.messages
            for transaction_id in {holders[id_] for id_ in ids if id_ in holders}:
                self._drop(inbox, transaction_id)
            if inbox.found:
                first, last = min(ids), max(ids)
                for found in inbox.found.values():
                    if first <= found.following <= last:
                        found.following = b""

    def _drop(self, inbox: _Claimed, transaction_id: bytes) -> Found | None:
        found = inbox.found.pop(transaction_id, None)
        if found is not None:
            self._found_bytes -= found.size_bytes
        return found

    def arrived(self, first: dict[bytes, bytes]) -> None:
        """Messages with old ids may have come in below the free mark: by inbox, the first one."""
        self.ahead.arrives(first)
        for key, oldest in first.items() if self._inboxes else ():  # in their order
            inbox = self._inboxes.get(key)
            if inbox is not None:
                inbox.free_mark = min(inbox.free_mark, oldest)
                self._arrives(inbox, oldest)

    def arriving(self, first: dict[bytes, bytes]) -> None:
        """The same, of messages that arrive with the proposal under evaluation."""
        self.ahead.arrives(first)
        for key, oldest in first.items() if self._inboxes else ():
            inbox = self._inboxes.get(key)
            if inbox is not None:
                self._arrives(inbox, oldest)

    def _arrives(self, inbox: _Claimed, first: bytes) -> None:
        for found in inbox.found.values():
            if first <= inbox.last:
                found.is_gapless = False
            if first < found.following:
                found.following = b""

    def release(self, transaction_id: bytes) -> list[object]:
        """The transaction has ended; answers whom to wake: its inboxes may have free messages."""
        held = self._holders.pop(transaction_id, {})
        for key, ids in held.items():
            self._attempts_max.pop((transaction_id, key), None)
            inbox = self._inboxes[key]
            self._drop(inbox, transaction_id)
            if len(ids) == len(inbox.messages):  # nobody else holds any
                del self._inboxes[key]
                continue
            for id_ in ids:
                del inbox.messages[id_]
            inbox.free_mark = min(inbox.free_mark, *ids)
        return [Arrival(key) for key in held]

    def pass_on(
        self, transaction_id: bytes, heir: Callable[[], bytes]
    ) -> list[tuple[bytes, Taken]]:
        """The transaction has vanished; answers who holds its messages now, by inbox."""
        heirs = []
        for key, ids in self._holders.pop(transaction_id, {}).items():
            attempts_max = self._attempts_max.pop((transaction_id, key), 0)
            holder = heir()
            inbox = self._inboxes[key]
            self._drop(inbox, transaction_id)
            inbox.messages.update(dict.fromkeys(ids, holder))
            self._holders[holder] = {key: ids}
            heirs.append((holder, Taken(key, ids, attempts_max)))
        return heirs

    def clear(self) -> None:
        """Forget all claims."""
        self.ahead.clear()
        self._inboxes.clear()
        self._holders.clear()
        self._attempts_max.clear()
        self._found_bytes = 0
