"""The service that carries a prepared split out, on the leaseholder.

::

    prepared ─▶ DivideSome, while there is more ─▶ Split ─┬─▶ over ─▶ DivideSome, while it left more
                    ▲                                     ├─ Unavailable ─▶ some time, and again
                    └─────────────────────────────────────┘
                                                          └─ Invalid ─▶ CancelSplit, with the reason

*Share of the time.* Steps take turns with the commits of clients, and slow them down. While the
range has other commits, steps are so far apart that a million records take
``DIVISION_SECONDS_PER_MILLION``. Without others, nothing is waited for but a short pause. After
``DIVISION_YIELDS_SECONDS_MAX``, steps follow each other: they might never catch up with clients.

*Pauses.* ``Split`` waits for the messages and updates that must not be overtaken. While clients
commit more of them all the time, there may never be a moment without any. The service therefore
lets commits wait, for up to 50 ms, and tries again and again meanwhile. If that is too short, the
next pause is twice as long, up to 0.4 s. After a pause commits go on for four times as long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.errors import CommitUnknown, Invalid, Retryable, Unavailable, shorten
from postroom.limits import DIVISION_SECONDS_PER_MILLION, DIVISION_YIELDS_SECONDS_MAX
from postroom.ranges.ports import ServiceWakeUp
from postroom.ranges.split.halving import SplitMustWait
from postroom.ranges.split.preparing import RETRY_SECONDS, Preparing
from postroom.ranges.split.records import SplitRecord
from postroom.ranges.split.requests import CancelSplit, DivideSome, Split

PAUSE_SECONDS: Final = 0.005
"""The pause between two steps, in which clients are served."""
TRIES: Final = 10
"""The tries to split in the first pause of commits, ``PAUSE_SECONDS`` apart."""
MOST_TRIES: Final = 80
"""The most tries in a later pause."""
REST: Final = 4
"""The time until the next pause of commits: a multiple of the time of the last one."""

_log: Final = logging.getLogger(__name__)


@dataclass(eq=False)
class SplitService:
    """The service; see the module.

    Attributes:
        preparing: the split that is prepared.
        send: a function that sends a request to the range, as upkeep.
        sleep: a function that waits for a number of seconds.
        monotonic: returns the time in seconds.
        last_commit: returns the timestamp of the last commit of the range.
        pause_commits: a function that has commits wait, or go on.
        wake_up: the wake-up that a split is prepared, or over.
        waits_for: why the split is not over yet; empty: nothing keeps it.
    """

    preparing: Preparing
    send: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    monotonic: Callable[[], float]
    last_commit: Callable[[], int]
    pause_commits: Callable[[bool], None]
    wake_up: ServiceWakeUp
    waits_for: str = field(default="", init=False)
    _tries: int = field(default=TRIES, init=False)

    async def run(self) -> None:
        """Carry out what is prepared, for ever."""
        while True:
            record = self.preparing.record
            if record is None and not self.preparing.has_rest():
                self.waits_for = ""
                await self.wake_up.wait()
                continue
            try:
                await (self._divide() if record is None else self._carry_out(record))
            except Retryable as error:
                self.waits_for = str(error)
                pause = error.retry_after if isinstance(error, Unavailable) else 0.0
                await self.sleep(pause or RETRY_SECONDS)
            except CommitUnknown:
                await self.sleep(RETRY_SECONDS)  # the record tells what came of it

    async def _carry_out(self, record: SplitRecord) -> None:
        try:
            await self._divide()
            await self._split()
        except Invalid as error:
            if self.preparing.record == record:
                _log.warning("the split at %s is given up: %s", shorten(record.key), error)
                await self.send(CancelSplit(record.key, str(error)))

    async def _split(self) -> None:
        try:
            await self.send(Split())
            return
        except SplitMustWait as error:
            self.waits_for = str(error)
        tries = self._tries
        self.pause_commits(True)
        try:
            for _ in range(tries):
                await self.sleep(PAUSE_SECONDS)
                with suppress(SplitMustWait):
                    await self.send(Split())
                    self._tries = TRIES
                    return
        finally:
            self.pause_commits(False)
        self._tries = min(2 * tries, MOST_TRIES)
        await self.sleep(REST * tries * PAUSE_SECONDS)

    async def _divide(self) -> None:
        yields_until = self.monotonic() + DIVISION_YIELDS_SECONDS_MAX
        while True:
            began = self.monotonic()
            steps = await self.send(DivideSome())
            if not steps:
                return
            last_commit = self.last_commit()
            await self.sleep(PAUSE_SECONDS)
            if self.last_commit() != last_commit and began < yields_until:
                left = began + steps * DIVISION_SECONDS_PER_MILLION / 1e6 - self.monotonic()
                if left > 0:
                    await self.sleep(left)

    def note(self) -> str:
        """Return what the status tells of the split."""
        record = self.preparing.record
        if record is None:
            return ""
        waits = f", waits: {self.waits_for}" if self.waits_for else ""
        return f"splits at {shorten(record.key)}{waits}"
