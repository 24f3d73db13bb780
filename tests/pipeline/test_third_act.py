"""``postroom demo --spark``: what Spark makes of the year is compared with the departures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import postroom
import postroom.aio
from postroom.cli import spark as spark_options
from postroom.cli.application import app
from postroom.demo import third_act, tour
from postroom.demo.check import expect, turned_round
from postroom.demo.flights import flights, legs
from postroom.demo.replay import sums
from postroom.demo.third_act import (
    TOUR_KEY,
    WHOLE_FILE,
    Play,
    files_folder,
    keep_readable,
)
from postroom.demo.tour import demonstrate
from postroom.pipeline.jobs.archive import Gap
from postroom.pipeline.jobs.audit import Finding
from postroom.ranges.accounting import prefixes
from tests.client.stores import Store

SUBJECTS = 14 + 5
"""The number of lines of the tables that compare."""


async def read_what_nobody_sent(db: postroom.aio.Database) -> None:
    """Read one message more, which no departure has sent."""
    async with db.begin() as tx:
        tx.enqueue_message(b"airport/IAH", b'[1000, false, "XX1", "EWR", "1200"]')
    async with db.begin() as tx:
        assert await tx.reap_queue(b"airport/IAH", 9)


def test_the_archive_is_compared_with_the_departures(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message of four ranges is in the archive that no departure has sent."""
    real = tour.compare

    async def compare(console: Console, db: postroom.aio.Database, total: int, turned: int) -> bool:
        exact = await real(console, db, total, turned)
        await read_what_nobody_sent(db)
        return exact

    monkeypatch.setattr(tour, "compare", compare)
    store = tmp_path / "store"
    assert not asyncio.run(demonstrate(store, 60, fresh=False, spark=spark, ranges=4))
    shown = capsys.readouterr().out
    wrong, reported = (line for line in shown.splitlines() if "instead of" in line)
    assert wrong.startswith("archived mail per airport: IAH: ")
    assert reported == "messages in the report: mail: 61 instead of 60"
    assert (shown.count("PASS"), shown.count("FAIL")) == (SUBJECTS - 2, 2)
    assert (files_folder(store) / "archive" / "manifests").is_dir()


# --- without Spark --------------------------------------------------------------------------------


def test_mail_that_was_not_kept_is_not_compared_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(Console(), None, {}, tmp_path)
    monkeypatch.setattr(Play, "_turn_rounds", lambda _: turned_round(legs(5)))
    archived: Any = SimpleNamespace(gaps_so_far=())
    reported: Any = SimpleNamespace(measures="")
    audited: Any = SimpleNamespace(findings=[Finding("accounting", 1, 0)])
    for mail in (0, 1):
        findings = play._compare(archived, reported, audited, 5, 5)
        assert ("archived mail per airport" in [each.subject for each in findings]) == bool(mail)
        assert ("start over with --fresh --spark" in capsys.readouterr().out) != bool(mail)
        (tmp_path / WHOLE_FILE).touch()
        monkeypatch.setattr(Play, "_mail", lambda _: {})
        monkeypatch.setattr(Play, "_done", lambda _, __: {})
    # The changes that an earlier run had missed are not in the files either.
    archived.gaps_so_far = (Gap("inboxes", 1, 2),)
    findings = play._compare(archived, reported, audited, 5, 5)
    assert "archived mail per airport" not in [each.subject for each in findings]
    assert "start over with --fresh --spark" in capsys.readouterr().out


def test_history_that_is_kept_can_be_read_from_the_beginning() -> None:
    store = Store()
    store.db.put(TOUR_KEY, b"")
    store.db.put(b"a", b"1")
    then = store.db.now()
    keeper = keep_readable(store.core)
    store.driver.run(keeper.__aenter__())
    for kept in (True, False):
        store.db.put(b"a", b"2")
        store.advance(1000)
        assert (store.db.partitions()[0].readable_from < then) == kept
        if kept:
            assert store.db.get(b"a", at=then) == b"1"
            store.driver.run(keeper.__aexit__(None, None, None))


def test_without_spark_it_says_what_to_install_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_options, "find_spec", lambda _: None)
    path = tmp_path / "store"
    ended = CliRunner().invoke(app, ["demo", "--spark", "--path", str(path)])
    assert ended.exit_code == 1
    (line,) = ended.stderr.splitlines()
    assert "[spark]" in line
    assert "nothing was done" in line
    assert not path.exists()


@pytest.mark.parametrize("count", [1, 60, 3000])
def test_metrics_are_counted_as_the_store_keeps_them(count: int) -> None:
    """Those whose sum is zero, too."""
    kept: dict[bytes, set[str]] = {}
    for flight in flights(count):
        for prefix in prefixes(flight.account.encode()):
            kept.setdefault(prefix, set()).update(sums(flight))
    expected = expect(flights(count)).accounts
    assert {key.encode(): third_act._metrics(sums) for key, sums in expected.items()} == {
        key: len(metrics) for key, metrics in kept.items()
    }
