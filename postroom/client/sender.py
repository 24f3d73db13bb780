"""The sender port: how a client reaches the store, whichever way that is.

The client's logic is written once, as coroutines that await answers. An asyncio sender suspends
them on the event loop; a synchronous one blocks the thread at each answer that is not there yet
(``run_blocking``). Answers that are there at once cost neither.
"""

from __future__ import annotations

import itertools
import random  # noqa: TID251 - passed in, as an instance
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar

from postroom.errors import Error, Unavailable
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.requests import Attempt, Claimed, ClaimQueue, Reject
from postroom.ranges.requests import CommitTransaction, Protect, Unprotect, Value

T = TypeVar("T")

REFUSED_SECONDS_FIRST: Final = 0.05
LONGEST_REFUSED_SECONDS: Final = 2.0
"""How long a client that was refused waits before it tries again; doubled each time."""


async def send_again(sender: Sender, request: Any, refusal: Unavailable) -> Any:
    """The answer to ``request``, which is sent again while the store has no room for it.

    Args:
        sender: of the client.
        request: what to send.
        refusal: what it was told the first time.

    Raises:
        Unavailable: it had none for ``patience_seconds``; or it has stopped.
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
    """Whether an embedded store has stopped, as ``error`` says: this process has to open it again,
    and asking it once more is of no use.

    It says so by asking for a longer pause than ``LONGEST_REFUSED_SECONDS``. A node that has
    stopped is no matter of its clients: another one leads then.
    """
    return (
        sender.patience_seconds > 0.0
        and isinstance(error, Unavailable)
        and error.retry_after > LONGEST_REFUSED_SECONDS
    )


class TransactionIds:
    """Draws the ids of a client's transactions: 16 bytes, its name and a number that rises.

    A node lets nobody touch what the transactions of other clients hold; it knows them by this.

    Args:
        client: 8 random bytes that no other client has.
        first: the number that it begins with.

    Attributes:
        draw: answers the next one.
    """

    def __init__(self, client: bytes, first: int = 1) -> None:
        packed = partial(struct.Struct(f">{len(client)}sQ").pack, client)
        # Each transaction draws one, from any thread: so no step of it is one of the interpreter's.
        self.draw: Callable[[], bytes] = map(packed, itertools.count(first)).__next__

    def __call__(self) -> bytes:
        """The next one."""
        return self.draw()


def taken_back_by(sender: Sender, request: Any, result: Any) -> Any:
    """What takes back the answer to ``request`` that nobody got: who waited was cancelled just when
    it came. ``None``: nothing need be.
    """
    if result is None:
        return None
    if type(request) is Protect:
        return Unprotect(result)
    if type(request) is ClaimQueue and request.transaction_id is None:
        return given_back(sender.next_id(), sender.reading(), request, result)
    return None


def raise_error(call: Any) -> NoReturn:
    """Raises what a call has ended with.

    The call forgets it: the error knows the frames that it went through, these know the call, and
    all of that would stay until the garbage collector comes.

    Args:
        call: with an ``_error``; nobody asks it again.
    """
    error, call._error = call._error, None
    try:
        raise error
    finally:
        del error


def given_back(
    transaction_id: bytes, began: int, request: ClaimQueue, claimed: Claimed
) -> CommitTransaction[Any] | None:
    """A transaction that gives messages back which nobody has seen."""
    if not claimed.messages:
        return None
    attempts = [
        Attempt(each.key, each.kind, each.id, each.epoch, fired_at=each.fired_at)
        for each in claimed.messages
    ]
    write = Reject(request.queue, attempts, delay=0.0, uncounted=True)
    return CommitTransaction(
        transaction_id, began, TRANSACTION_SECONDS_MAX, 0, write.key, [], [], [write]
    )


class Sender(Protocol):
    """Sends requests and lets time pass.

    Attributes:
        random: for back-off.
        next_id: draws an id for a transaction.
        patience_seconds: for how long the client itself tries again what was refused for now; 0 if
            the sender sees to that.
    """

    random: random.Random
    next_id: Callable[[], bytes]
    patience_seconds: float

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """The answer to ``request``, to be awaited once.

        Raises (when awaited):
            DeadlineExceeded: no answer came in time.
            Error: whatever the store says.
        """

    def try_get(self, key: bytes) -> Value | None:
        """The newest value of ``key`` if it is known here, as it mostly is in an embedded store.

        ``None``: a ``Get`` must be sent.
        """

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let a time pass."""

    def now(self) -> int | Awaitable[int]:
        """A timestamp above that of every commit so far, below that of every later one; a promise
        of one if somebody must be asked, which has been done when this returns.
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
