"""The pages that programs write have every request, every command and every option."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import msgspec
import pytest
import typer
from typer.core import TyperGroup, TyperOption

from postroom.cli.application import app
from postroom.messaging.bulk_requests import TABLES
from postroom.protocol.requests import REQUESTS, name_of
from postroom.ranges.contract import Request

TOOLS = Path(__file__).parents[2] / "docs" / "tools"


def written(program: str) -> str:
    return str(runpy.run_path(str(TOOLS / program))["page"]())


@pytest.fixture(scope="module")
def requests_page() -> str:
    return written("requests_page.py")


@pytest.mark.parametrize("kind", [*REQUESTS.asked, *REQUESTS.writes], ids=name_of)
def test_the_page_has_each_request_with_its_fields_in_order(
    requests_page: str, kind: type[Request]
) -> None:
    told = requests_page.split(f"### `{name_of(kind)}`\n", 1)[1].partition("\n#")[0]
    fields = [field.name for field in msgspec.structs.fields(kind)]
    assert re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE) == fields
    assert "Answer: " in told


def test_each_record_that_the_page_names_is_on_it(requests_page: str) -> None:
    records = {name.lower() for name in re.findall(r"^### (\w+)$", requests_page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", requests_page)) == records


def test_the_page_has_each_table_of_records_with_its_columns(requests_page: str) -> None:
    told = dict(re.findall(r"^\| (\w+) \| (.*) \|$", requests_page, re.MULTILINE))
    for name, columns in TABLES.items():
        assert [each.split()[0] for each in told[name].split(", ")] == list(columns)


def test_the_page_has_every_command_with_its_options() -> None:
    page = written("command_line_page.py")
    commands = set(re.findall(r"^\| `([a-z][a-z -]*)` \| \w", page, re.MULTILINE))
    told = set(re.findall(r"`(--?[a-z-]+)`", page))
    left = [("", typer.main.get_command(app))]
    while left:
        path, command = left.pop()
        if isinstance(command, TyperGroup):
            left += [(f"{path} {name}".strip(), each) for name, each in command.commands.items()]
            continue
        options = [each for each in command.params if isinstance(each, TyperOption)]
        assert path in commands
        assert {name for each in options for name in each.opts} <= told
