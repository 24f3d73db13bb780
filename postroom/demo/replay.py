"""The job: each departure in one transaction, and clerks who keep the airports' boards.

::

    departure ──one transaction──▶  flight/000001   put
                                    aircraft/N14228 put, unless a later departure is there already
                                    airport/IAH     ◀─ message: who is coming
                                    carrier/UA      ◀─ deferred Increment
                                    day/2013-01-01  ◀─ deferred Increment
                                    stats/EWR/UA/01 ◀─ deferred Accounting

    clerk of IAH ──one transaction──▶  reap up to 100 messages of airport/IAH, put board/IAH

**Exactly once, whenever it is killed.** A departure's transaction reads its flight's key first: if
it is there, the whole transaction has been done. A new start may therefore offer any departure
again; to save the work it first looks which ones are there. They have gaps: 64 are in flight, and
complete in any order. A clerk takes messages from the inbox in the same transaction that writes
them on the board.

A cancelled departure tells the airport where it did not leave, and moves no aircraft.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import msgspec

import postroom
import postroom.aio
from postroom.demo.flights import Flight

IN_FLIGHT: Final = 64
MESSAGES_AT_ONCE: Final = 100
"""The most messages that a clerk takes at a time."""
MAIL_WAIT_SECONDS: Final = 1.0
"""The time that a clerk waits for mail before it asks again."""
MAIL_PAUSE_SECONDS: Final = 0.25
"""The pause of a clerk before its next round: fuller batches cost less."""
LAST_SHOWN: Final = 5
"""The number of messages shown on a board."""
DRAIN_SECONDS: Final = 600.0
INBOXES_AT_ONCE: Final = 1000

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode


class Board(msgspec.Struct, array_like=True):
    """The mail that an airport has read so far.

    Attributes:
        arrivals: messages about who is coming.
        cancelled: messages about who does not leave.
        numbers: the sum of the departures' numbers: a lost and a repeated message show.
        last: the last few messages.
    """

    arrivals: int = 0
    cancelled: int = 0
    numbers: int = 0
    last: list[Any] = []

    def note(self, messages: Iterable[Any]) -> None:
        """Note these messages on the board."""
        for number, cancelled, *rest in messages:
            self.cancelled += cancelled
            self.arrivals += not cancelled
            self.numbers += number
            self.last.append([number, cancelled, *rest])
        del self.last[:-LAST_SHOWN]


decode_board: Final = msgspec.json.Decoder(Board).decode


@dataclass(slots=True)
class Measures:
    """The work that this run did, and its time."""

    departures: int = 0
    boards: int = 0
    messages_sent: int = 0
    messages_read: int = 0
    updates: int = 0
    seconds: float = 0.0
    commit_seconds: array[float] = field(default_factory=lambda: array("d"))


def flight_key(number: int) -> bytes:
    """Return the key of a departure."""
    return b"flight/%06d" % number


async def numbers_done(db: postroom.aio.Database) -> AsyncIterator[int]:
    """Yield the numbers of the departures that are in the store, in order."""
    async for key, _ in db.scan(*postroom.prefix(b"flight/")):
        yield int(key[len(b"flight/") :])


async def replay(
    db: postroom.aio.Database, flights: Iterator[Flight], advance: Callable[[], None]
) -> Measures:
    """Replay ``flights`` and read all mail; return when nothing is under way any more.

    Args:
        db: the store.
        flights: the departures; those that are in the store already do no harm.
        advance: called for each departure.
    """
    measures, started = Measures(), perf_counter()
    async with asyncio.TaskGroup() as group:
        clerks = Clerks(db, group, measures)
        await clerks.hire_for_mail()
        async with asyncio.TaskGroup() as workers:
            for _ in range(IN_FLIGHT):
                workers.create_task(_depart_all(db, flights, clerks, measures, advance))
        await db.drain(timeout=DRAIN_SECONDS)
        await clerks.hire_for_mail()
        clerks.finish()
    measures.seconds = perf_counter() - started
    return measures


async def _depart_all(
    db: postroom.aio.Database,
    flights: Iterator[Flight],
    clerks: Clerks,
    measures: Measures,
    advance: Callable[[], None],
) -> None:
    """Replay departures one after another, taken from the iterator that all workers share."""
    asked = 0.0

    async def transaction(tx: postroom.aio.Transaction, flight: Flight) -> bool:
        nonlocal asked
        new = await depart(tx, flight)
        asked = perf_counter()
        return new

    for flight in flights:
        if await db.run(transaction, flight):
            measures.commit_seconds.append(perf_counter() - asked)
            measures.departures += 1
            measures.messages_sent += 1
            measures.updates += 3
        clerks.hire(flight.recipient)
        advance()


async def depart(tx: postroom.aio.Transaction, flight: Flight) -> bool:
    """Write and send what a departure changes; return False if it was done before."""
    key = flight_key(flight.number)
    if await tx.get(key) is not None:
        return False
    tx.put(key, encode(flight))
    if not flight.cancelled:
        await _move_aircraft(tx, flight)
    message = (flight.number, flight.cancelled, flight.carrier + flight.flight, flight.origin)
    tx.enqueue_message(b"airport/" + flight.recipient.encode(), encode((*message, flight.arrival)))
    tx.enqueue_update(postroom.Increment(b"carrier/" + flight.carrier.encode(), 1))
    tx.enqueue_update(postroom.Increment(b"day/" + flight.day.encode(), 1))
    tx.enqueue_update(postroom.Accounting(flight.account.encode(), sums(flight)))
    return True


async def _move_aircraft(tx: postroom.aio.Transaction, flight: Flight) -> None:
    key = b"aircraft/" + flight.tail.encode()
    position = await tx.get(key)
    # Two departures of one aircraft may be in flight at once, and the later one must win.
    if position is None or decode(position)[0] < flight.number:
        tx.put(key, encode((flight.number, flight.destination)))


def sums(flight: Flight) -> dict[str, int]:
    """Return the amounts that a departure adds to the sums of its origin, carrier and month."""
    if flight.cancelled:
        return {"cancelled": 1}
    return {
        "departures": 1,
        "delay_minutes": flight.delay_minutes,
        "distance_miles": flight.distance_miles,
    }


class Clerks:
    """The clerks: one an airport, hired with its first mail; each works until all is read."""

    def __init__(
        self, db: postroom.aio.Database, group: asyncio.TaskGroup, measures: Measures
    ) -> None:
        self._db = db
        self._group = group
        self._measures = measures
        self._finishing = asyncio.Event()
        self._airports: set[str] = set()

    def hire(self, airport: str) -> None:
        """Hire a clerk for the mail of ``airport`` unless it has one."""
        if airport not in self._airports:
            self._airports.add(airport)
            self._group.create_task(self._work(airport))

    async def hire_for_mail(self) -> None:
        """Hire clerks for all mail that is waiting: an earlier run may have left it."""
        waiting = await self._db.inboxes(*postroom.prefix(b"airport/"), limit=INBOXES_AT_ONCE)
        for inbox in waiting:
            self.hire(inbox.key.removeprefix(b"airport/").decode())

    def finish(self) -> None:
        """Let each clerk read the rest of its mail and end: no more mail will come."""
        self._finishing.set()

    async def _work(self, airport: str) -> None:
        while True:
            last_round = self._finishing.is_set()
            wait = None if last_round else MAIL_WAIT_SECONDS
            read = await self._db.run(read_mail, airport, wait)
            self._measures.boards += read > 0
            self._measures.messages_read += read
            if last_round and read == 0:
                return
            if read < MESSAGES_AT_ONCE:
                await self._rest()

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._finishing.wait(), MAIL_PAUSE_SECONDS)
        except TimeoutError:
            return


async def read_mail(tx: postroom.aio.Transaction, airport: str, wait: float | None) -> int:
    """Take an airport's oldest messages and note them on its board; return how many."""
    mail = await tx.reap_queue(b"airport/" + airport.encode(), MESSAGES_AT_ONCE, wait=wait)
    if mail:
        key = b"board/" + airport.encode()
        stored = await tx.get(key)
        board = Board() if stored is None else decode_board(stored)
        board.note(decode(message.value) for message in mail)
        tx.put(key, encode(board))
    return len(mail)
