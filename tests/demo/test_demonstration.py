"""The guided tour ends exact, also when it is killed; and its check notices whatever is wrong."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import postroom
import postroom.aio
from postroom.demo.check import SubjectComparison, check, check_turn_rounds
from postroom.demo.cluster import demonstrate_on_cluster
from postroom.demo.flights import Flight, Leg, count_flights, flights, legs
from postroom.demo.replay import decode_board, depart, encode, flight_key, replay
from postroom.demo.splits import split_keys
from postroom.demo.tour import demonstrate
from postroom.demo.turn_rounds import (
    FAILS_ONE_IN,
    QUEUE,
    add_task,
    attempts,
    depart_all,
    fails,
    make_queue,
    plan,
    turn_round_key,
)
from postroom.errors import Error, Invalid, StoreLocked
from postroom.limits import TOUR_RANGES_MAX
from postroom.server.local_cluster import LocalFolder
from tests.cli.commands import failed_with, invoke

Tamper = Callable[[postroom.aio.Database], Awaitable[object]]


def failures(findings: list[SubjectComparison]) -> set[str]:
    return {finding.subject for finding in findings if not finding.passed}


SUBJECTS = 14
"""The number of lines in the table of what was compared."""

RUN_SECONDS = 280.0
"""A time longer than any run takes, on whatever machine."""


def nothing() -> None:
    """Do nothing, in place of a progress bar."""


async def replayed(db: postroom.aio.Database, count: int) -> None:
    await replay(db, flights(count), nothing)


def test_the_source_is_what_the_documentation_says() -> None:
    facts: Counter[str] = Counter()
    for flight in flights():
        facts["all"] += 1
        facts["cancelled"] += flight.cancelled
        facts["without tail number"] += not flight.tail
        facts["flown without tail number"] += not flight.tail and not flight.cancelled
    assert facts["all"] == count_flights() == 336_776
    assert facts["cancelled"] == 8255
    assert facts["without tail number"] == 2512
    assert facts["flown without tail number"] == 0


def test_the_first_departure() -> None:
    assert next(flights()) == Flight(
        1, "2013-01-01", "UA", "1545", "N14228", "EWR", "IAH", "819", False, 2, 1400
    )


def test_the_first_leg_and_those_that_were_flown() -> None:
    assert next(legs()) == Leg(1, "N14228", "IAH", 5 * 60 + 17, 3 * 60 + 4)
    assert sum(1 for _ in legs()) == 336_776 - 8255
    assert all(0 <= leg.flight_minutes < 24 * 60 for leg in legs(20_000))


def test_one_attempt_in_fifty_fails() -> None:
    failed = sum(fails(number, attempt) for number in range(10_000) for attempt in (1, 2, 3))
    assert failed == pytest.approx(30_000 / FAILS_ONE_IN, rel=0.1)


def test_the_demonstration_ends_exact_and_says_the_same_when_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert asyncio.run(demonstrate(store, 400, fresh=False))
    first = capsys.readouterr().out
    assert first.count("PASS") == SUBJECTS
    assert "commit p50" in first
    assert "killed worker 2" in first
    assert "400 turn-rounds; this run took" in first

    assert asyncio.run(demonstrate(store, 300, fresh=False))  # it has gone further already
    second = capsys.readouterr().out
    assert "400 of 400 departures: complete" in second
    assert "turn-rounds; this run" not in second, "they are done"
    assert second.count("PASS") == SUBJECTS

    assert asyncio.run(demonstrate(store, 50, fresh=True))
    assert "50 of 50" in capsys.readouterr().out


def test_the_demonstration_goes_on_from_a_part(tmp_path: Path) -> None:
    assert asyncio.run(demonstrate(tmp_path / "store", 100, fresh=False))
    assert asyncio.run(demonstrate(tmp_path / "store", 250, fresh=False))


@pytest.mark.parametrize("tenths", [1, 5, 10, 12, 16])
def test_killed_and_started_again_it_still_ends_exact(tmp_path: Path, tenths: int) -> None:
    """Ten lines tell of the first act, a table follows, and then ten lines of the second one."""
    command = [sys.executable, "-u", "-m", "postroom.cli.main", "demo"]
    command += ["--path", str(tmp_path / "store"), "--flights", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tenths -= "of 300 departures" in line or "of 300 turn-rounds" in line
            if not tenths:
                break
        assert not tenths
        process.kill()
    again = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "of 300 departures: " in again.stdout.splitlines()[0]
    assert again.stdout.count("PASS") == SUBJECTS


@pytest.mark.timeout(600)
def test_on_a_cluster_whose_nodes_are_killed_it_ends_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "postroom.cli.main", "demo"]
    command += ["--path", str(tmp_path / "cluster"), "--flights"]
    first = subprocess.run(
        [*command, "400", "--nodes", "3", "--chaos"],
        check=False, capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert first.returncode == 0, first.stdout + first.stderr
    first_act, second_act = first.stdout.split("The longest pause took")
    assert "killed node" in first_act
    assert "killed node" in second_act
    assert "killed worker 2" in second_act
    assert first.stdout.count("PASS") == SUBJECTS

    again = subprocess.run(
        [*command, "450", "--nodes", "3"],
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "has 400 of 450 departures" in again.stdout
    assert again.stdout.count("PASS") == SUBJECTS


def test_a_store_of_several_ranges_ends_exact_and_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert asyncio.run(demonstrate(store, 200, fresh=False, ranges=8))
    first = capsys.readouterr().out
    assert first.count("PASS") == SUBJECTS
    assert first.count("split at ") == 7
    assert "8 ranges: 8 led by node 1" in first
    assert asyncio.run(demonstrate(store, 300, fresh=False, ranges=10))
    again = capsys.readouterr().out
    assert again.count("PASS") == SUBJECTS
    assert again.count("split at ") == 2
    with pytest.raises(Error, match="has 10 ranges, which are not put together again: give --ra"):
        asyncio.run(demonstrate(store, 300, fresh=False, ranges=9))


def test_a_store_can_be_split_at_as_many_keys_as_it_may_have_ranges() -> None:
    for total in (1, 800, 336_776):
        assert len(set(split_keys(total))) >= TOUR_RANGES_MAX - 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranges", "0"), "greater than or equal to 1"),
        (("--ranges", "1000"), "less than or equal to 64"),
    ],
)
def test_a_wrong_number_of_ranges_is_refused(arguments: tuple[str, ...], says: str) -> None:
    assert failed_with(invoke("demo", *arguments), 2, says)


def test_killed_while_its_store_is_split_and_started_again_it_ends_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "postroom.cli.main", "demo", "--ranges", "6"]
    command += ["--path", str(tmp_path / "store"), "--flights", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "150 of 300 departures" not in process.stdout.readline():
            assert process.poll() is None
        process.kill()
    again = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "6 ranges: 6 led by node 1" in again.stdout
    assert again.stdout.count("PASS") == SUBJECTS


@pytest.mark.timeout(600)
def test_on_a_cluster_with_several_ranges_whose_nodes_are_killed_it_ends_exact(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "postroom.cli.main", "demo", "--path", str(tmp_path / "c")]
    command += ["--flights", "400", "--nodes", "3", "--ranges", "8", "--chaos"]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "killed node" in ended.stdout
    assert ended.stdout.count("split at ") == 7
    assert "8 ranges: " in ended.stdout
    assert ended.stdout.count("PASS") == SUBJECTS


@pytest.mark.timeout(600)
def test_killed_on_a_cluster_and_started_again_it_ends_exact(tmp_path: Path) -> None:
    """The demonstration is killed after a tenth.

    If nearly all was done before the signal came, since this process stood still, it is begun anew.
    """
    command = [sys.executable, "-u", "-m", "postroom.cli.main", "demo"]
    command += ["--path", str(tmp_path / "cluster"), "--nodes", "3", "--flights", "600"]
    nearly_all = said = "540 of 600 departures"
    while nearly_all in said:
        with subprocess.Popen([*command, "--fresh"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while "60 of 600 departures" not in process.stdout.readline():
                assert process.poll() is None
            process.kill()
            said = process.stdout.read()
        if sys.platform == "linux":
            ports = [int(line) for line in (tmp_path / "cluster" / "ports").read_text().split()]
            wait_until_nobody_listens(ports)
    again = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "of 600 departures: going on" in again.stdout
    assert again.stdout.count("PASS") == SUBJECTS


def wait_until_nobody_listens(ports: list[int]) -> None:
    waiting = threading.Event()
    for port in ports:
        for _ in range(3000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    break
            waiting.wait(0.02)
        else:
            raise AssertionError(f"somebody is left over at port {port}")


def test_the_demonstration_removes_only_its_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    going = demonstrate_on_cluster(tmp_path, 3, 10, None, fresh=True)
    with pytest.raises(Error, match="not the demonstration's"):
        asyncio.run(going)
    assert (tmp_path / "mine").exists()


def test_the_demonstration_without_its_data_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made by postroom demo").touch()
    (tmp_path / "data").touch()
    monkeypatch.setattr("postroom.demo.flights.find_spec", lambda _: None)
    with pytest.raises(Error, match="needs its data"):
        asyncio.run(demonstrate_on_cluster(tmp_path, 3, 10, None, fresh=True))
    assert (tmp_path / "data").exists()


def test_the_demonstration_does_not_touch_a_running_cluster(tmp_path: Path) -> None:
    mark = tmp_path / "made by postroom demo"
    with LocalFolder(tmp_path):
        mark.touch()
        for fresh in (False, True):
            with pytest.raises(StoreLocked, match="runs already"):
                asyncio.run(demonstrate_on_cluster(tmp_path, 3, 10, None, fresh=fresh))
    assert mark.exists()


def test_another_number_of_nodes_is_to_start_over(tmp_path: Path) -> None:
    with LocalFolder(tmp_path, 3):
        postroom.open(tmp_path / "node-1").close()
    with pytest.raises(Invalid, match=r"has 3 nodes, .* --nodes 3, or start over with --fresh"):
        asyncio.run(demonstrate_on_cluster(tmp_path, 5, 10, None, fresh=False))
    assert not (tmp_path / "made by postroom demo").exists(), "it is not its own"


def test_a_departure_happens_once() -> None:
    async def twice() -> list[bool]:
        async with await postroom.aio.open(":memory:") as db:
            flight = next(flights())
            return [await db.run(depart, flight) for _ in range(2)]

    assert asyncio.run(twice()) == [True, False]


async def _send(db: postroom.aio.Database, key: bytes, *, later: float | None = None) -> None:
    async with db.begin() as tx:
        tx.enqueue_message(key, b"[]", deliver_at=later)
    await db.drain()


async def _defer(
    db: postroom.aio.Database, update: postroom.Increment | postroom.Accounting
) -> None:
    async with db.begin() as tx:
        tx.enqueue_update(update)
    await db.drain()


async def _read_twice(db: postroom.aio.Database) -> None:
    """Change the store as if a clerk had forgotten one message, and read another one twice."""
    key = b"board/MIA"
    board = decode_board(await db.get(key))
    board.numbers += 1
    await db.put(key, encode(board))


TAMPERED: dict[str, tuple[Tamper, set[str]]] = {
    "nothing": (lambda db: asyncio.sleep(0), set()),
    "a departure is lost": (lambda db: db.delete(flight_key(7)), {"departures"}),
    "a departure too many": (
        lambda db: db.put(
            flight_key(99), b'[99,"2013-01-01","UA","1","N1","EWR","IAH","1",false,0,0]'
        ),
        {"departures"},
    ),
    "an aircraft is elsewhere": (
        lambda db: db.put(b"aircraft/N14228", b'[1,"XXX"]'),
        {"aircraft"},
    ),
    "a carrier is off by one": (
        lambda db: db.increment(b"carrier/UA", 1),
        {"departures per carrier"},
    ),
    "a day too many": (lambda db: db.increment(b"day/2014-01-01"), {"departures per day"}),
    "a board is lost": (lambda db: db.delete(b"board/IAH"), {"messages per airport"}),
    "one lost, one twice": (_read_twice, {"messages per airport"}),
    "mail is left": (lambda db: _send(db, b"airport/IAH"), {"messages still waiting"}),
    "mail is scheduled": (
        lambda db: _send(db, b"airport/IAH", later=3600.0),
        {"updates and messages pending"},
    ),
    "an account is off by one": (
        lambda db: _defer(db, postroom.Accounting(b"stats/EWR/UA/01", {"departures": 1})),
        {"accounting per prefix"},
    ),
    "an account too many": (
        lambda db: _defer(db, postroom.Accounting(b"stats/XXX", {"cancelled": 1})),
        {"accounting per prefix"},
    ),
    "an update died": (
        lambda db: _defer(db, postroom.Increment(b"aircraft/N14228", 1)),
        {"dead letters"},
    ),
}


async def turned_round(db: postroom.aio.Database, count: int) -> None:
    await make_queue(db)
    await depart_all(db, legs(count), 0.01)
    worker = postroom.aio.Worker(db)
    add_task(worker)
    while sum(len(each.late_milliseconds) for each in await attempts(db)) < count:
        await worker.run_until_idle()
        await asyncio.sleep(0.01)
    await db.drain()


async def _enqueue_again(db: postroom.aio.Database) -> None:
    async with db.begin() as tx:
        tx.enqueue(QUEUE, b"[1]", deliver_at=3600)


async def _lose_worker(db: postroom.aio.Database) -> None:
    """Change the store as if a planned turn-round had never been done."""
    leg = Leg(99, "N1", "IAH", 0, 0)
    await db.run(plan, leg, 3600.0)


TAMPERED_TURNS: dict[str, tuple[Tamper, set[str]]] = {
    "nothing": (lambda db: asyncio.sleep(0), set()),
    "one is lost": (lambda db: db.delete(turn_round_key(7)), {"turn-rounds"}),
    "one is not done": (_lose_worker, {"turn-rounds", "turn-rounds still waiting"}),
    "one is left in the queue": (_enqueue_again, {"turn-rounds still waiting"}),
    "one was done twice": (
        lambda db: db.put(b"hangar/N14228", b"[2,2]"),
        {"turn-rounds per aircraft"},
    ),
    "an airport is off by one": (
        lambda db: db.increment(b"ramp/IAH"),
        {"turn-rounds per airport"},
    ),
    "one came before its aircraft": (
        lambda db: db.put(turn_round_key(1), b'["N14228","IAH",1,-1]'),
        {"turn-rounds before their time"},
    ),
}


@pytest.mark.parametrize("name", TAMPERED_TURNS)
def test_the_check_of_the_second_act_notices(name: str) -> None:
    tamper, expected = TAMPERED_TURNS[name]

    async def tampered() -> list[SubjectComparison]:
        async with await postroom.aio.open(":memory:") as db:
            await turned_round(db, 60)
            await tamper(db)
            return await check_turn_rounds(db, legs(60))

    assert failures(asyncio.run(tampered())) == expected


@pytest.mark.parametrize("name", TAMPERED)
def test_the_check_notices(name: str) -> None:
    tamper, expected = TAMPERED[name]

    async def tampered() -> list[SubjectComparison]:
        async with await postroom.aio.open(":memory:") as db:
            await replayed(db, 60)
            await tamper(db)
            return await check(db, flights(60))

    assert failures(asyncio.run(tampered())) == expected


def test_a_failed_check_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert asyncio.run(demonstrate(store, 60, fresh=False))
    with postroom.open(str(store)) as db:
        db.increment(b"carrier/UA", 1)
    capsys.readouterr()
    assert not asyncio.run(demonstrate(store, 60, fresh=False))
    output = capsys.readouterr().out
    assert output.count("FAIL") == 1
    assert "departures per carrier: UA" in output


@pytest.mark.parametrize("fresh", [False, True])
def test_the_demonstration_leaves_foreign_stores_alone(tmp_path: Path, fresh: bool) -> None:
    store = tmp_path / "store"
    with postroom.open(str(store)) as db:
        db.put(b"mine", b"x")
    with pytest.raises(Error, match="other data than the demonstration's"):
        asyncio.run(demonstrate(store, 10, fresh=fresh))
    with postroom.open(str(store)) as db:
        assert list(db.scan(b"", None)) == [(b"mine", b"x")]
