"""The claims of transactions on messages of inboxes.

Competing reapers get different messages instead of conflicts at commit. Like all locks here, claims
only save work: the commit checks that the messages are still there. The duration of a transaction's
claims is limited in :mod:`postroom.ranges.memory`.

For each inbox a *free mark* remembers that everything below it is claimed or gone. The hundredth
reaper therefore need not step over the messages that the other ninety-nine hold.

A claim also keeps what was *found*: the messages as the reap has read them. While it is kept, it
proves that they are still there: nobody else is given them, so the commit need not read them again.
It is dropped

* when any transaction reaps one of them without its claim, which may have been released before the
  commit. This happens at once, for later evaluations. It happens again when that is applied, for
  transactions that have claimed them in between;
* when its transaction reaps more of the inbox, or commits: it is good for one commit;
* with the claim, and with the lease.

Messages may arrive among those that were found; then they do not follow each other any more. The id
of the next message after them is remembered as well, until that message is reaped or another
arrives before it.

Messages that were read along with them and given to nobody yet are kept as well
(:mod:`.inbox_reads`).

A transaction that vanishes with its messages leaves them to an *heir*. The heir holds them until
their lost attempts are written down (:mod:`postroom.messaging.attempts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from postroom.limits import CLAIMED_BYTES_MAX
from postroom.messaging.inbox_reads import Free, ReadAhead


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """The event that a message arrives at, or becomes free in, the inbox of ``key``."""

    key: bytes


class Taken(NamedTuple):
    """The messages of one inbox that a transaction holds, and their limit of attempts (0: none)."""

    key: bytes
    ids: list[bytes]
    attempts_max: int


@dataclass(slots=True)
class FoundMessages:
    """The messages that one reap has found, in order.

    Attributes:
        messages: (id, stored).
        size_bytes: the size of the messages.
        is_gapless: whether no other message lies between the first and the last.
        following: the id of the message that comes right after them; empty: it is unknown, or there
            is none.
    """

    messages: list[tuple[bytes, bytes]]
    size_bytes: int
    is_gapless: bool
    following: bytes = b""


@dataclass(slots=True)
class _Claimed:
    """The claims in one inbox.

    Attributes:
        messages: the transaction ids by message id.
        free_mark: the id below which everything is claimed or gone.
        last: the id after which no message is claimed.
        found: the found messages, by transaction.
        gapless: those of them that are gapless, in their order; only the last one may know the
            message that follows after ``last``.
        following: those of them that know the message that follows, by its id.
    """

    messages: dict[bytes, bytes] = field(default_factory=dict)
    free_mark: bytes = b""
    last: bytes = b""
    found: dict[bytes, FoundMessages] = field(default_factory=dict)
    gapless: dict[bytes, FoundMessages] = field(default_factory=dict)
    following: dict[bytes, FoundMessages] = field(default_factory=dict)

    def finds(self, transaction_id: bytes, found: FoundMessages) -> None:
        """Keep what a transaction has found."""
        self.found[transaction_id] = found
        if found.is_gapless:
            self.gapless[transaction_id] = found
            if found.following:
                self.follows_no_more(found.following)
                self.following[found.following] = found

    def drop(self, transaction_id: bytes) -> FoundMessages | None:
        """Drop what a transaction has found, and return it."""
        found = self.found.pop(transaction_id, None)
        if found is not None and found.is_gapless:
            del self.gapless[transaction_id]
            self.following.pop(found.following, None)
        return found

    def follows_no_more(self, id_: bytes) -> None:
        """Forget that this message follows after found ones."""
        found = self.following.pop(id_, None)
        if found is not None:
            found.following = b""

    def arrives(self, first: bytes) -> None:
        """Note that messages arrive, of which ``first`` has the least id.

        They arrive among those found, or after them. Each found message loses its place once,
        however many arrive.
        """
        if first <= self.last:
            for found in self.gapless.values():
                found.is_gapless, found.following = False, b""
            self.gapless.clear()
            self.following.clear()
        elif self.gapless:
            last = next(reversed(self.gapless.values()))
            if first < last.following:
                self.follows_no_more(last.following)


class Claims:
    """The claims of one range. Its length is how many messages are claimed.

    Attributes:
        ahead: the messages that were read and are not claimed.
    """

    def __init__(self) -> None:
        self.ahead = ReadAhead()
        self._inboxes: dict[bytes, _Claimed] = {}
        self._holders: dict[bytes, dict[bytes, list[bytes]]] = {}
        self._attempts_max: dict[tuple[bytes, bytes], int] = {}
        self._found_bytes = 0

    def __len__(self) -> int:
        return sum(len(inbox.messages) for inbox in self._inboxes.values())

    def free(self, key: bytes, oldest: bytes) -> Free:
        """Return where a transaction may take messages of ``key``, none of them twice."""
        inbox = self._inboxes.get(key)
        if inbox is None:
            return Free(oldest, {})
        start = max(oldest, inbox.free_mark)
        return Free(start, {} if start > inbox.last else inbox.messages)

    def held_by(self, transaction_id: bytes, key: bytes) -> int:
        """Return how many messages of ``key`` the transaction holds."""
        return len(self._holders.get(transaction_id, {}).get(key, ()))

    def holder(self, key: bytes, id_: bytes) -> bytes | None:
        """Return the transaction that holds the message, or `None`."""
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
        """Claim ``messages`` (id, stored), the first free ones in order, for a transaction.

        Args:
            key: the key of the inbox.
            transaction_id: the id of the transaction.
            messages: the messages.
            following: the id of the message that comes right after them, if it is known.
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
            inbox.finds(transaction_id, FoundMessages(messages, size_bytes, is_gapless, following))

    def found(self, key: bytes, transaction_id: bytes, ids: list[bytes]) -> FoundMessages | None:
        """Return what a transaction has found, if that is ``ids`` and all of it is still there."""
        held = self._holders.get(transaction_id)
        if held is None or held.get(key) != ids:
            return None
        return self._inboxes[key].found.get(transaction_id)

    def take_found(
        self, key: bytes, transaction_id: bytes, ids: list[bytes]
    ) -> FoundMessages | None:
        """Take what a transaction has found; see ``found``."""
        if self.found(key, transaction_id, ids) is None:
            return None
        return self._drop(self._inboxes[key], transaction_id)

    def gone(self, key: bytes, ids: list[bytes]) -> None:
        """Drop what other transactions have found of reaped messages, so that they read again."""
        if not ids:
            return
        self.ahead.gone(key, ids)
        inbox = self._inboxes.get(key)
        if inbox is not None and inbox.found:
            holders, holder = inbox.messages, self._sole_holder(inbox, key, ids)
            if holder is not None:
                self._drop(inbox, holder)
            else:
                for transaction_id in {holders[id_] for id_ in ids if id_ in holders}:
                    self._drop(inbox, transaction_id)
            if inbox.following:
                for id_ in inbox.following.keys() & ids:
                    inbox.follows_no_more(id_)

    def _sole_holder(self, inbox: _Claimed, key: bytes, ids: list[bytes]) -> bytes | None:
        """Return the transaction that holds these messages and no others of the inbox.

        A commit mostly reaps what its transaction has claimed. Then the messages are treated as one
        run, and not one by one.

        Args:
            inbox: the claims in the inbox.
            key: the key of the inbox.
            ids: the ids of the messages, at least one.
        """
        holder = inbox.messages.get(ids[0])
        return holder if holder is not None and self._holders[holder].get(key) == ids else None

    def taken(self, key: bytes, ids: list[bytes]) -> None:
        """Remove messages that are gone for good, as applied, from all claims.

        The free mark stays, so that the next reap need not step over the messages that others hold.
        """
        self.gone(key, ids)
        inbox = self._inboxes.get(key)
        if inbox is None:
            return
        messages = inbox.messages
        sole = self._sole_holder(inbox, key, ids) if ids else None
        if sole is not None:
            self._holders[sole][key] = []
            if len(ids) == len(messages):
                messages.clear()
            for id_ in ids if messages else ():
                del messages[id_]
        else:
            lost = [id_ for id_ in ids if id_ in messages]
            for holder in {messages.pop(id_) for id_ in lost}:
                held = self._holders[holder]
                held[key] = [id_ for id_ in held[key] if id_ in messages]
        if not messages:
            del self._inboxes[key]

    def _drop(self, inbox: _Claimed, transaction_id: bytes) -> FoundMessages | None:
        found = inbox.drop(transaction_id)
        if found is not None:
            self._found_bytes -= found.size_bytes
        return found

    def arrived(self, first: dict[bytes, bytes]) -> None:
        """Note that messages have arrived: by inbox, the least id.

        It may be below the free mark.
        """
        self.ahead.arrives(first)
        for key, oldest in first.items() if self._inboxes else ():  # in their order
            inbox = self._inboxes.get(key)
            if inbox is not None:
                inbox.free_mark = min(inbox.free_mark, oldest)
                inbox.arrives(oldest)

    def arriving(self, first: dict[bytes, bytes]) -> None:
        """Note that messages arrive with the proposal under evaluation: by inbox, the least id."""
        self.ahead.arrives(first)
        for key, oldest in first.items() if self._inboxes else ():
            inbox = self._inboxes.get(key)
            if inbox is not None:
                inbox.arrives(oldest)

    def release(self, transaction_id: bytes) -> list[object]:
        """Release the claims of a transaction.

        Return the tokens of the inboxes with free messages.
        """
        held = self._holders.pop(transaction_id, {})
        for key, ids in held.items():
            self._attempts_max.pop((transaction_id, key), None)
            if not ids:
                continue
            inbox = self._inboxes[key]
            self._drop(inbox, transaction_id)
            if len(ids) == len(inbox.messages):  # no other transaction holds any
                del self._inboxes[key]
                continue
            for id_ in ids:
                del inbox.messages[id_]
            inbox.free_mark = min(inbox.free_mark, *ids)
        return [Arrival(key) for key in held]

    def pass_on(
        self, transaction_id: bytes, heir: Callable[[], bytes]
    ) -> list[tuple[bytes, Taken]]:
        """Pass the claims of a transaction that has vanished on to heirs; return these, by inbox.

        ``heir`` makes the id of an heir.
        """
        heirs = []
        for key, ids in self._holders.pop(transaction_id, {}).items():
            attempts_max = self._attempts_max.pop((transaction_id, key), 0)
            if not ids:
                continue
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
