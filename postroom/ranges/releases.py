"""What releases what is held in the leaseholder's memory: the end of a transaction, its time, or
the end of its client.

::

    commit, rollback ─▶ release_locks ─────────────┐
    its time is over ─▶ release_expired ─┐         ├─▶ whoever waits for it goes on
    its client has gone ─▶ release_client ┴ vanished ┘

A transaction that *vanishes* has ended without a word: its messages were tried in vain. One whose
commit is under way has not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry
from postroom.ranges.waiting import Waiting

CLIENT_HAS_GONE: Final = "its consumer has gone without a word"
TIME_HAS_PASSED: Final = "the time of its consumer's transaction has passed"
_COMMITS_SECONDS: Final = 1.0


class Releases:
    """See the module.

    Args:
        registry: who is told.
        holders: the transactions that hold something.
        waiting: those who wait for it.
        committing: tells the transactions whose commits are under way.
    """

    def __init__(
        self,
        registry: Registry,
        holders: Holders,
        waiting: Waiting,
        committing: Callable[[], Collection[bytes]],
    ) -> None:
        self._registry = registry
        self._holders = holders
        self._waiting = waiting
        self._committing = committing

    def wake(self, tokens: Iterable[object]) -> None:
        """What ``tokens`` stand for may be free: those who are first in line are evaluated."""
        for token in tokens if self._waiting.lines else ():
            self._waiting.wake(token)

    def release_locks(self, transaction_id: bytes) -> None:
        """A transaction has ended: whoever waits for what it locked may go on."""
        if not (self._waiting.lines or self._holders.knows(transaction_id)):
            return  # whatever is taken for a transaction, it is among the holders from then on
        self._holders.release(transaction_id)
        for release in self._registry.on_release:
            tokens = release(transaction_id)
            if tokens:
                self.wake(tokens)

    def release_client(self, client: bytes) -> None:
        """A client has gone: nothing is held for its transactions any more."""
        self._release_vanished(self._holders.of(client), CLIENT_HAS_GONE)
        for client_gone in self._registry.on_client_gone:
            client_gone(client)

    def holds_for(self, client: bytes) -> bool:
        """Whether anything is held for a client, or for its transactions."""
        return bool(self._holders.of(client)) or any(h(client) for h in self._registry.holds)

    def clients_that_hold(self) -> set[bytes]:
        """The clients that hold something by what is stored, whether they are there or not."""
        return {client for holders in self._registry.holders for client in holders()}

    def release_expired(self) -> None:
        """Nothing is held for transactions whose time is over."""
        self._release_vanished(self._holders.take_expired(), TIME_HAS_PASSED)

    def _release_vanished(self, transaction_ids: list[bytes], why: str) -> None:
        committing = self._committing() if transaction_ids else ()
        for transaction_id in transaction_ids:
            if transaction_id in committing:
                # It has not ended without a word: the end of that releases it. If it has none,
                # because the commit is put off and then given up, it is looked at once more.
                self._holders.hold(transaction_id, _COMMITS_SECONDS)
                continue
            for vanished in self._registry.on_vanished:
                vanished(transaction_id, why)
            self.release_locks(transaction_id)
