"""The splits of a soak's store: a range is split again and again while all clients work.

The keys are those of the clients, and keys at which messages of queues lie. They come in a random
order, none of them twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.aio import Database
from postroom.errors import Invalid
from tests.soak.worker import Worker

TICK_SECONDS: Final = 5.0
"""The time between two signs of life of who waits for the next split."""
RANGES_MAX: Final = 128
"""The ranges that a soak may make: what each of them takes is allowed for."""
ID_PARTS: Final = 32
"""The number of parts into which splits cut the ids of messages."""


class Splits:
    """The splits of a store.

    Args:
        db: the store.
        seconds: the time from one split to the next.
        randomness: chooses the keys.
        goes_on: whether the soak does.
    """

    def __init__(
        self, db: Database, seconds: float, randomness: Random, goes_on: Callable[[], bool]
    ) -> None:
        self._db = db
        self._seconds = seconds
        self._goes_on = goes_on
        self._keys = split_keys()
        randomness.shuffle(self._keys)
        del self._keys[RANGES_MAX - 1 :]

    async def split(self, worker: Worker) -> None:
        """Split one range, and wait for the time of the next one."""
        until = time.monotonic() + self._seconds
        if self._keys:
            with contextlib.suppress(Invalid):  # an earlier try has split it there
                await self._db.split(self._keys[-1])
            self._keys.pop()
        worker.did()
        while (left := until - time.monotonic()) > 0 and self._goes_on():
            await asyncio.sleep(min(left, TICK_SECONDS))
            worker.did()


def split_keys() -> list[bytes]:
    """Return the keys at which a soak splits its ranges."""
    return [
        *(b"soak/account/%d" % number for number in range(8)),
        *(b"soak/contended/%02d" % number for number in range(0, 20, 4)),
        *(b"soak/inbox/%d" % number for number in range(4)),
        *(b"soak/large/%d" % number for number in range(4)),
        *(b"soak/lock/%d" % number for number in range(3)),
        *(b"soak/swept/%05d" % number for number in range(0, 2100, 300)),
        *(b"soak/wide/%03d" % number for number in range(0, 200, 20)),
        *(b"sender %d %d" % each for each in itertools.product(range(2), range(2))),
        *(bytes([number]) for number in range(0, 256, 256 // ID_PARTS) if number),
        b"soak/job/", b"soak/jobs/", b"soak/lane/", b"soak/queued", b"soak/stats/", b"soak/taken/",
    ]  # fmt: skip
