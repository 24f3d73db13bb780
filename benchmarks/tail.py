"""The benchmark of tails, ``python -m benchmarks tail``: latencies at an open rate.

Transactions arrive by the clock, however long the earlier ones take, and waiting counts. Each reads
and writes one of a million keys with 1 KB, and sends 200 bytes. Consumers take the messages beside
them. The columns are percentiles in milliseconds, from the moment of arrival to the answer.

SQLite and etcd are measured in the same run, at the same rate. ``--keys 100000`` fills less.
``--against CHECKOUT`` measures another version of this program by turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import postroom.aio
from benchmarks.checkouts import HERE, run_with
from benchmarks.cluster import connect, started_nodes
from benchmarks.harness import machine

VALUE: Final = b"x" * 1024
MESSAGE: Final = b"m" * 200
INBOXES: Final = 16
REAPED_MAX: Final = 100
FILLED_WITH: Final = 500
WARM_SECONDS: Final = 2.0

Operation: TypeAlias = Callable[[int], Awaitable[None]]
Percentiles: TypeAlias = dict[str, float]
"""Milliseconds by share."""


class Load(NamedTuple):
    """The size of a measurement.

    Attributes:
        folder: for what is written.
        keys: the number of keys.
        rate: transactions a second.
        seconds: how long they arrive.
    """

    folder: Path
    keys: int
    rate: float
    seconds: float


def key_of(number: int, keys: int) -> bytes:
    """Return the key of a transaction; successive ones are far from each other."""
    return b"key/%08d" % (number * 7_919_993 % keys)


def percentiles_of(latencies: list[float]) -> Percentiles:
    """Return the percentiles of the table."""
    ordered = sorted(latencies)
    shares = {"50 %": 0.5, "99 %": 0.99, "99.9 %": 0.999, "most": 1.0}
    return {
        name: 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]
        for name, share in shares.items()
    }


async def at_open_rate(load: Load, operation: Operation) -> Percentiles:
    """Begin operations by the clock, after some that do not count; return their percentiles.

    The garbage collector leaves out what was there before, as in programs that serve: to go through
    all modules takes it twenty milliseconds.
    """
    gc.collect()
    gc.freeze()
    latencies: list[float] = []
    running: set[asyncio.Task[None]] = set()

    async def one(number: int, arrival: float) -> None:
        await operation(number)
        if number >= uncounted:
            latencies.append(time.perf_counter() - arrival)

    uncounted = int(load.rate * min(WARM_SECONDS, load.seconds / 4))
    start = time.perf_counter()
    for number in range(uncounted + max(int(load.rate * load.seconds), 1)):
        arrival = start + number / load.rate
        if (left := arrival - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        running.add(task := asyncio.ensure_future(one(number, arrival)))
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return percentiles_of(latencies)


# --- this program


async def _fill(db: postroom.aio.Database, keys: int) -> None:
    for first in range(0, keys, FILLED_WITH):
        async with db.begin() as tx:
            for number in range(first, min(first + FILLED_WITH, keys)):
                tx.put(b"key/%08d" % number, VALUE)


async def _consume(db: postroom.aio.Database, inbox: bytes) -> None:
    while True:
        async with db.begin() as tx:
            await tx.reap_queue(inbox, REAPED_MAX, wait=1.0)


async def _store(db: postroom.aio.Database, load: Load) -> Percentiles:
    async def transaction(tx: postroom.aio.Transaction, number: int) -> None:
        key = key_of(number, load.keys)
        await tx.get(key)
        tx.put(key, VALUE)
        tx.enqueue_message(b"inbox/%d" % (number % INBOXES), MESSAGE)

    async def once(number: int) -> None:
        await db.run(transaction, number)  # again if one that has the same key is under way

    await _fill(db, load.keys)
    consumers = [
        asyncio.ensure_future(_consume(db, b"inbox/%d" % number)) for number in range(INBOXES)
    ]
    found = await at_open_rate(load, once)
    for each in consumers:
        each.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return found


async def _embedded(load: Load) -> Percentiles:
    async with await postroom.aio.open(load.folder / "store") as db:
        return await _store(db, load)


async def _three_nodes(load: Load) -> Percentiles:
    with started_nodes(load.folder, 3) as nodes:
        async with await connect(nodes.addresses) as db:
            return await _store(db, load)


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        place: the name of the store that is measured.
        rate: transactions a second.
        measure: measures it.
        goals: the wanted 99 % and 99.9 % in milliseconds; empty: it is there for comparison.
    """

    place: str
    rate: int
    measure: Callable[[Load], Awaitable[Percentiles]]
    goals: str = ""

    @property
    def name(self) -> str:
        """Return the name of the row."""
        return f"{self.place}, {self.rate:,}/s"


def rows() -> dict[str, Row]:
    """Return the rows by name; peers only if their programs are there."""
    from benchmarks import tail_peers  # noqa: PLC0415 - it uses this module

    found = [
        Row("embedded", 2000, _embedded, "6; 20"),
        Row("SQLite", 2000, tail_peers.sqlite),
        Row("embedded", 6000, _embedded, "40; 100"),
        Row("3 nodes", 1000, _three_nodes, "20; 60"),
    ]
    if tail_peers.HAS_ETCD:
        found.append(Row("etcd", 1000, tail_peers.etcd))
    return {row.name: row for row in found}


OURS: Final = ("embedded", "3 nodes")


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tail", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="rows that contain this")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they arrive")
    parser.add_argument("--rounds", type=int, default=3, help="of all rows; medians are shown")
    parser.add_argument("--against", type=Path, help="the checkout of another version")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure_here(name: str, keys: int, seconds: float) -> Percentiles:
    """Measure a row in this process."""
    row = rows()[name]

    async def measured(folder: Path) -> Percentiles:
        return await row.measure(Load(folder, keys, row.rate, seconds))

    with tempfile.TemporaryDirectory(prefix="postroom-tail-") as folder:
        return asyncio.run(measured(Path(folder)))


def main(arguments: list[str]) -> int:
    """Measure the chosen rows; print a table; return 1 if none was chosen."""
    chosen = _arguments(arguments)
    if chosen.child:
        print(json.dumps(measure_here(chosen.child, chosen.keys, chosen.seconds)))
        return 0
    lines: dict[str, tuple[Path, Row]] = {}
    for row in rows().values():
        if not chosen.only or any(word in row.name for word in chosen.only):
            if chosen.against and row.place in OURS:
                lines[f"{row.name}, before"] = chosen.against.resolve(), row
            lines[row.name] = HERE, row
    found: dict[str, list[Percentiles]] = {line: [] for line in lines}
    for number in range(chosen.rounds):
        for line in [*lines][:: 1 if number % 2 == 0 else -1]:
            checkout, row = lines[line]
            asked = ["--child", row.name, f"--keys={chosen.keys}", f"--seconds={chosen.seconds}"]
            found[line].append(run_with(checkout, "benchmarks.tail", asked))
    _print_table({line: (row, found[line]) for line, (_, row) in lines.items()})
    if chosen.json:
        settings = {"keys": chosen.keys, "seconds": chosen.seconds}
        written = {"machine": machine(), "settings": settings, "results": found}
        chosen.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if lines else 1


def _print_table(found: dict[str, tuple[Row, list[Percentiles]]]) -> None:
    for line, (row, runs) in found.items():
        columns = {share: statistics.median(run[share] for run in runs) for share in runs[0]}
        cells = "".join(f"{share:>10} {value:8.2f}" for share, value in columns.items())
        print(f"{line:<28}{cells}   {row.goals and f'goals: {row.goals}'}", flush=True)
