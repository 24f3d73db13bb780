"""Requests that may be repeated: one until it is answered, or chunks, several under way at a time.

If a request may have happened (``CommitUnknown``), or has certainly not (``Retryable``), it is sent
again, until the store answers, for a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from postroom.client.retries import BACKOFF_SECONDS_FIRST
from postroom.client.sender import Sender, has_stopped
from postroom.errors import CommitUnknown, Retryable
from postroom.limits import RETRY_BACKOFF_SECONDS_MAX, RETRY_SECONDS_MAX

UNDER_WAY_AT_ONCE: Final = 4
"""The number of chunks that are on their way to the store while the next one is made."""

Make = Callable[[], Any]
"""A function that makes a request, a new one for each try."""


def _as_it_is(value: Any) -> Any:
    return value


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


class ChunkStream:
    """A stream of requests that are sent one after the other, several under way at a time.

    Only one task may use it.

    Args:
        sender: the client's sender.
        wrap: a function that makes what is sent of what the caller gives, anew for each try.
        answer_of: a function that returns the answer in a reply.

    Attributes:
        is_late: whether the answer to a request was ``False``: the rows came too late to count.
    """

    def __init__(
        self,
        sender: Sender,
        wrap: Callable[[Any], Any] = _as_it_is,
        answer_of: Callable[[Any], Any] = _as_it_is,
    ) -> None:
        self._sender = sender
        self._wrap = wrap
        self._answer_of = answer_of
        self.is_late = False
        self._under_way: deque[tuple[Make, Awaitable[Any] | None]] = deque()

    async def send(self, request: Any) -> None:
        """Send a request; wait for the oldest one if too many are under way.

        Raises:
            Error: an earlier request has failed. Others may have happened.
        """
        make = partial(self._wrap, request)
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
        if self._answer_of(reply) is False:
            self.is_late = True

    async def _outcome(self, make: Make, answer: Awaitable[Any] | None) -> Any:
        if answer is not None:
            with suppress(CommitUnknown, Retryable):
                return await answer
        return await repeated(self._sender, make)


def cut(
    pairs: Iterable[tuple[bytes, bytes]], bytes_max: int, rows_max: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Cut pairs into chunks of so many bytes and rows at most; yield the two lists of each.

    A chunk is larger only if it is a single pair.
    """
    names: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for name, value in pairs:
        more = len(name) + len(value)
        if names and (size + more > bytes_max or len(names) == rows_max):
            yield names, values
            names, values, size = [], [], 0
        names.append(name)
        values.append(value)
        size += more
    if names:
        yield names, values


__all__ = ["UNDER_WAY_AT_ONCE", "ChunkStream", "Make", "cut", "repeated"]
