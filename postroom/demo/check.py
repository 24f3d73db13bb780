"""The comparison of the store with the departures of the source, to the last unit.

The expected contents are counted from the source alone, by other code than the job's. Each subject
becomes two dictionaries, one of expected values and one of all found values. They are equal, or the
comparison lists where they differ. This shows a missing key, an extra key and a count that is off
by one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

import postroom
import postroom.aio
from postroom.counted import counted
from postroom.demo.flights import Flight, Leg
from postroom.demo.replay import decode, decode_board
from postroom.demo.turn_rounds import QUEUE

DIFFERENCES_SHOWN: Final = 3

Values: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SubjectComparison:
    """The comparison of one subject.

    Attributes:
        subject: what was compared.
        compared: how many values.
        differences: a sentence for each value that is not what it must be.
    """

    subject: str
    compared: int
    differences: list[str]

    @property
    def passed(self) -> bool:
        """Return whether all values are as expected."""
        return not self.differences


@dataclass(slots=True)
class Expected:
    """The contents that a store must have after some departures."""

    flights: Counter[str] = field(default_factory=Counter)
    aircraft: dict[str, object] = field(default_factory=dict)
    mail: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    carriers: Counter[str] = field(default_factory=Counter)
    days: Counter[str] = field(default_factory=Counter)
    accounts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, flight: Flight) -> None:
        """Count one departure."""
        add_totals(self.flights, flight)
        if not flight.cancelled:
            self.aircraft[flight.tail] = [flight.number, flight.destination]
        arrivals, cancelled, numbers = self.mail.get(flight.recipient, (0, 0, 0))
        self.mail[flight.recipient] = (
            arrivals + (not flight.cancelled),
            cancelled + flight.cancelled,
            numbers + flight.number,
        )
        self.carriers[flight.carrier] += 1
        self.days[flight.day] += 1
        self._add_to_accounts(flight)

    def _add_to_accounts(self, flight: Flight) -> None:
        path = ["stats", flight.origin, flight.carrier, flight.day[5:7]]
        for length in range(1, len(path) + 1):
            account = self.accounts.setdefault("/".join(path[:length]), Counter())
            account["cancelled"] += flight.cancelled
            account["departures"] += not flight.cancelled
            if not flight.cancelled:
                account["delay_minutes"] += flight.delay_minutes
                account["distance_miles"] += flight.distance_miles


def add_totals(totals: Counter[str], flight: Flight) -> None:
    """Add a departure to the totals by which the departures themselves are compared."""
    totals["departures"] += 1
    totals["sum of numbers"] += flight.number
    totals["cancelled"] += flight.cancelled
    totals["minutes late"] += flight.delay_minutes
    totals["miles"] += flight.distance_miles
    totals[f"in {flight.day[:7]}"] += 1


def expect(flights: Iterable[Flight]) -> Expected:
    """Return what a store must contain after ``flights``."""
    expected = Expected()
    for flight in flights:
        expected.add(flight)
    return expected


async def check(db: postroom.aio.Database, flights: Iterable[Flight]) -> list[SubjectComparison]:
    """Compare the store with ``flights``, subject by subject."""
    # The check runs in a thread: the store shares this loop, and the year takes two seconds to
    # count.
    expected = await asyncio.to_thread(expect, flights)
    accounts = {key: without_zeros(sums) for key, sums in expected.accounts.items()}
    return [
        compare("departures", expected.flights, await _flights(db)),
        compare("aircraft", expected.aircraft, await _aircraft(db)),
        compare("messages per airport", expected.mail, await _boards(db)),
        compare("departures per carrier", expected.carriers, await _counters(db, b"carrier/")),
        compare("departures per day", expected.days, await _counters(db, b"day/")),
        compare("accounting per prefix", accounts, await _accounts(db, accounts)),
        compare("messages still waiting", {}, await _waiting(db)),
        compare("updates and messages pending", {}, await _pending(db)),
        compare("dead letters", {}, await _dead(db)),
    ]


async def check_turn_rounds(
    db: postroom.aio.Database, legs: Iterable[Leg]
) -> list[SubjectComparison]:
    """Compare the results of the second act with the ``legs`` with which it was played."""
    flown = await asyncio.to_thread(list, legs)
    hangars = turned_round(flown)
    turned = {str(leg.number): f"{leg.tail} at {leg.destination}" for leg in flown}
    done, early = await _turn_rounds(db)
    found = {name: decode(value) for name, value in await _pairs(db, b"hangar/")}
    ramps = Counter(leg.destination for leg in flown)
    return [
        compare("turn-rounds", turned, done),
        compare("turn-rounds per aircraft", hangars, found),
        compare("turn-rounds per airport", ramps, await _counters(db, b"ramp/")),
        compare("turn-rounds before their time", {}, early),
        compare("turn-rounds still waiting", {}, await _queued(db)),
    ]


def turned_round(legs: Iterable[Leg]) -> dict[str, list[int]]:
    """Return the expected turn-rounds of each aircraft, and the sum of their numbers."""
    hangars: dict[str, list[int]] = {}
    for leg in legs:
        rounds, numbers = hangars.get(leg.tail, (0, 0))
        hangars[leg.tail] = [rounds + 1, numbers + leg.number]
    return hangars


def compare(subject: str, expected: Values, found: Values) -> SubjectComparison:
    """Compare the expected values with the found ones."""
    differences = [
        f"{name}: {found.get(name, 'nothing')} instead of {expected.get(name, 'nothing')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    return SubjectComparison(subject, len(expected), differences)


def without_zeros(sums: Mapping[str, int]) -> dict[str, int]:
    """Return the sums without zeros: a sum of zero equals a missing sum."""
    return {metric: value for metric, value in sums.items() if value}


async def _flights(db: postroom.aio.Database) -> Values:
    totals: Counter[str] = Counter()
    async for _, value in db.scan(*postroom.prefix(b"flight/")):
        add_totals(totals, Flight(*decode(value)))
    return totals


async def _aircraft(db: postroom.aio.Database) -> Values:
    return {name: decode(value) for name, value in await _pairs(db, b"aircraft/")}


async def _boards(db: postroom.aio.Database) -> Values:
    boards = {name: decode_board(value) for name, value in await _pairs(db, b"board/")}
    return {name: (it.arrivals, it.cancelled, it.numbers) for name, it in boards.items()}


async def _counters(db: postroom.aio.Database, prefix: bytes) -> Values:
    return {name: postroom.integer(value) for name, value in await _pairs(db, prefix)}


async def _pairs(db: postroom.aio.Database, prefix: bytes) -> list[tuple[str, bytes]]:
    """Return the rest of each key that begins with ``prefix``, and its value."""
    span = postroom.prefix(prefix)
    return [(key[len(prefix) :].decode(), value) async for key, value in db.scan(*span)]


async def _accounts(db: postroom.aio.Database, expected: Iterable[str]) -> Values:
    # "stats" is enough: each addition to another prefix was added there too.
    found = {key: without_zeros(await db.accounting(key.encode())) for key in expected}
    return {key: sums for key, sums in found.items() if sums}


async def _turn_rounds(db: postroom.aio.Database) -> tuple[Values, Values]:
    """Return the turn-rounds that are done, and those of them that began too early."""
    done: dict[str, object] = {}
    early: dict[str, object] = {}
    for name, value in await _pairs(db, b"turn/"):
        tail, airport, *result = decode(value)
        number = str(int(name))
        done[number] = f"{tail} at {airport}" if result else "planned"
        if result and result[1] < 0:
            early[number] = f"{-result[1]} ms too early"
    return done, early


async def _queued(db: postroom.aio.Database) -> Values:
    stats = await db.queue(QUEUE).stats()
    left = {"ready": stats.ready, "scheduled": stats.scheduled, "leased": stats.leased}
    return without_zeros({**left, "dead": stats.dead})


async def _waiting(db: postroom.aio.Database) -> Values:
    waiting = await db.inboxes(limit=100)
    return {repr(inbox.key): counted(inbox.messages, "message") for inbox in waiting}


async def _pending(db: postroom.aio.Database) -> Values:
    messages = (await db.status()).counters
    pending = {"messages": messages.pending_messages, "updates": messages.pending_updates}
    return without_zeros(pending)


async def _dead(db: postroom.aio.Database) -> Values:
    return {letter.id: letter.reason for letter in await db.dead_letters(limit=100)}


# --- output ---------------------------------------------------------------------------------------


def show_comparisons(console: Console, findings: list[SubjectComparison]) -> None:
    """Print the verdict, subject by subject, and the first differences of each."""
    table = Table("compared with the source", "values", "result", title_justify="left")
    table.columns[1].justify = "right"
    for finding in findings:
        result = "[green]PASS[/]" if finding.passed else "[bold red]FAIL[/]"
        table.add_row(finding.subject, f"{finding.compared:,}", result)
    console.print(table)
    for finding in findings:
        for difference in finding.differences[:DIFFERENCES_SHOWN]:
            console.out(f"{finding.subject}: {difference}", style="red")
        if (more := len(finding.differences) - DIFFERENCES_SHOWN) > 0:
            console.out(f"{finding.subject}: {counted(more, 'more difference')}", style="red")
