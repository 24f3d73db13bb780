"""The sender port: how a client reaches the store, whichever way that is.

The client's logic is written once, as coroutines that await answers. An asyncio sender suspends
them on the event loop; a synchronous one blocks the thread at each answer that is not there yet
(``run_blocking``). Answers that are there at once cost neither.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from postroom.errors import Error

T = TypeVar("T")


class Sender(Protocol):
    """Sends requests and lets time pass.

    Attributes:
        random: for back-off and ids.
    """

    random: random.Random

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """The answer to ``request``, to be awaited once.

        Raises (when awaited):
            DeadlineExceeded: no answer came in time.
            Error: whatever the store says.
        """

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let a time pass."""

    def now(self) -> int | Awaitable[int]:
        """A timestamp above every one so far; a promise of one if somebody must be asked, which
        has been done when this returns.
        """

    def reading(self) -> int:
        """About now, without taking a timestamp: cheap."""

    def monotonic(self) -> float:
        """Seconds since some moment."""


def post(sender: Sender, request: Any) -> None:
    """Sends what ends a use of the leaseholder's memory (locks, claims, protections).

    Nobody waits for the answer, and nothing that goes wrong matters: that memory goes by itself
    when the stream is gone, or after a time. So what ends a block of the application's neither
    takes the place of its exception nor waits for the network.
    """
    with suppress(Error):
        sender.send(request)


class BlockingSender(Sender, Protocol):
    """A sender whose awaitables can be waited for by a thread."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` to its end, blocking whenever it waits."""
