"""``postroom demo --spark``: what Spark makes of the year is compared with the departures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from postroom.cli.application import app
from postroom.cli.pipeline import running
from postroom.demo import third_act
from postroom.demo.check import expect, turned_round
from postroom.demo.flights import flights, legs
from postroom.demo.replay import sums
from postroom.demo.third_act import MARK, WHOLE_FILE, Play, ThirdAct, keeping
from postroom.pipeline.jobs.audit import Finding
from postroom.ranges.accounting import prefixes
from tests.client.stores import Store

# --- without Spark --------------------------------------------------------------------------------


def test_mail_that_was_not_kept_is_not_compared_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(Console(), ThirdAct(None), {}, tmp_path)
    monkeypatch.setattr(Play, "_turn_rounds", lambda _: turned_round(legs(5)))
    archived: Any = SimpleNamespace(gaps=())
    audited: Any = SimpleNamespace(findings=[Finding("accounting", 1, 0)])
    for mail in (0, 1):
        findings = play._compare(archived, audited, 5, 5)
        assert ("archived mail per airport" in [each.subject for each in findings]) == bool(mail)
        assert ("start over with --fresh --spark" in capsys.readouterr().out) != bool(mail)
        (tmp_path / WHOLE_FILE).touch()
        monkeypatch.setattr(Play, "_mail", lambda _: {})


def test_what_is_read_while_it_is_kept_can_be_read_from_the_beginning() -> None:
    store = Store()
    store.db.put(MARK, b"")
    store.db.put(b"a", b"1")
    then = store.db.now()
    keeper = keeping(store.core)
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
    monkeypatch.setattr(running, "find_spec", lambda _: None)
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
