"""``postroom demo --nodes 3``: the tour on a cluster of this machine; ``--chaos`` kills its nodes.

The job and its check are those of the embedded tour, line by line. The client and the cluster deal
with nodes that die meanwhile; the application does not notice.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - passed in, as an instance
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich.console import Console

import postroom.aio
from postroom.counted import counted
from postroom.demo.flights import count_flights
from postroom.demo.splits import plan_splits, tell_ranges
from postroom.demo.third_act import (
    TOUR_FILE,
    files_folder,
    keep_readable,
    play,
    remove_files,
)
from postroom.demo.tour import claim, compare, replay_missing, turn_round
from postroom.demo.turn_rounds import PATIENCE_SECONDS, ProcessCrew
from postroom.errors import Error, Invalid, Retryable
from postroom.server.local_cluster import LocalCluster, LocalFolder, LocalNode, lock

FLIGHTS: Final = 50_000
"""The default number of departures: three nodes and the job share one machine."""
FIRST_KILL_SECONDS: Final = 0.1
KILL_SECONDS: Final = (2.0, 4.0)
"""The time between the return of one node and the death of the next one, from and to."""
DOWN_SECONDS: Final = (0.5, 2.0)


async def demonstrate_on_cluster(  # noqa: PLR0913 - each is an option of the command
    folder: Path,
    nodes: int | None,
    flights_asked: int,
    randomness: random.Random | None,
    *,
    fresh: bool,
    spark: Any = None,
    ranges: int | None = None,
) -> bool:
    """Run the tour on a cluster in ``folder``; return whether the store ended exact.

    Args:
        folder: of the cluster; made if it is missing.
        nodes: how many; ``None``: as many as last time, or three.
        flights_asked: how many departures.
        randomness: which nodes are killed, and when; ``None``: none.
        fresh: whether to remove the cluster first.
        spark: the session of the third act; ``None``: it is not played.
        ranges: how many ranges the store shall have; ``None``: those that it has.
    """
    wanted = min(flights_asked, count_flights())
    if fresh:
        await asyncio.to_thread(_remove, folder)
    otherwise = "start over with --fresh, or give another --path"
    with LocalFolder(folder, nodes, otherwise=otherwise) as local:
        if local.is_new:
            (folder / TOUR_FILE).touch()
        running = LocalCluster(local)
        try:
            return await _demonstrate(running, folder, wanted, randomness, spark, ranges)
        finally:
            await asyncio.to_thread(running.stop)


async def _demonstrate(
    running: LocalCluster,
    folder: Path,
    wanted: int,
    randomness: random.Random | None,
    spark: Any,
    ranges: int | None,
) -> bool:
    console = Console()
    console.out(
        f"{counted(len(running.nodes), 'node')}: {','.join(running.addresses)}", highlight=False
    )
    async with await postroom.aio.connect(
        running.addresses, insecure=True, timeout=PATIENCE_SECONDS, connect_timeout=PATIENCE_SECONDS
    ) as db:
        await claim(db, folder)
        async with AsyncExitStack() as stack:
            if spark is not None:
                await stack.enter_async_context(keep_readable(db))
            splits = await plan_splits(console, db, folder, ranges, wanted)
            await splits.make_half()
            pauses = DeparturePauses()
            async with _with_faults(console, running, db, randomness), splits.made_meanwhile():
                total = await replay_missing(console, db, folder, wanted, pauses.note)
            if randomness is not None:
                console.out(f"The longest pause took {pauses.longest_seconds:.2f} s.")
            await tell_ranges(console, db)
            crew = ProcessCrew(running.addresses, folder)
            async with _with_faults(console, running, db, randomness):
                turned = await turn_round(console, db, crew, total)
            exact = await compare(console, db, total, turned)
            if spark is None:
                return exact
            store = {"connect": ",".join(running.addresses), "insecure": "true"}
            return await play(console, spark, store, files_folder(folder), total, turned) and exact


def _remove(folder: Path) -> None:
    if folder.exists():
        if not (folder / TOUR_FILE).exists():
            raise Error(f"{str(folder)!r} is not the demonstration's: give it another --path")
        folder_lock = lock(folder)
        try:
            shutil.rmtree(folder)
        finally:
            folder_lock.release()
    remove_files(folder)


class DeparturePauses:
    """The pauses between departures.

    Attributes:
        longest_seconds: between two departures.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._last: float | None = None

    def note(self) -> None:
        """Note that a departure is done."""
        now = perf_counter()
        if self._last is not None:
            self.longest_seconds = max(self.longest_seconds, now - self._last)
        self._last = now


@asynccontextmanager
async def _with_faults(
    console: Console,
    running: LocalCluster,
    db: postroom.aio.Database,
    randomness: random.Random | None,
) -> AsyncIterator[None]:
    """Kill nodes while the block runs; afterwards all of them run again."""
    if randomness is None:
        yield
        return
    injector = FaultInjector(console, running, db, randomness)
    task = asyncio.create_task(injector.run())
    try:
        yield
    finally:
        injector.finish()
        await task
    moved = f", a lease moved {counted(injector.moves, 'time')}" if injector.moves else ""
    console.out(
        f"A node was killed {counted(injector.kills, 'time')}, a leader "
        f"{counted(injector.leaders, 'time')}{moved}.",
        highlight=False,
    )


@dataclass(eq=False)
class FaultInjector:
    """The thread of faults: it kills a node every few seconds, and starts it again.

    If there are several ranges, it then moves the lease of one to another node.

    Attributes:
        console, running, db, randomness: as above.
        kills: how often.
        leaders: how often the node led.
        moves: how often a lease was moved.
    """

    console: Console
    running: LocalCluster
    db: postroom.aio.Database
    randomness: random.Random
    kills: int = field(default=0, init=False)
    leaders: int = field(default=0, init=False)
    moves: int = field(default=0, init=False)
    _finishing: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def finish(self) -> None:
        """Kill no more nodes, and start the dead ones again."""
        self._finishing.set()

    async def run(self) -> None:
        """Kill nodes until told to finish, and one node at least."""
        await self._rest(FIRST_KILL_SECONDS)
        while True:
            await self._kill(self.randomness.choice(self.running.nodes))
            await self._move_lease()
            await self._rest(self.randomness.uniform(*KILL_SECONDS))
            if self._finishing.is_set():
                return

    async def _kill(self, node: LocalNode) -> None:
        if node.process.poll() is not None:
            self.console.out(f"node {node.number} has ended by itself, {node.how_it_ended()}")
        leads = await self._leads(node)
        await asyncio.to_thread(self.running.kill, node)
        self.kills += 1
        self.leaders += bool(leads)
        self.console.out(f"killed node {node.number}{leads}", highlight=False)
        await self._rest(self.randomness.uniform(*DOWN_SECONDS))
        self.running.start_again(node)

    async def _leads(self, node: LocalNode) -> str:
        """Return what a node leads, in words."""
        try:
            ids = [each.node_id for each in (await self.db.status()).nodes
                   if each.address == node.address]  # fmt: skip
            ranges = await self.db.ranges()
        except Error:  # no leader just now
            return ""
        led = sum(each.leader in ids for each in ranges)
        if not led or len(ranges) == 1:
            return ", the leader" if led else ""
        return f", the leader of {counted(led, 'range')}"

    async def _move_lease(self) -> None:
        """Have another node lead one of several ranges."""
        try:
            ranges = await self.db.ranges()
            if len(ranges) == 1 or self._finishing.is_set():
                return
            moved = self.randomness.choice(ranges)
            heir = self.randomness.choice([id_ for id_ in moved.copies if id_ != moved.leader])
            await self.db.move_lease(moved.id, heir)
        except (Retryable, Invalid):  # the range has no leader just now, or the heir lags behind
            return
        self.moves += 1
        self.console.out(f"moved the lease of range {moved.id} to node {heir}", highlight=False)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._finishing.wait(), seconds)
        except TimeoutError:
            return
