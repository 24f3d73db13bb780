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
    backoff, lost = BACKOFF_SECONDS_FIRST, Lost()
    while True:
        tx: Transaction | None = None
        try:
            async with begin() as tx:
                if lost.began:
                    await tx.lock_again(lost)
                result = call(tx)
                if type(result) not in AT_REST:
                    result = await completed(result, function or call)
                await _commit_for_sure(sender, tx, give_up + tx.waited_seconds)
        except Retryable as error:
            give_up += 0.0 if tx is None else tx.waited_seconds
            if sender.monotonic() > give_up or has_stopped(sender, error) or _has_committed(tx):
                raise
            is_first = not lost.began
            if tx is not None and tx.has_lost(lost, error) and is_first:
                continue  # the next try waits in line for what this one lost on
            await _back_off(sender, error, backoff)
            backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)
        else:
            return result


def _has_committed(tx: Transaction | None) -> bool:
    """Return whether the function has committed by itself, and met a conflict after that."""
    return tx is not None and tx.commit_timestamp is not None


async def _commit_for_sure(sender: Sender, tx: Transaction, give_up: float) -> None:
    backoff = BACKOFF_SECONDS_FIRST
    while not tx.closed:
        try:
            await tx.finish()
        except CommitUnknown as error:
            if (
                sender.monotonic() > give_up
                or not tx.may_be_told
                or has_stopped(sender, error.__cause__)
            ):
                raise
            await _back_off(sender, error.__cause__ or error, backoff)
            backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)


async def _back_off(sender: Sender, error: BaseException, seconds: float) -> None:
    least = error.retry_after if isinstance(error, Unavailable) else 0.0
    await sender.sleep(max(least, seconds * sender.random.uniform(0.5, 1.0)))
