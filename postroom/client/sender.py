"""The sender port: how a client reaches the store, embedded or remote.

The client's logic is written once, as coroutines that await answers. An asyncio sender suspends
them on the event loop. A synchronous one blocks the thread at each answer that is not there yet
(``run_blocking``). Answers that are there at once cost neither.
"""

from __future__ import annotations

import itertools
import random  # noqa: TID251 - passed in, as an instance
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

from postroom.errors import Error, Unavailable
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue
from postroom.messaging.queues.requests import Attempt, RejectMessages
from postroom.ranges.requests import CommitTransaction, Protect, Unprotect, Value
from postroom.ranges.whole_protections import ProtectWhole, ReleaseWhole

T = TypeVar("T")
Span: TypeAlias = tuple[bytes, bytes | None]

REFUSED_SECONDS_FIRST: Final = 0.05
LONGEST_REFUSED_SECONDS: Final = 2.0
"""The longest pause of a refused client, in seconds; the first one is doubled each time."""


async def send_again(sender: Sender, request: Any, refusal: Unavailable) -> Any:
    """Return the answer to ``request``, sent again while the store has no room for it.

    Args:
        sender: the client's sender.
        request: the request to send.
        refusal: the first refusal.

    Raises:
        Unavailable: the store had no room for ``patience_seconds``; or it has stopped.
    """
    give_up = sender.monotonic() + sender.patience_seconds
    pause = REFUSED_SECONDS_FIRST
    while True:
        wait = max(refusal.retry_after, pause) * sender.random.uniform(0.5, 1.0)
        if sender.monotonic() + wait > give_up or has_stopped(sender, refusal):
            raise refusal
        await sender.sleep(wait)
        pause = min(2 * pause, LONGEST_REFUSED_SECONDS)
        try:
            return await sender.send(request)
        except Unavailable as error:
            refusal = error


def has_stopped(sender: Sender, error: BaseException | None) -> bool:
    """Return whether ``error`` says that an embedded store has stopped.

    Then this process has to open it again, and another request is useless. The store says this by
    asking for a longer pause than ``LONGEST_REFUSED_SECONDS``. Clients need not care about a node
    that has stopped: another one leads then.
    """
    return (
        sender.patience_seconds > 0.0
        and isinstance(error, Unavailable)
        and error.retry_after > LONGEST_REFUSED_SECONDS
    )


class TransactionIds:
    """A generator of transaction ids of a client: 16 bytes, its name and a number that rises.

    A node recognises by this name what the transactions of a client hold; no other client may touch
    it.

    Args:
        client: 8 random bytes that no other client has.
        first: the number that it begins with.

    Attributes:
        draw: returns the next id.
    """

    def __init__(self, client: bytes, first: int = 1) -> None:
        packed = partial(struct.Struct(f">{len(client)}sQ").pack, client)
        # Each transaction draws one, from any thread. No step of it runs in the interpreter.
        self.draw: Callable[[], bytes] = map(packed, itertools.count(first)).__next__

    def __call__(self) -> bytes:
        """Return the next id."""
        return self.draw()


def taken_back_by(sender: Sender, request: Any, result: Any) -> Any:
    """Return the request that undoes an answer which no caller got; ``None``: none is needed.

    The caller was cancelled just when the answer came.
    """
    if result is None:
        return None
    if type(request) is Protect:
        return Unprotect(result)
    if type(request) is ProtectWhole:
        return ReleaseWhole(result)
    if type(request) is ClaimQueue and request.transaction_id is None:
        return given_back(sender.next_id(), sender.reading(), request, result)
    return None


def raise_error(call: Any) -> NoReturn:
    """Raise the error with which a call has ended.

    The call forgets it. The error refers to the frames that it went through, and these refer to the
    call: all of this would stay until the garbage collector runs.

    Args:
        call: a call with an ``_error``, which is not used again.
    """
    error, call._error = call._error, None
    try:
        raise error
    finally:
        del error


def given_back(
    transaction_id: bytes, began: int, request: ClaimQueue, claimed: Claimed
) -> CommitTransaction[Any] | None:
    """Return a transaction that gives back messages which no consumer has seen."""
    if not claimed.messages:
        return None
    attempts = [
        Attempt(*each.locator, each.epoch, fired_at=each.fired_at) for each in claimed.messages
    ]
    write = RejectMessages(request.queue, attempts, delay=0.0, uncounted=True)
    return CommitTransaction(
        transaction_id, began, TRANSACTION_SECONDS_MAX, 0, write.anchor(), [], [], [write]
    )


class KnownRanges(Protocol):
    """The ranges of a store, as far as a client has heard of them."""

    @property
    def are_several(self) -> bool:
        """Return whether the store has several ranges.

        A client of a cluster may hear of a split late. While it is false, a client may leave out
        only what saves ranges a step.
        """


class Sender(Protocol):
    """A port that sends requests and lets time pass.

    Attributes:
        random: for back-off.
        next_id: draws an id for a transaction.
        patience_seconds: how long the client itself repeats requests that were refused for now; 0
            if the sender does this.
    """

    random: random.Random
    next_id: Callable[[], bytes]
    patience_seconds: float

    @property
    def ranges(self) -> KnownRanges:
        """Return the ranges of the store."""

    @property
    def range_of(self) -> Callable[[bytes], int] | None:
        """Return the function that tells the id of the range of a key; 0: it is not known.

        ``None``: one clock has all timestamps, as in an embedded store.
        """

    def range_id(self, key: bytes) -> int:
        """Return the id of the range of a key; 0: it is not known."""

    def span_of(self, key: bytes) -> Span | None:
        """Return the span of the range of a key; ``None``: it is not known, or all keys."""

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Return an awaitable of the answer to ``request``, to be awaited once.

        The await raises ``DeadlineExceeded`` if no answer came in time, or an ``Error`` of the
        store.
        """

    def try_get(self, key: bytes) -> Value | None:
        """Return the newest value of ``key`` if it is here, as usual in an embedded store.

        ``None``: a ``Get`` must be sent.
        """

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep."""

    def now(self) -> int | Awaitable[int]:
        """Return a timestamp above every commit so far and below every later one.

        If the store must be asked, return an awaitable of one; the request is sent when this
        returns.
        """

    def reading(self) -> int:
        """Return about now, without taking a timestamp: cheap."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""


async def present(sender: Sender) -> int:
    """Return a timestamp above every commit so far and below every later one."""
    now = sender.now()
    return now if isinstance(now, int) else await now


def post(sender: Sender, request: Any) -> None:
    """Send a request that ends a use of the leaseholder's memory (locks, claims, protections).

    No caller waits for the answer, and failures do not matter: that memory is freed when the stream
    is gone, or after a time. Thus the end of a block of the application neither replaces its
    exception nor waits for the network.
    """
    with suppress(Error):
        sender.send(request)


class WaitEnded(Exception):
    """An error in a thread whose wait another thread has ended."""


class WaitHandle:
    """A handle by which another thread ends a wait of a running coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Any = None
        self._error: BaseException | None = None

    def end(self, error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits, or will wait next; from any thread."""
        with self._lock:
            self._error, waiting = error, self._waiting
        end_wait = getattr(waiting, "end_wait", None)
        if end_wait is not None:
            end_wait(error)

    def waits_for(self, waiting: Any) -> None:
        """Note that the coroutine is about to wait.

        Raises:
            the error that was to be raised, unless the last wait has raised it.
        """
        with self._lock:
            self._waiting = waiting
            error, self._error = self._error, None
        if error is not None and error.__traceback__ is None:
            raise error


class BlockingSender(Sender, Protocol):
    """A sender whose awaitables can be waited for by a thread."""

    def run(self, coroutine: Coroutine[Any, Any, T], waiter: WaitHandle | None = None) -> T:
        """Run ``coroutine`` to its end, and block whenever it waits.

        Args:
            coroutine: the coroutine to run.
            waiter: by which another thread can end a wait.
        """
