"""Stores for tests of applications: in memory, with a clock that the test moves.

::

    with postroom.testing.Store() as store:
        worker = make_worker(store.db)
        with store.db.begin() as tx:
            remind.enqueue(tx, b"call back", deliver_at=3600)
        worker.run_until_idle()        # nothing is due
        store.advance(3600)
        worker.run_until_idle()        # now it is

Leases, back-offs and schedules go by that clock, which goes on by itself as well. Waits of a client
(``wait=5``, a time-out, a pause before it tries again) take real time.
"""

from __future__ import annotations

import random  # noqa: TID251 - here instances are made, to be passed in
import threading
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from postroom.client.codec import Codec
from postroom.client.routing.local import ForRange
from postroom.client.sender import BlockingSender
from postroom.databases import asynchronous, synchronous
from postroom.kv.clock import SystemClock
from postroom.messaging.requests import Moved
from postroom.messaging.services import ADVANCE
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.server import embedded

_SYSTEM: Final = SystemClock()
BEGINNING: Final = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that goes like any other, and can be moved forward.

    Args:
        now: the aware time that it shows at first.
    """

    def __init__(self, now: datetime = BEGINNING) -> None:
        if now.tzinfo is None:
            raise TypeError("now is an aware datetime; this one has no time zone")
        self._lock = threading.Lock()
        self._epoch = now - timedelta(seconds=_SYSTEM.monotonic())
        self._ahead = 0.0

    @property
    def now(self) -> datetime:
        """Return the time that it shows."""
        return self._epoch + timedelta(seconds=self.monotonic())

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward.

        Args:
            seconds: a number of seconds, or a ``timedelta``.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        length = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not length >= 0:
            raise ValueError(f"a clock goes forward, not by {length} s")
        with self._lock:
            self._ahead += length

    def wall_milliseconds(self) -> int:
        """Return the milliseconds since 1970."""
        return round(self.now.timestamp() * 1000)

    def since_millisecond(self) -> float:
        """Return 0: it does not tell which part of a millisecond has passed."""
        return 0.0

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return _SYSTEM.monotonic() + self._ahead


def open(  # noqa: A001 - the name of what it stands for
    *, clock: Clock | None = None, codec: str | Codec | None = None
) -> synchronous.Database:
    """Open a store in memory with a clock that the test moves.

    Args:
        clock: the time of the store; ``None``: a clock of its own.
        codec: see :func:`postroom.open`.

    Returns:
        The store.

    Examples:
        >>> import postroom.testing
        >>> clock = postroom.testing.Clock()
        >>> with postroom.testing.open(clock=clock) as db:
        ...     db.put(b"a", b"1")
        ...     db.now().datetime.year
        2030
    """
    return synchronous.layered(embedded.open_in_memory)(clock or Clock(), _randomness(), codec)


async def open_async(
    *, clock: Clock | None = None, codec: str | Codec | None = None
) -> asynchronous.Database:
    """Open a store in memory with a clock that the test moves, for asyncio.

    Args:
        clock: the time of the store; ``None``: a clock of its own.
        codec: see :func:`postroom.open`.

    Returns:
        The store.

    Examples:
        >>> import asyncio
        >>> import postroom.testing
        >>> async def year():
        ...     async with await postroom.testing.open_async() as db:
        ...         await db.put(b"a", b"1")
        ...         return db.now().datetime.year
        >>> asyncio.run(year())
        2030
    """
    make = asynchronous.layered(embedded.open_in_memory_async)
    return await make(clock or Clock(), _randomness(), codec)


class Store:
    """A store in memory with a clock that the test moves.

    It is a context manager, which closes the store at the end of the block.

    Args:
        clock: the time of the store; ``None``: a clock of its own.
        codec: see :func:`postroom.open`.

    Attributes:
        db: the store.
        clock: its time.
    """

    def __init__(self, clock: Clock | None = None, *, codec: str | Codec | None = None) -> None:
        self.clock = clock or Clock()
        self.db = open(clock=self.clock, codec=codec)

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward, and wait until what is due by then has been done.

        Messages reach their inboxes. In queues, leases have ended, scheduled messages are ready,
        and ticks are enqueued (of several that have passed, the latest one).

        Args:
            seconds: a number of seconds, or a ``timedelta``.
        """
        self.clock.advance(seconds)
        sender = self.db.sender
        self.db.drain()
        while sender.run(_advanced(sender)):
            self.db.drain()

    def close(self) -> None:
        """Close the store."""
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _advanced(sender: BlockingSender) -> bool:
    """Do some of what is due in the queues of each range; return whether there may be more."""
    ranges: list[RangeInfo] = await sender.send(ListRanges(b"", None))
    requests = [ForRange(each.id, ADVANCE) for each in ranges] if len(ranges) > 1 else [ADVANCE]
    moved: list[Moved] = [await sender.send(each) for each in requests]
    return any(each.messages or each.more for each in moved)


def _randomness() -> random.Random:
    return random.Random(random.SystemRandom().randbytes(32))


__all__ = ["Clock", "Store", "open", "open_async"]
