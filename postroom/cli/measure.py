"""The command bench: a rough measurement of this machine in a few seconds.

It measures what an application does most: the *outbox transaction* (read a key, write it, send a
message, defer an increment), reaping, get and scan. The folder ``benchmarks`` of the source
measures longer and more. Its numbers serve to compare versions and machines.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import postroom
import postroom.aio
from postroom.cli.options import AsJson, StoreOptions, on_a_store_if_given
from postroom.cli.output import print_json

ACCOUNTS = 1000
VALUE = bytes(100)
COUNTER = b"postroom-bench/counter"
INBOX = b"postroom-bench/inbox"


@dataclass(frozen=True, slots=True)
class Result:
    """The number of repetitions of one operation, and the time that they took."""

    measure: str
    times: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return how often it was done a second."""
        return self.times / self.seconds


@on_a_store_if_given
def bench(
    store: StoreOptions | None,
    transactions: Annotated[
        int, typer.Option(metavar="N", min=1, help="Measure N of each.")
    ] = 5000,
    in_flight: Annotated[
        int, typer.Option(metavar="N", min=1, help="Keep N transactions in flight.")
    ] = 64,
    as_json: AsJson = False,
) -> None:
    """Measure a store for a few seconds; without a given one, a temporary store.

    The command removes from a given store what it has written there.
    """
    if store is not None:
        results = asyncio.run(_measure(store, transactions, in_flight))
    else:
        with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
            temporary = StoreOptions(path=Path(folder) / "store")
            results = asyncio.run(_measure(temporary, transactions, in_flight))
    if as_json:
        for result in results:
            print_json({"measure": result.measure, "per_second": round(result.rate)})
    else:
        Console().print(_table(results))


def _table(results: list[Result]) -> Table:
    table = Table("measure", "times", "seconds", "per second")
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        table.add_row(
            result.measure, f"{result.times:,}", f"{result.seconds:.2f}", f"{result.rate:,.0f}"
        )
    return table


async def _measure(store: StoreOptions, transactions: int, in_flight: int) -> list[Result]:
    async with await store.open_async() as db:
        alone = max(1, transactions // 5)

        def transact(number: int) -> Awaitable[object]:
            return db.run(_outbox_transaction, _account(number))

        try:
            single = await _timed("outbox transaction, 1 in flight", alone, 1, transact)
            many = f"outbox transaction, {in_flight} in flight"
            committed = await _timed(many, transactions, in_flight, transact)
            return [
                single,
                committed,
                await _timed_drain(db, committed),
                await _timed_reaping(db),
                await _timed("get", transactions, in_flight, lambda n: db.get(_account(n))),
                await _timed_scan(db),
            ]
        finally:
            await _remove_traces(db)


async def _timed(
    measure: str, times: int, in_flight: int, act: Callable[[int], Awaitable[object]]
) -> Result:
    numbers = iter(range(times))
    started = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(_worker(numbers, act))
    return Result(measure, times, perf_counter() - started)


async def _worker(numbers: Iterator[int], act: Callable[[int], Awaitable[object]]) -> None:
    for number in numbers:  # shared by all workers: each number is taken once
        await act(number)


def _account(number: int) -> bytes:
    return b"postroom-bench/account/%06d" % (number % ACCOUNTS)


async def _outbox_transaction(tx: postroom.aio.Transaction, account: bytes) -> None:
    await tx.get(account)
    tx.put(account, VALUE)
    tx.enqueue_message(INBOX, VALUE)
    tx.enqueue_update(postroom.Increment(COUNTER, 1))


async def _timed_drain(db: postroom.aio.Database, committed: Result) -> Result:
    """Run the same transactions until their messages are delivered and their updates executed."""
    started = perf_counter()
    await db.drain(timeout=600)
    seconds = committed.seconds + perf_counter() - started
    return Result("outbox transactions, delivered and executed", committed.times, seconds)


async def _timed_reaping(db: postroom.aio.Database) -> Result:
    started, taken = perf_counter(), 0
    while reaped := await db.run(_reap):
        taken += reaped
    return Result("messages reaped, 100 at a time", taken, perf_counter() - started)


async def _reap(tx: postroom.aio.Transaction) -> int:
    reaped = await tx.reap_queue(INBOX, 100)
    if reaped:
        tx.put(b"postroom-bench/board", reaped[-1].value)
    return len(reaped)


async def _timed_scan(db: postroom.aio.Database) -> Result:
    started, pairs = perf_counter(), 0
    async for _ in db.scan(*postroom.prefix(b"postroom-bench/account/")):
        pairs += 1
    return Result("pairs scanned", pairs, perf_counter() - started)


async def _remove_traces(db: postroom.aio.Database) -> None:
    await db.drain(timeout=600)
    while await db.run(_reap):
        pass
    await db.delete_range(*postroom.prefix(b"postroom-bench/"))
