"""The pace of a backup: a limit of bytes in a second, and sleep while others write."""

from __future__ import annotations

from typing import Any

from postroom.backup.pace import Pace
from postroom.client.blocking import run_blocking


class Time:
    """A sender whose time is moved by sleeping and by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.slept += seconds


def paced(rate: int | None, entries_a_second: float, pages: int = 200) -> Time:
    """Return the time after so many pages of 1,000 bytes, each of which takes 10 ms."""
    time: Any = Time()

    async def last_entry() -> int:
        return int(time.seconds * entries_a_second)

    pace = Pace(time, last_entry, rate)
    for _ in range(pages):
        time.seconds += 0.01
        run_blocking(pace.after(1000))
    found: Time = time
    return found


def test_a_backup_does_not_sleep_while_nobody_writes() -> None:
    assert paced(None, 0).slept == 0
    assert paced(None, 5).slept == 0


def test_a_backup_sleeps_nine_times_as_long_as_it_works_while_others_write() -> None:
    time = paced(None, 1000)
    worked = 200 * 0.01
    assert 8.0 < time.slept / worked <= 9.0


def test_a_backup_reads_no_more_in_a_second_than_its_rate() -> None:
    time = paced(50_000, 0)
    assert abs((time.seconds - 100.0) - 200 * 1000 / 50_000) < 0.1
    assert paced(50_000_000, 0).slept == 0
