"""Commits that wait for locks which others hold on what they write.

::

    evaluated ── another transaction has locked what it writes ── MustWait ──▶ in line for the lock
        ▲                                                                            │
        └── evaluated again, with the commits right behind it ◀── the lock is free ──┤
                                              told, and nothing was changed ◀────────┘
                                              its time is over, it is wounded, it has lost anyway

A commit does not take the lock for which it has waited: a thousand that write one key go together
into the next proposal. Those behind one that wants the lock for itself go after that. Only if it
meets a second lock does a commit lock what it writes, key by key, so that it comes to an end.

While commits are paused, since a split has to come first, all of them stand in one line.

A commit whose transaction has read the key has lost when the key changes. It is told at once,
wherever it stands: its next try asks for the lock, and stands in line for that only.

Evaluating answers nobody (:mod:`.replica`). A commit that must wait is therefore put in line when
its proposal has ended. By then the lock may be free again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from postroom.errors import TransactionConflict, TransactionTooLarge, Unavailable, shorten
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.limits import LOCK_WAIT_SECONDS_MAX
from postroom.ranges.admission import FairQueue
from postroom.ranges.calls import Call
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.locks import LockTable, Token
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Host, Registry
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.waiting import COMMITS_ARE_PAUSED, Deadlines

_FEW: Final = 256


class CommitWaits:
    """The commits that wait for locks; see the module.

    Args:
        reads: the replica's reads, which have the lines.
        holders: the transactions that hold something.
        host: the node.
        queue: the commands that are evaluated next.
        release: a function that frees what a transaction holds.

    Attributes:
        locks: the locks for which commits wait.
        is_paused: whether commits wait for a moment, because a split has to come first.
        calls: the commits that wait, by the identity of their requests: a client may send one
            twice. Only to look at; while there are none nothing of this costs anything.
    """

    def __init__(
        self,
        reads: LocalReads,
        holders: Holders,
        host: Host,
        queue: FairQueue,
        release: Callable[[bytes], None],
    ) -> None:
        self._waiting = reads.waiting
        self._reads = reads
        self.locks = self._locks = LockTable(reads.waiting)
        self._holders = holders
        self._monotonic = host.monotonic
        self._host = host
        self._queue = queue
        self._release = release
        self.is_paused = False
        self.calls: dict[int, Call] = {}
        # The commits in line that have read the key for which they wait, by the engine's key of
        # that; and that key, by the identity of their requests.
        self._readers: dict[bytes, dict[int, Call]] = {}
        self._has_read: dict[int, bytes] = {}
        self._deadlines: Deadlines[int] = Deadlines()

    def __len__(self) -> int:
        return len(self._deadlines)

    def register(self, registry: Registry) -> None:
        """Register the count of the commits that wait."""
        registry.sizes["commits that wait for locks"] = self.__len__

    # --- in line

    def park(self, call: Call) -> None:
        """Put a commit in line, which had to wait in a proposal that has ended by now."""
        request, locks = call.request, self._locks
        if call.cancelled:
            self.refuse(call, withdrawn())
            return
        has_waited = id(request) in self.calls
        if not has_waited:
            self.calls[id(request)] = call
            self._deadlines.set(id(request), self._monotonic() + LOCK_WAIT_SECONDS_MAX)
        if self.is_paused:
            self._stand_in_line(call, COMMITS_ARE_PAUSED)
            return
        blocker = self.blocker(request, takes=has_waited)
        while blocker is not None:
            locks.wait(request, blocker, request.began)
            victim = locks.youngest_of_circle(request.transaction_id)
            if victim is None:
                locks.passing.discard(request.transaction_id)
                self._stand_in_line(call, blocker)
                return
            locks.waits_no_more(request)
            if victim == request.transaction_id:
                self.refuse(call, wounded(blocker))
                return
            self.wound(victim)
            blocker = self.blocker(request, takes=has_waited)
        self._evaluate(call)

    def _stand_in_line(self, call: Call, token: Token | str) -> None:
        request = call.request
        self._forget_reader(request)
        self._waiting.park(call, token)
        if self._waiting.is_looked_at_later(call):
            return  # it has left another line, and this one is free since: it is evaluated
        if isinstance(token, bytes) and _is_among_few(token, request):
            if self._has_lost(request, token):
                self.refuse(call, _lost(token))
                return
            self._has_read[id(request)] = head = keys.head_key(token)
            self._readers.setdefault(head, {})[id(request)] = call

    def hear(self, written: WriteSet) -> None:
        """Refuse the commits in line that had read what a proposal has written."""
        if not self._readers:
            return
        for head in sorted(self._readers.keys() & written.keys()):
            for call in list(self._readers.get(head, {}).values()):
                token: Any = call.token
                if self._waiting.is_looked_at_later(call):
                    continue  # it is evaluated, and finds out
                if self._has_lost(call.request, token):
                    self.refuse(call, _lost(token))

    def _forget_reader(self, request: object) -> None:
        head = self._has_read.pop(id(request), None)
        if head is not None:
            del self._readers[head][id(request)]
            if not self._readers[head]:
                del self._readers[head]

    def blocker(self, request: CommitTransaction[Any], *, takes: bool = False) -> Token | None:
        """Return what a commit must wait for; ``None``: nothing.

        Args:
            request: the commit.
            takes: whether it locks what it writes, up to there.
        """
        locks, transaction_id = self._locks, request.transaction_id
        for write in request.writes:
            token = write.touches()
            if token is None:
                continue
            if takes:
                try:
                    found = locks.acquire(token, transaction_id)
                except (TransactionTooLarge, Unavailable):  # it goes on as one that takes none
                    takes, found = False, locks.blocker(token, transaction_id)
                if locks.locks_since(transaction_id) is not None:
                    self._holders.hold(transaction_id, request.seconds_max)
            else:
                found = locks.blocker(token, transaction_id)
            if found is not None:
                return found
        return None

    def _evaluate(self, call: Call) -> None:
        """Have it evaluated with the next turn. It keeps its place in line."""
        self._locks.passing.add(call.request.transaction_id)
        self._locks.waits_no_more(call.request)
        self._waiting.look_later(call)
        self._queue.append(call)
        self._host.wake(urgent=True)

    # --- out of it

    def look(self, first: Call) -> None:
        """Evaluate ``first``, a commit at the head of a line, and those right behind it."""
        token: Any = first.token
        holder = self._locks.holder(token)
        if holder is not None and holder != first.request.transaction_id:
            return
        for call in list(self._waiting.lines[token]):
            if type(call.request) is not CommitTransaction or call.token != token:
                return
            if self._waiting.is_looked_at_later(call):
                continue
            self._evaluate(call)

    def _has_lost(self, request: CommitTransaction[Any], key: bytes) -> bool:
        """Return whether a key has changed since the commit's transaction read it."""
        head = self._reads.newest(key)
        return head is not None and head[1:9] > request.read_timestamp.to_bytes(8, "big")

    def answered(self, call: Call) -> None:
        """Look at those behind a commit that has waited, and was told its end."""
        self.given_up(call.request)
        token = self._waiting.leave(call)
        if token is not None:
            self._waiting.wake(token)

    def refuse(self, call: Call, error: Exception) -> None:
        """End a call that waits in line, without having changed anything."""
        self._locks.waits_no_more(call.request)
        token, is_commit = call.token, type(call.request) is CommitTransaction
        if is_commit:
            self.given_up(call.request)
            self._waiting.leave(call)
        else:
            self._reads.cancel(call)
            call.cancelled = True  # it may be among those that are taken again just now
        call.complete(None, error)
        if token is not None:
            self._waiting.wake(token)

    def wound(self, transaction_id: bytes) -> None:
        """Take from the youngest transaction of a circle its locks, and its requests that wait."""
        for token in self._locks.waited_for(transaction_id):
            for call in list(self._waiting.lines.get(token, ())):
                if call.request.transaction_id == transaction_id and call.token == token:
                    self.refuse(call, wounded(token))
        self._release(transaction_id)

    def given_up(self, request: object) -> None:
        """Forget a commit that is waited for no more."""
        if isinstance(request, CommitTransaction):
            self._deadlines.cancel(id(request))
            self.calls.pop(id(request), None)
            self._forget_reader(request)
            self._locks.passing.discard(request.transaction_id)
            self._locks.waits_no_more(request)
            self._release(request.transaction_id)  # the locks that it took while it waited

    # --- time

    def next_deadline(self) -> float | None:
        """Return when the first of them has waited for too long."""
        return self._deadlines.first()

    def expire(self) -> None:
        """Refuse those that have waited for too long."""
        for number in self._deadlines.take_due(self._monotonic()):
            call = self.calls[number]
            if call.token is None or self._waiting.is_looked_at_later(call):  # it is evaluated now
                self._deadlines.set(number, self._monotonic() + 1.0)
            else:
                self.refuse(call, too_late(call.token))

    def clear(self) -> None:
        """Forget all commits that wait, and that they are paused: the next lease begins afresh."""
        self.is_paused = False
        self._deadlines.clear()
        for each in (self.calls, self._readers, self._has_read):
            each.clear()


def _is_among_few(key: bytes, request: CommitTransaction[Any]) -> bool:
    """Return whether a transaction has read a key, and few others. Many are not searched."""
    return len(request.reads) <= _FEW and bool(request.read_timestamp) and key in request.reads


def _named(token: object) -> str:
    if isinstance(token, bytes):
        return shorten(token)
    return f"the span {token!r:.100}"


def _keys_of(token: object) -> tuple[bytes, ...]:
    return (token,) if isinstance(token, bytes) else ()


def wounded(token: object) -> TransactionConflict:
    """Return the error for the youngest of a circle."""
    return TransactionConflict(
        f"an older transaction has locked {_named(token)} and waits for what this one has locked; "
        "nothing was changed: try again (run() does)",
        keys=_keys_of(token),
    )


def locked(token: object) -> TransactionConflict:
    """Return the error for a commit that may not wait for a lock."""
    return TransactionConflict(
        f"another transaction has locked {_named(token)}, which this one writes; nothing was "
        "changed: try again (run() does)",
        keys=_keys_of(token),
    )


def withdrawn() -> TransactionConflict:
    """Return the error for a commit that is waited for no more."""
    return TransactionConflict("the commit was withdrawn; nothing was changed")


def too_late(token: object) -> TransactionConflict:
    """Return the error after the longest wait."""
    return TransactionConflict(
        f"another transaction has locked {_named(token)}, and did not end within "
        f"{LOCK_WAIT_SECONDS_MAX:g} s; nothing was changed: try again (run() does)",
        keys=_keys_of(token),
    )


def _lost(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"another transaction changed {shorten(key)} after this one had read it; nothing was "
        "changed: try again (run() does)",
        keys=(key,),
    )
