"""The pace of a backup: a limit of bytes in a second, and sleep while others write."""

from __future__ import annotations

from typing import Any

import postroom
from postroom.backup.pace import Pace
from postroom.backup.reading import StoreReader
from postroom.backup.taking import applied_entries
from postroom.client.blocking import run_blocking
from postroom.messaging.bulk_requests import ScanRecords
from tests.client.hand_driver import Running
from tests.client.stores import Store


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

    async def entries() -> int:
        return int(time.seconds * entries_a_second)

    pace = Pace(time, entries, rate)
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


def test_writes_to_any_range_count_as_those_of_others() -> None:
    with postroom.open(":memory:") as db:
        db.split(b"m")
        for key in (b"a", b"z"):
            before = entries_of(db)
            db.put(key, b"1")
            assert entries_of(db) > before


def entries_of(db: postroom.Database) -> int:
    """Return how many entries the logs of a store have."""
    return db.sender.run(applied_entries(db._core))


def test_a_commit_waits_for_no_more_than_two_pages_of_a_backup() -> None:
    """A commit comes with each page that is asked for; a page is asked for while one is used."""
    store, puts = Store(), list[Running[int]]()
    for number in range(300):
        store.db.put(b"%04d" % number, bytes(20_000))
    send = store.driver.send

    def with_a_commit(request: Any, timeout_seconds: float | None = None) -> Any:
        if type(request) is ScanRecords:
            assert all(put.done for put in puts[:-2])
            puts.append(store.start(store.core.put(b"other", b"%d" % len(puts))))
        return send(request, timeout_seconds)

    async def read_all() -> int:
        async with store.core.hold(whole=True) as at:
            store.driver.send = with_a_commit  # type: ignore[method-assign]
            reader = StoreReader(store.core, int(at), await store.core.ranges())
            return sum([len(page.entries[0]) async for page in reader.of_keys(b"", None)])

    assert store.driver.run(read_all()) == 300
    assert len(puts) > 5
    store.node.close()
