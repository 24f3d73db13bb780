"""Lists on a terminal: tables whose ids can be copied, and whose texts take one line."""

from __future__ import annotations

import re
import sys

import pytest
from rich.cells import cell_len

from postroom.cli.output import Listing

ID = "01a20b5f26060000000001a20b55fe4600000000000201"
DUE = "2026-11-24T02:25:14.758000+00:00"


def printed(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> list[str]:
    """Return the lines of a list with one record on a terminal of so many columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    headers = ("id", "due", "what", "attempts", "last error")
    with Listing(*headers, texts=("what", "last error")) as out:
        out.add(ID, DUE, what, "0")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return [line for line in plain.splitlines() if line.strip()]


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_record_takes_one_line_and_its_id_stays_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, _, *records = printed(columns, monkeypatch, capsys, "hello " * 100)
    assert [each.split()[0] for each in records] == [ID]
    assert DUE in records[0]
    assert "hello" in records[0]
    assert "…" in records[0], "what is cut is marked"
    assert header.split()[:2] == ["id", "due"]


def test_a_table_is_no_wider_than_a_terminal_that_has_room_for_what_cannot_be_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(200, monkeypatch, capsys, "日本 " * 100)
    assert max(map(cell_len, lines)) <= 200
    assert max(map(cell_len, lines)) > 190, "the text takes the room there is"


def test_a_text_that_has_room_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, record = printed(200, monkeypatch, capsys, "[bold]ship order 17[/bold]")
    assert "[bold]ship order 17[/bold]" in record
    assert "…" not in record


def test_numbers_end_below_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Listing("queue", "ready", "state") as out:
        out.add("emails", "7", "paused")
        out.add("invoices", "12345", "")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    ends = [
        line.index(word) + len(word)
        for line in lines
        for word in (" 7 ", " 12345 ")
        if word in line
    ]
    assert len(ends) == 2
    assert ends[0] == ends[1]
