"""The command ``postroom demo``: prepares the store, replays what is missing, checks everything."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import compress
from pathlib import Path

from rich.console import Console

import postroom.aio
from postroom.demo.check import check, check_turn_rounds
from postroom.demo.crews import Crew, LocalCrew
from postroom.demo.flights import count_flights, flights, legs
from postroom.demo.replay import numbers_done, replay
from postroom.demo.report import progress, show_attempts, show_comparisons, show_measures
from postroom.demo.second_act import turn_round_missing
from postroom.demo.third_act import (
    KEPT_SECONDS,
    TOUR_KEY,
    ThirdAct,
    files_folder,
    play,
    remove_files,
)
from postroom.demo.turn_rounds import attempts
from postroom.errors import Error
from postroom.limits import GC_TTL_SECONDS
from postroom.server.loopback import LoopbackServer


async def demonstrate(
    path: Path, flights_asked: int | None, fresh: bool, third_act: ThirdAct | None = None
) -> bool:
    """Run the tour in the store at ``path``; return whether the store ended exact.

    Args:
        path: the data folder; made if it is missing.
        flights_asked: how many departures; ``None`` for the whole year. A store that has gone
            further already is checked as far as it has gone.
        fresh: whether to remove the store first.
        third_act: what Spark does with it afterwards, if anything.
    """
    console = Console()
    available = count_flights()
    if fresh:
        await _remove(path)
        await asyncio.to_thread(remove_files, path)
    kept = GC_TTL_SECONDS if third_act is None else KEPT_SECONDS
    async with await postroom.aio.open(str(path), gc_ttl=kept) as db:
        await claim(db, path)
        total = await replay_missing(console, db, path, min(flights_asked or available, available))
        turned = await turn_round(console, db, LocalCrew(db), total)
        exact = await compare(console, db, total, turned)
    if third_act is None:
        return exact
    with closing(LoopbackServer(path, gc_ttl=KEPT_SECONDS)) as server:
        store = {"connect": server.address, "insecure": "true"}
        return await play(console, third_act, store, files_folder(path), total, turned) and exact


async def replay_missing(
    console: Console,
    db: postroom.aio.Database,
    path: Path,
    wanted: int,
    on_departure: Callable[[], None] = lambda: None,
) -> int:
    """Replay the departures that are not there yet, and read the mail that is there.

    Args:
        console: what to tell it.
        db: the store.
        path: where it is, on this machine.
        wanted: how many departures there shall be at least.
        on_departure: called for each that is done.

    Returns:
        How many there are now.
    """
    done = await _done(db, count_flights())
    total = max(wanted, done.rfind(1))  # place 0 is never used: the last place is a number
    await _replay_missing(console, db, path, done[: total + 1], on_departure)
    return total


async def turn_round(console: Console, db: postroom.aio.Database, crew: Crew, total: int) -> int:
    """Play the second act as far as it was not played yet.

    Args:
        console: what to tell it.
        db: the store.
        crew: the workers.
        total: how many departures there are.

    Returns:
        After how many departures there are some now.
    """
    turned, seconds = await turn_round_missing(console, db, crew, total)
    if seconds is not None:
        show_attempts(console, await attempts(db), seconds)
    return turned


async def compare(console: Console, db: postroom.aio.Database, total: int, turned: int) -> bool:
    """Compare the store with its departures and turn-rounds; print a table.

    Returns:
        Whether the store is exact.
    """
    console.print("Comparing the store with the source ...")
    findings = await check(db, flights(total))
    findings += await check_turn_rounds(db, legs(turned))
    show_comparisons(console, findings)
    return all(finding.passed for finding in findings)


async def _replay_missing(
    console: Console,
    db: postroom.aio.Database,
    path: Path,
    done: bytearray,
    on_departure: Callable[[], None],
) -> None:
    total = len(done) - 1
    already = sum(done)
    if already:
        what = "complete" if already == total else "going on"
        console.out(f"{path} holds {already:,} of {total:,} departures: {what}.", highlight=False)
    missing = compress(flights(total), (not was_done for was_done in done[1:]))
    with progress(console, already, total) as advance:

        def departed() -> None:
            advance()
            on_departure()

        measures = await replay(db, missing, departed)
    if measures.departures or measures.boards:
        show_measures(console, measures, path)


async def _done(db: postroom.aio.Database, available: int) -> bytearray:
    """Return a bytearray with 1 at the number of each departure that is in the store."""
    done = bytearray(available + 1)
    async for number in numbers_done(db):
        done[number] = 1
    return done


async def claim(db: postroom.aio.Database, path: Path) -> None:
    """Make sure that this store is the tour's, or is empty."""
    if await db.get(TOUR_KEY) is not None:
        return
    async for _ in db.scan(b"", None, limit=1):
        raise Error(f"{str(path)!r} holds somebody's data: give the demonstration another --path")
    await db.put(TOUR_KEY, b'"made by postroom demo"')


async def _remove(path: Path) -> None:
    if not path.exists():
        return
    async with await postroom.aio.open(str(path)) as db:
        await claim(db, path)
    shutil.rmtree(path)
