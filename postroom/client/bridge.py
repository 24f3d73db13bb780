"""Between threads and event loops: a store of the one form, used from the other.

* ``BridgedSender``: a loop uses a synchronous database. A thread waits for each answer.
* ``LoopSender``: a thread uses a transaction of a loop, which runs what it asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

from postroom.client.sender import BlockingSender, Sender
from postroom.ranges.requests import Value

T = TypeVar("T")


class BridgedSender:
    """A ``Sender`` on the running event loop, by way of a blocking one.

    An answer that is being waited for keeps a thread. It cannot be cancelled: who may have to stop
    gives a time-out.

    Args:
        blocking: of a synchronous database.
        threads: where its answers are waited for.
    """

    def __init__(self, blocking: BlockingSender, threads: Executor) -> None:
        self._blocking = blocking
        self._threads = threads
        self.random = blocking.random
        self.next_id = blocking.next_id
        self.patience_seconds = blocking.patience_seconds
        self.reading = blocking.reading
        self.monotonic = blocking.monotonic
        self.try_get = blocking.try_get

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """The answer to ``request``."""
        return self._in_thread(lambda: self._blocking.send(request, timeout_seconds))

    def _in_thread(self, ask: Any) -> Awaitable[Any]:
        async def answer() -> Any:
            return await ask()

        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: self._blocking.run(answer()))
        future.add_done_callback(_looked_at)
        return future

    async def sleep(self, seconds: float) -> None:
        """Let a time pass."""
        await asyncio.sleep(seconds)

    def now(self) -> int | Awaitable[int]:
        """A timestamp."""
        moment = self._blocking.now()
        return moment if isinstance(moment, int) else self._in_thread(lambda: moment)


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Of what was posted nobody asks for the answer."""
    with suppress(asyncio.CancelledError):
        future.exception()


class LoopSender:
    """A ``BlockingSender`` for the synchronous form of a transaction that lives on a loop.

    Args:
        sender: of the loop's database.
        loop: where coroutines are run for the calling thread, which is another one.
    """

    def __init__(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.random = sender.random
        self.next_id = sender.next_id
        self.patience_seconds = sender.patience_seconds
        self.reading = sender.reading
        self.monotonic = sender.monotonic
        self.send = sender.send
        self.sleep = sender.sleep
        self.now = sender.now

    def try_get(self, key: bytes) -> Value | None:
        """Not from this thread: the transaction is the loop's."""
        del key
        return None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` to its end, on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


__all__ = ["BridgedSender", "LoopSender"]
