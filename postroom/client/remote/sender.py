"""The senders of a remote database: on the caller's event loop, or beside any number of threads.

::

    threads ── send ──▶ deque ── one wake-up for many ──▶ event loop of the one background thread
                                                           router ─▶ streams
            ◀─────────────────── each by its own lock ────

The process has one background thread for all databases. It stays: another connection costs no
thread.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251 - passed in, as an instance
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from postroom.client.blocking import Sleep, run_blocking
from postroom.client.remote.connection import Streams
from postroom.client.remote.tls_files import TLS
from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.router import Router
from postroom.client.sender import TransactionIds, raise_error, taken_back_by
from postroom.errors import DatabaseClosed, Invalid
from postroom.kv import forks
from postroom.kv.clock import SystemClock
from postroom.protocol.streams import OnBehalf
from postroom.ranges.requests import Now

T = TypeVar("T")

QUIET_CHECK_SECONDS: Final = 0.005
_CLOSED: Final = "the database was closed; nothing was changed: connect again"


class _Awaited(RemoteCall):
    """A request and its answer, awaited once on the event loop."""

    __slots__ = ("_error", "_future", "_result", "_sender")

    def __init__(self, sender: AsyncioSender, request: Any, timeout_seconds: float | None) -> None:
        super().__init__(request, timeout_seconds)
        self._sender = sender
        self._error: BaseException | None = None
        self._result: Any = None
        self._future: asyncio.Future[None] | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._result = result
        self._error = error
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            self._future = future = self._sender.new_future()
            try:
                yield from future
            except BaseException:
                self._sender.cancel(self)
                raise
        if self._error is not None:
            raise_error(self)
        return self._result


class AsyncioSender:
    """A ``Sender`` on the running event loop, which carries the router as well.

    Attributes:
        router: decides everything.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: TLS | None,
        token: str | None,
        randomness: random.Random,
        request_seconds: float,
        on_behalf: OnBehalf | None = None,
    ) -> None:
        self.random = randomness
        self.patience_seconds = 0.0  # the router is patient
        self.loop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[None]] = partial(
            asyncio.Future, loop=self.loop
        )
        self.monotonic = SystemClock.monotonic  # for transactions; the router goes by the loop
        self._streams = Streams(tls, token, on_behalf)
        self.router = self._streams.router = Router(
            addresses, self._streams, self.loop.time, randomness, request_seconds=request_seconds
        )
        self.reading = self.router.reading
        self.ranges = self.router.ranges
        self.range_of = self.range_id = self.router.range_of
        self.span_of = self.router.span_of
        self.next_id = TransactionIds(self.router.client).draw
        self._submit = self.router.submit
        self._refusal = ""
        self.router.start()
        forks.mind(self)

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Return an awaitable of the answer to ``request``."""
        if self._refusal:
            raise DatabaseClosed(self._refusal)
        answer = _Awaited(self, request, timeout_seconds)
        self._submit(answer)
        return answer

    def cancel(self, answer: _Awaited | _Blocking) -> None:
        """Cancel a request, whose caller has gone; give back messages that it has just received."""
        self.router.cancel(answer)
        request = taken_back_by(self, answer.request, answer._result)
        if request is not None:
            with suppress(Invalid):  # the database is closed
                self.send(request)

    def try_get(self, key: bytes) -> None:
        """Return ``None``: this client keeps no values."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    def now(self) -> Awaitable[int]:
        """Return an awaitable of a timestamp from the leaseholder."""
        return self.send(Now())

    async def close(self) -> None:
        """Finish what is under way, unless it is cancelled; idempotent."""
        if self._refusal:
            return
        self._refusal = _CLOSED
        try:
            while not self.router.is_quiet():
                await asyncio.sleep(QUIET_CHECK_SECONDS)
        finally:
            self.abort()
        await self._streams.closed()

    def abort(self) -> None:
        """Finish nothing."""
        self._refusal = self._refusal or _CLOSED
        self.router.close()

    def forked(self) -> None:
        """Refuse all calls in the child of a fork, which has its parent's identity and sockets."""
        self._refusal = forks.refusal("connected", "connect")


class _Blocking(RemoteCall):
    """A request and its answer, waited for by one thread."""

    __slots__ = ("_answered", "_error", "_result", "_sender", "_woken")

    def __init__(self, sender: ThreadSender, request: Any, timeout_seconds: float | None) -> None:
        super().__init__(request, timeout_seconds)
        self._sender = sender
        self._result: Any = None
        self._error: BaseException | None = None
        self._answered = False
        self._woken: threading.Lock | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Receive the answer, in the background thread."""
        self._result = result
        self._error = error
        self._answered = True  # before it looks at the lock: a waiting thread does the opposite
        if self._woken is not None:
            self._woken.release()

    def wait(self) -> None:
        """Block until the answer is there."""
        woken = threading.Lock()
        woken.acquire()
        self._woken = woken
        if not self._answered:
            woken.acquire()

    def end_wait(self, error: BaseException) -> None:
        """Raise ``error`` in the thread that waits, unless the answer comes first."""
        self._sender.end_wait(self, error)

    def __await__(self) -> Generator[_Blocking, None, Any]:
        if not self._answered:
            try:
                yield self
            except BaseException:  # an interrupt, anywhere in ``wait``, or after it
                self._sender.cancel(self)
                raise
        if self._error is not None:
            raise_error(self)
        return self._result


class _Wait:
    """An awaitable for which a thread waits."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait

    def __await__(self) -> Generator[_Wait, None, None]:
        yield self


class ThreadSender:
    """A ``BlockingSender`` for any number of threads; the background thread carries the router.

    Args:
        create: makes the sender on the background thread's event loop.
    """

    def __init__(self, create: Callable[[], AsyncioSender], randomness: random.Random) -> None:
        self.random = randomness
        self.patience_seconds = 0.0
        self._create = create
        self._requests: deque[_Blocking] = deque()
        self._called = False
        self._refusal = ""
        self._stopped = threading.Event()
        self._loop = _background_loop()
        self._sender: AsyncioSender

    def start(self, connected: Callable[[AsyncioSender], Coroutine[Any, Any, None]]) -> None:
        """Create the sender, and wait until ``connected`` has ended.

        Raises:
            whatever it raises.
        """
        try:
            self._on_loop(self._begin(connected))
        except BaseException:
            self._end(abort=True)
            raise
        forks.mind(self)

    async def _begin(self, connected: Callable[[AsyncioSender], Coroutine[Any, Any, None]]) -> None:
        self._sender = sender = self._create()
        self.monotonic = sender.monotonic
        self.reading = sender.reading
        self.ranges, self.range_of = sender.ranges, sender.range_of
        self.range_id = sender.range_id
        self.span_of = sender.span_of
        self.next_id = sender.next_id
        await connected(sender)

    # --- a sender

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Return an awaitable of the answer to ``request``."""
        if self._refusal:
            raise DatabaseClosed(self._refusal)
        answer = _Blocking(self, request, timeout_seconds)
        self._requests.append(answer)
        try:
            self._call()
        except BaseException:  # an interrupt: no thread will wait for it
            self.cancel(answer)
            raise
        return answer

    def _call(self) -> None:
        if not self._called:  # callers that come until it has run are taken along
            try:
                self._called = True
                self._loop.call_soon_threadsafe(self._take_in)
            except BaseException:  # an interrupt: else all callers would wait for this one call
                self._called = False
                raise

    def _take_in(self) -> None:
        self._called = False
        requests, submit = self._requests, self._sender.router.submit
        while requests:
            submit(requests.popleft())

    def cancel(self, answer: _Blocking) -> None:
        """Cancel a request, whose caller has gone."""
        self._loop.call_soon_threadsafe(self._cancel, answer)

    def end_wait(self, answer: _Blocking, error: BaseException) -> None:
        """End the wait for ``answer``, from another thread."""
        self._loop.call_soon_threadsafe(self._end_wait, answer, error)

    def _end_wait(self, answer: _Blocking, error: BaseException) -> None:
        self._take_in()  # it may be among those
        if not (answer.done or answer.is_commit):  # the outcome of a commit is told soon
            self._sender.router.cancel(answer)
            answer.complete(None, error)

    def _cancel(self, answer: _Blocking) -> None:
        self._take_in()  # it may be among those
        self._sender.cancel(answer)

    def try_get(self, key: bytes) -> None:
        """Return ``None``: this client keeps no values."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep; closing the database ends it."""
        return Sleep(self._stopped, seconds)

    def now(self) -> Awaitable[int]:
        """Return an awaitable of a timestamp from the leaseholder."""
        return self.send(Now())

    run = staticmethod(run_blocking)

    async def close(self) -> None:
        """Finish what is under way; idempotent."""
        if not self._refusal:
            self._refusal = _CLOSED
            self._stopped.set()
            await _Wait(lambda: self._end(abort=False))

    # --- the background thread

    def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end(self, *, abort: bool) -> None:
        self._on_loop(self._finish(abort=abort))

    async def _finish(self, *, abort: bool) -> None:
        sender = getattr(self, "_sender", None)
        if sender is None:
            return
        self._take_in()
        if abort:
            sender.abort()
        await sender.close()

    def forked(self) -> None:
        """Refuse all calls in the child of a fork, where the background thread does not exist."""
        self._refusal = forks.refusal("connected", "connect")


# --- the background thread

_starting = threading.Lock()
_background: asyncio.AbstractEventLoop | None = None


def _background_loop() -> asyncio.AbstractEventLoop:
    global _background  # noqa: PLW0603 - one for the process
    with _starting:
        if _background is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_run, args=(loop,), name="postroom-client", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no thread is left: else all callers would wait for one
                loop.close()
                raise
            _background = loop
        return _background


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _after_fork() -> None:
    """Reset the child, which has none of the threads: its first connection starts one."""
    global _background, _starting
    _background, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
