"""Requests that may be repeated: one until it is answered, or many, several under way at a time.

If a request may have happened (``CommitUnknown``), or has certainly not (``Retryable``), it is sent
again, until the store answers, for a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from postroom.client.retries import BACKOFF_SECONDS_FIRST
from postroom.client.sender import Sender, has_stopped
from postroom.errors import CommitUnknown, Retryable
from postroom.limits import RETRY_BACKOFF_SECONDS_MAX, RETRY_SECONDS_MAX

UNDER_WAY_AT_ONCE: Final = 4
"""The number of chunks that are on their way to the store while the next one is made."""

Make = Callable[[], Any]
"""A function that makes a request, a new one for each attempt."""


async def repeated(sender: Sender, make: Make) -> Any:
    """Return the answer to a request that may be repeated.

    Args:
        sender: the client's sender.
        make: makes the request.

    Raises:
        CommitUnknown, Unavailable, TransactionConflict: it could not be done for a minute.
        Error: nothing was changed.
    """
    give_up = sender.monotonic() + RETRY_SECONDS_MAX
    backoff = BACKOFF_SECONDS_FIRST
    while True:
        try:
            return await sender.send(make())
        except (CommitUnknown, Retryable) as error:
            if sender.monotonic() > give_up or has_stopped(sender, error):
                raise
            await sender.sleep(backoff * sender.random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)


class Chunks:
    """Requests that are sent one after the other. Only one task may use the object.

    Args:
        sender: the client's sender.
        told: called with each answer, in order.
    """

    def __init__(self, sender: Sender, told: Callable[[Any], None] | None = None) -> None:
        self._sender = sender
        self._told = told
        self._under_way: deque[tuple[Make, Awaitable[Any] | None]] = deque()

    async def send(self, make: Make) -> None:
        """Send a request; wait for the oldest one if too many are under way.

        Raises:
            Error: an earlier request has failed. Others may have happened.
        """
        self._under_way.append((make, self._sender.send(make())))
        if len(self._under_way) > UNDER_WAY_AT_ONCE:
            await self._answered()

    async def flush(self) -> None:
        """Wait for all requests.

        Raises:
            Error: a request has failed.
        """
        while self._under_way:
            await self._answered()

    async def _answered(self) -> None:
        make, answer = self._under_way[0]
        self._under_way[0] = make, None  # if this is cancelled, the request is sent again
        try:
            reply = await self._outcome(make, answer)
        except Exception:
            self._under_way.popleft()
            raise
        self._under_way.popleft()
        if self._told is not None:
            self._told(reply)

    async def _outcome(self, make: Make, answer: Awaitable[Any] | None) -> Any:
        if answer is not None:
            with suppress(CommitUnknown, Retryable):
                return await answer
        return await repeated(self._sender, make)


__all__ = ["UNDER_WAY_AT_ONCE", "Chunks", "Make", "repeated"]
