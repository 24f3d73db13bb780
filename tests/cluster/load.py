"""A client that writes one transaction after the other, and knows at the end what must be there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import postroom
from postroom.errors import Error
from tests.cluster.harness import eventually

_loads = itertools.count()


class Load:
    """The writes so far.

    Attributes:
        moments: when each transaction was acknowledged.
    """

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.failures: list[Error] = []

    @property
    def written(self) -> int:
        """Return how many writes were acknowledged."""
        return len(self.moments)

    def goes_on(self, more: int = 20) -> None:
        """Wait until so many more were acknowledged."""
        wanted = self.written + more
        eventually(lambda: self.written >= wanted or self.failures)

    def longest_pause_seconds(self) -> float:
        """Return the longest time between two acknowledgements."""
        return max(later - earlier for earlier, later in pairwise(self.moments))


@contextmanager
def writing(db: postroom.Database) -> Iterator[Load]:
    """Increment a counter and send a message, again and again, while the block runs.

    At the end no message is lost or doubled.
    """
    name, load, done = b"load/%d" % next(_loads), Load(), threading.Event()

    def run() -> None:
        try:
            while not done.is_set():
                db.run(_write, name, load.written)
                load.moments.append(time.monotonic())
        except Error as error:
            load.failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield load
    finally:
        done.set()
        thread.join()
    assert not load.failures
    assert postroom.integer(db.get(name) or bytes(8)) == load.written
    db.drain()
    arrived = [int(message.value) for message in db.peek(name, limit=1_000_000)]
    assert arrived == list(range(load.written))


def _write(tx: postroom.Transaction, name: bytes, number: int) -> None:
    tx.increment(name)
    tx.enqueue_message(name, b"%d" % number)
