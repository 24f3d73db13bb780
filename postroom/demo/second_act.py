"""The second act, from its first departure to the last turn-round, and its results.

One worker is killed when a third of the turn-rounds is done.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from rich.console import Console

import postroom.aio
from postroom.demo.crews import WORKERS, Crew
from postroom.demo.flights import Leg, legs
from postroom.demo.replay import DRAIN_SECONDS
from postroom.demo.report import progress
from postroom.demo.turn_rounds import depart_all, make_queue, numbers_planned

TURN_ROUNDS: Final = 3_000
"""The number of departures after which aircraft are turned round: three days and a half."""
DAY_SECONDS: Final = 2.0
"""The time that a day of the year takes."""
KILL_SHARE: Final = 1 / 3
LOOK_SECONDS: Final = 0.1


async def turn_round_missing(
    console: Console,
    db: postroom.aio.Database,
    crew: Crew,
    departures: int,
) -> tuple[int, float | None]:
    """Let aircraft depart and be turned round, unless that was done already.

    Args:
        console: what to tell it.
        db: the store.
        crew: who does it.
        departures: after how many there shall be turn-rounds, at least; TURN_ROUNDS at most.

    Returns:
        After how many departures there are turn-rounds now, and how many seconds it took;
        ``None``: all of it was done already.
    """
    queue = await make_queue(db)
    planned = {number async for number in numbers_planned(db)}
    departures = max(min(departures, TURN_ROUNDS), max(planned, default=0))
    flown = list(legs(departures))
    began = perf_counter()
    act = Act(console, db, queue, crew, len(flown))
    missing = [leg for leg in flown if leg.number not in planned]
    played = await act.play(missing)
    return departures, perf_counter() - began if played else None


class Act:
    """The act, from the first departure to the last turn-round.

    Args:
        console, db, crew: as above.
        queue: of the turn-rounds.
        total: how many shall be done at the end.
    """

    def __init__(
        self,
        console: Console,
        db: postroom.aio.Database,
        queue: postroom.aio.Queue,
        crew: Crew,
        total: int,
    ) -> None:
        self._console = console
        self._db = db
        self._queue = queue
        self._crew = crew
        self._total = total

    async def play(self, waiting: list[Leg]) -> bool:
        """Let the ``waiting`` legs depart, and work until the queue is empty.

        Returns:
            Whether there was anything to do.
        """
        if not waiting and await self._is_empty():
            return False
        await self._crew.start()
        try:
            async with asyncio.TaskGroup() as group:
                departing = group.create_task(depart_all(self._db, iter(waiting), DAY_SECONDS))
                group.create_task(self._watch(departing))
        finally:
            await self._crew.stop()
        await self._db.drain(timeout=DRAIN_SECONDS)
        return True

    async def _watch(self, departing: asyncio.Task[None]) -> None:
        """Show the progress until all is done, and kill a worker after a third."""
        shown = (await self._queue.stats()).acknowledged
        is_killed = False
        with progress(self._console, shown, self._total, "turn-rounds") as advance:
            while True:
                has_departed = departing.done()
                done = (await self._queue.stats()).acknowledged
                for _ in range(done - shown):
                    advance()
                shown = max(shown, done)
                if not is_killed and done >= self._total * KILL_SHARE:
                    is_killed = True
                    await self._crew.kill(WORKERS)
                    self._console.out(f"killed worker {WORKERS}", highlight=False)
                if has_departed and await self._is_empty():
                    return
                await asyncio.sleep(LOOK_SECONDS)

    async def _is_empty(self) -> bool:
        stats = await self._queue.stats()
        return not stats.ready and not stats.scheduled and not stats.leased
