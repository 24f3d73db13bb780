"""Each command explains itself, and ends with a code that the page tells."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from postroom.cli.application import app

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


def walk(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from walk(each, *path, name)


ALL = dict(walk(typer.main.get_command(app)))
LEAVES = {path: each for path, each in ALL.items() if not isinstance(each, TyperGroup)}


def options(command: Any) -> list[TyperOption]:
    return [each for each in command.params if isinstance(each, TyperOption)]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of the page."""
    below = PAGE.split(f"{heading}\n", 1)[1].splitlines()
    table = dropwhile(lambda line: not line.startswith("|"), below)
    lines = list(takewhile(lambda line: line.startswith("|"), table))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_of_a_command_fits_80_columns_and_cuts_nothing(path: tuple[str, ...]) -> None:
    shown = [
        CliRunner().invoke(app, [*path, option], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
        for option in ("-h", "--help")
    ]
    assert [each.exit_code for each in shown] == [0, 0]
    assert shown[0].output == shown[1].output
    assert "…" not in shown[0].output, shown[0].output
    assert max(map(len, shown[0].output.splitlines())) <= 80


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_each_option_of_a_command_has_help(path: tuple[str, ...]) -> None:
    assert ALL[path].help
    assert [each.name for each in options(ALL[path]) if not each.help] == []


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_a_paragraph_of_help_is_one_line_that_the_terminal_divides(path: tuple[str, ...]) -> None:
    assert all("\n" not in each for each in LEAVES[path].help.split("\n\n"))


def test_an_option_takes_one_kind_of_value_in_all_commands() -> None:
    values: dict[str, set[str]] = {}
    for command in LEAVES.values():
        for each in options(command):
            for name in each.opts:
                values.setdefault(name, set()).add("" if each.is_flag else str(each.metavar))
    assert {name: found for name, found in values.items() if len(found) > 1} == {}


def test_the_page_tells_the_exit_codes() -> None:
    assert [cells[0] for cells in rows("### Exit codes")] == ["0", "1", "2", "3 to 7", "130"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("get", "missing"), 1),
        (("get",), 2),
        (("get", "k", "--limit", "3"), 2),
        (("queue", "show", "missing"), 1),
        (("queue", "nonsense"), 2),
        (("status",), 0),
    ],
)
def test_a_command_exits_with_the_code_of_the_table(
    tmp_path: Any, arguments: tuple[str, ...], code: int
) -> None:
    environment = {"POSTROOM_PATH": str(tmp_path / "store")}
    runner = CliRunner()
    assert runner.invoke(app, ["put", "k", "v"], env=environment).exit_code == 0
    assert runner.invoke(app, [*arguments], env=environment).exit_code == code
