"""The command ``postroom demo``: prepares the store, replays what is missing, checks everything.

In the second act, one worker is killed when a third of the turn-rounds is done.

If the output is no terminal, progress is a line for each tenth: a log stays short.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import postroom.aio
from postroom.demo.check import check, check_turn_rounds, show_comparisons
from postroom.demo.flights import Leg, count_flights, flights, legs
from postroom.demo.replay import DRAIN_SECONDS, Measures, numbers_done, replay
from postroom.demo.splits import plan_splits, tell_ranges
from postroom.demo.third_act import (
    KEPT_SECONDS,
    TOUR_KEY,
    files_folder,
    play,
    remove_files,
)
from postroom.demo.turn_rounds import (
    WORKERS,
    Crew,
    LocalCrew,
    TurnRoundOutcomes,
    attempts,
    depart_all,
    make_queue,
    numbers_planned,
)
from postroom.errors import Error
from postroom.limits import GC_TTL_SECONDS
from postroom.server.loopback import LoopbackServer

TURN_ROUNDS: Final = 3_000
"""The number of departures after which aircraft are turned round: three days and a half."""
DAY_SECONDS: Final = 2.0
"""The time that a day of the year takes."""
KILL_SHARE: Final = 1 / 3
LOOK_SECONDS: Final = 0.1


async def demonstrate(
    path: Path,
    flights_asked: int | None,
    fresh: bool,
    spark: Any = None,
    ranges: int | None = None,
) -> bool:
    """Run the tour in the store at ``path``; return whether the store ended exact.

    Args:
        path: the data folder; made if it is missing.
        flights_asked: how many departures; ``None`` for the whole year. A store that has gone
            further already is checked as far as it has gone.
        fresh: whether to remove the store first.
        spark: the session of the third act; ``None``: it is not played.
        ranges: how many ranges the store shall have; ``None``: those that it has.
    """
    console = Console()
    wanted = min(flights_asked or count_flights(), count_flights())
    if fresh:
        await _remove(path)
        await asyncio.to_thread(remove_files, path)
    kept = GC_TTL_SECONDS if spark is None else KEPT_SECONDS
    async with await postroom.aio.open(str(path), gc_ttl=kept) as db:
        await claim(db, path)
        splits = await plan_splits(console, db, path, ranges, wanted)
        await splits.make_half()
        async with splits.made_meanwhile():
            total = await replay_missing(console, db, path, wanted)
        await tell_ranges(console, db)
        turned = await turn_round(console, db, LocalCrew(db), total)
        exact = await compare(console, db, total, turned)
    if spark is None:
        return exact
    with closing(LoopbackServer(path, gc_ttl=KEPT_SECONDS)) as server:
        store = {"connect": server.address, "insecure": "true"}
        return await play(console, spark, store, files_folder(path), total, turned) and exact


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
    done = bytearray(count_flights() + 1)  # 1 at the number of each departure in the store
    async for number in numbers_done(db):
        done[number] = 1
    total = max(wanted, done.rfind(1))  # place 0 is never used: the last place is a number
    already = sum(done)
    if already:
        what = "complete" if already == total else "going on"
        console.out(f"{path} has {already:,} of {total:,} departures: {what}.", highlight=False)
    missing = compress(flights(total), (not was_done for was_done in done[1:]))
    with progress(console, already, total) as advance:

        def departed() -> None:
            advance()
            on_departure()

        measures = await replay(db, missing, departed)
    if measures.departures or measures.boards:
        show_measures(console, measures, path)
    return total


async def compare(console: Console, db: postroom.aio.Database, total: int, turned: int) -> bool:
    """Compare the store with its departures and turn-rounds; print a table.

    Args:
        console: what to tell it.
        db: the store.
        total: how many departures there are.
        turned: after how many departures there are turn-rounds.

    Returns:
        Whether the store is exact.
    """
    console.print("Comparing the store with the source ...")
    findings = await check(db, flights(total)) + await check_turn_rounds(db, legs(turned))
    show_comparisons(console, findings)
    return all(finding.passed for finding in findings)


async def claim(db: postroom.aio.Database, path: Path) -> None:
    """Make sure that this store is the tour's, or is empty."""
    if await db.get(TOUR_KEY) is not None:
        return
    async for _ in db.scan(b"", None, limit=1):
        raise Error(
            f"{str(path)!r} has other data than the demonstration's; nothing was changed: give "
            "another --path"
        )
    await db.put(TOUR_KEY, b'"made by postroom demo"')


async def _remove(path: Path) -> None:
    if not path.exists():
        return
    async with await postroom.aio.open(str(path)) as db:
        await claim(db, path)
    shutil.rmtree(path)


# --- the second act -------------------------------------------------------------------------------


async def turn_round(console: Console, db: postroom.aio.Database, crew: Crew, total: int) -> int:
    """Let aircraft depart and be turned round, unless that was done already.

    Args:
        console: what to tell it.
        db: the store.
        crew: the workers.
        total: how many departures there are; there are turn-rounds after TURN_ROUNDS at most.

    Returns:
        After how many departures there are turn-rounds now.
    """
    queue = await make_queue(db)
    planned = {number async for number in numbers_planned(db)}
    total = max(min(total, TURN_ROUNDS), max(planned, default=0))
    flown = list(legs(total))
    began = perf_counter()
    act = Act(console, db, queue, crew, len(flown))
    if await act.play([leg for leg in flown if leg.number not in planned]):
        seconds = perf_counter() - began
        show_attempts(console, await attempts(db), seconds)
    return total


@dataclass(eq=False)
class Act:
    """The act, from the first departure to the last turn-round.

    Attributes:
        console, db, crew: as above.
        queue: of the turn-rounds.
        total: how many shall be done at the end.
    """

    console: Console
    db: postroom.aio.Database
    queue: postroom.aio.Queue
    crew: Crew
    total: int

    async def play(self, waiting: list[Leg]) -> bool:
        """Let the ``waiting`` legs depart, and work until the queue is empty.

        Returns:
            Whether there was anything to do.
        """
        if not waiting and await self._is_empty():
            return False
        await self.crew.start()
        try:
            async with asyncio.TaskGroup() as group:
                departing = group.create_task(depart_all(self.db, iter(waiting), DAY_SECONDS))
                group.create_task(self._watch(departing))
        finally:
            await self.crew.stop()
        await self.db.drain(timeout=DRAIN_SECONDS)
        return True

    async def _watch(self, departing: asyncio.Task[None]) -> None:
        """Show the progress until all is done, and kill a worker after a third."""
        shown = (await self.queue.stats()).acknowledged
        is_killed = False
        with progress(self.console, shown, self.total, "turn-rounds") as advance:
            while True:
                has_departed = departing.done()
                done = (await self.queue.stats()).acknowledged
                for _ in range(done - shown):
                    advance()
                shown = max(shown, done)
                if not is_killed and done >= self.total * KILL_SHARE:
                    is_killed = True
                    await self.crew.kill(WORKERS)
                    self.console.out(f"killed worker {WORKERS}", highlight=False)
                if has_departed and await self._is_empty():
                    return
                await asyncio.sleep(LOOK_SECONDS)

    async def _is_empty(self) -> bool:
        stats = await self.queue.stats()
        return not stats.ready and not stats.scheduled and not stats.leased


# --- output ---------------------------------------------------------------------------------------


@contextmanager
def progress(
    console: Console, done: int, total: int, what: str = "departures"
) -> Iterator[Callable[[], None]]:
    """Show the progress of the job; yield a function to call for each of ``what``."""
    if not console.is_terminal:
        yield _line_per_tenth(console, done, total, what)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda: bar.advance(task)


def _line_per_tenth(console: Console, done: int, total: int, what: str) -> Callable[[], None]:
    def advance() -> None:
        nonlocal done
        before, done = done * 10 // total, done + 1
        if done * 10 // total > before:
            console.out(f"{done:,} of {total:,} {what}", highlight=False)

    return advance


def show_measures(console: Console, measures: Measures, folder: Path) -> None:
    """Print a short table of amount, speed and size."""
    transactions = measures.departures + measures.boards
    rows = {
        "transactions": f"{transactions:,}",
        "messages sent": f"{measures.messages_sent:,}",
        "messages read": f"{measures.messages_read:,}",
        "deferred updates": f"{measures.updates:,}",
        "elapsed": f"{measures.seconds:,.1f} s",
        "throughput": f"{transactions / measures.seconds:,.0f} transactions/s",
        "commit p50, p95, p99": _percentiles(measures.commit_seconds.tolist()),
        "on disk": f"{bytes_on_disk(folder) / 1e6:,.1f} MB",
    }
    table = Table(title="This run", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _percentiles(seconds: list[float]) -> str:
    seconds.sort()
    chosen = (seconds[int(len(seconds) * share)] * 1000 for share in (0.5, 0.95, 0.99) if seconds)
    return ", ".join(f"{milliseconds:.1f}" for milliseconds in chosen) + " ms" if seconds else "-"


def show_attempts(console: Console, attempts: Sequence[TurnRoundOutcomes], seconds: float) -> None:
    """Print the outcome of turn-rounds: a row for each first attempt, second one, and so on."""
    done = sum(len(each.late_milliseconds) for each in attempts)
    title = f"{done:,} turn-rounds; this run took {seconds:,.1f} s"
    table = Table(title=title, title_justify="left")
    for name in ("attempt", "begun", "failed", "lost", "done", "late p50, p95, p99"):
        table.add_column(name, justify="right")
    for number, each in enumerate(attempts, 1):
        late = _percentiles([milliseconds / 1000 for milliseconds in each.late_milliseconds])
        counts = (each.begun, each.failed, each.lost, len(each.late_milliseconds))
        table.add_row(f"{number}", *(f"{count:,}" for count in counts), late)
    console.print(table)


def bytes_on_disk(folder: Path) -> int:
    """Return the size of all files in the data folder, which may change meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # the storage engine has just replaced it
            continue
    return total
