"""Tries of a transaction until it is committed: the core of ``run``.

::

    begin ── call ── commit ─┬─ committed ──────────────────────────────▶ what the call returned
      ▲                      ├─ Retryable: nothing happened ─┐
      └─ lock what it lost ◀─┼───────────────────────────────┘   for a minute
         on, or back-off     │
                             ├─ CommitUnknown ── commit again, with the same id, until that tells
                             └─ anything else ──────────────────────────▶ raised

A function may end its transaction itself. Once it has committed it is not called again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from postroom.client.commits import BACKOFF_SECONDS_FIRST, Lost
from postroom.client.functions import AT_REST, completed
from postroom.client.sender import Sender, has_stopped
from postroom.client.transaction import Transaction
from postroom.errors import CommitUnknown, Retryable, Unavailable
from postroom.limits import RETRY_BACKOFF_SECONDS_MAX, RETRY_SECONDS_MAX


async def repeat(
    sender: Sender,
    begin: Callable[[], Transaction],
    call: Callable[[Transaction], Any],
    function: Any = None,
) -> Any:
    """Return what ``call`` returns, in a transaction that is committed.

    Args:
        sender: lets time pass.
        begin: makes a transaction.
        call: is given the transaction; it may return an awaitable, which is awaited.
        function: the user's function, which ``call`` calls; ``None``: ``call`` itself.

    Raises:
        TypeError: the result still has to run; nothing was changed.
        whatever ``call`` raises, and errors that another try cannot help.
    """
    give_up = sender.monotonic() + RETRY_SECONDS_MAX
    failed: _FailedTries | None = None
    while True:
        tx: Transaction | None = None
        try:
            tx = begin()
            if failed is not None and failed.lost.began:
                await tx.lock_again(failed.lost)
            result = call(tx)
            if type(result) is CoroutineType:  # the usual case
                result = await result
            if type(result) not in AT_REST:
                result = await completed(result, function or call)
            if tx.closed:
                tx.let_go(None)
            else:
                await _finish(sender, tx, give_up)
            return result
        except BaseException as error:
            if tx is not None:
                tx.let_go(error)
                give_up += tx.waited_seconds
            if (
                not isinstance(error, Retryable) or sender.monotonic() > give_up
                or has_stopped(sender, error) or _has_committed(tx)
            ):  # fmt: skip
                raise
            failed = failed or _FailedTries(sender)
            await failed.rest(tx, error)


async def _finish(sender: Sender, tx: Transaction, give_up: float) -> None:
    """Commit, and ask again for an unknown outcome.

    It is no part of ``repeat``: there an interrupt at the beginning of an inner block would be
    caught by neither block.
    """
    try:
        await tx.finish()
    except CommitUnknown as unknown:
        await _commit_again(sender, tx, give_up + tx.waited_seconds, unknown)


class _FailedTries:
    """The failed tries of a transaction.

    Attributes:
        lost: the keys and spans that they have lost on.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._backoff = BACKOFF_SECONDS_FIRST
        self.lost = Lost()

    async def rest(self, tx: Transaction | None, error: Retryable) -> None:
        """Note another one, and pause before the next, unless that waits in line for what it lost.

        Args:
            tx: the transaction of the try; ``None``: it did not begin.
            error: the error that ended it.
        """
        is_first = not self.lost.began
        if tx is not None and tx.has_lost(self.lost, error) and is_first:
            return
        await _back_off(self._sender, error, self._backoff)
        self._backoff = min(2 * self._backoff, RETRY_BACKOFF_SECONDS_MAX)


def _has_committed(tx: Transaction | None) -> bool:
    """Return whether the function has committed by itself, and met a conflict after that."""
    return tx is not None and tx.commit_timestamp is not None


async def _commit_again(
    sender: Sender, tx: Transaction, give_up: float, unknown: CommitUnknown
) -> None:
    """Commit until the outcome is known, after a commit that did not tell it."""
    backoff = BACKOFF_SECONDS_FIRST
    while True:
        why = unknown.__cause__
        if sender.monotonic() > give_up or not tx.may_be_told or has_stopped(sender, why):
            raise unknown
        await _back_off(sender, why or unknown, backoff)
        backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)
        if tx.closed:
            return
        try:
            await tx.finish()
        except CommitUnknown as error:
            unknown = error
        else:
            return


async def _back_off(sender: Sender, error: BaseException, seconds: float) -> None:
    least = error.retry_after if isinstance(error, Unavailable) else 0.0
    await sender.sleep(max(least, seconds * sender.random.uniform(0.5, 1.0)))
