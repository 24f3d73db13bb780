"""Trying a transaction until it is committed: what ``run`` is made of.

::

    begin ── call ── commit ─┬─ committed ──────────────────────────────▶ what the call returned
      ▲                      ├─ Retryable: nothing happened ─┐
      └──────── back-off ◀───┼───────────────────────────────┘   for a minute
                             ├─ CommitUnknown ── commit again, with the same id, until that tells
                             └─ anything else ──────────────────────────▶ raised
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final

from postroom.client.sender import Sender, has_stopped
from postroom.client.transaction import Transaction
from postroom.errors import CommitUnknown, Retryable, Unavailable
from postroom.limits import RETRY_BACKOFF_SECONDS_MAX, RETRY_SECONDS_MAX

BACKOFF_SECONDS_FIRST: Final = 0.001


async def repeat(
    sender: Sender, begin: Callable[[], Transaction], call: Callable[[Transaction], Any]
) -> Any:
    """What ``call`` returns, in a transaction that is committed.

    Args:
        sender: lets time pass.
        begin: makes a transaction.
        call: is given it; may return an awaitable, which is awaited.

    Raises:
        whatever ``call`` raises, and what cannot be helped by trying again.
    """
    give_up = sender.monotonic() + RETRY_SECONDS_MAX
    backoff = BACKOFF_SECONDS_FIRST
    while True:
        tx: Transaction | None = None
        try:
            async with begin() as tx:
                result = call(tx)
                if isawaitable(result):
                    result = await result
                await _commit_for_sure(sender, tx, give_up + tx.waited_seconds)
        except Retryable as error:
            give_up += 0.0 if tx is None else tx.waited_seconds
            if sender.monotonic() > give_up or has_stopped(sender, error):
                raise
            await _back_off(sender, error, backoff)
            backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)
        else:
            return result


async def _commit_for_sure(sender: Sender, tx: Transaction, give_up: float) -> None:
    backoff = BACKOFF_SECONDS_FIRST
    while not tx.closed:
        try:
            await tx.commit()
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
