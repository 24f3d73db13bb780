"""Write the page of all commands and options, from their help.

``python docs/tools/command_line_page.py`` prints it; the site has it as
``reference/command-line.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperGroup, TyperOption

from postroom.cli.application import app

HEAD: Final = """# Command line

Made from the help of the commands (`postroom COMMAND -h`). They have in common what
[operating](../operating.md#command-line) tells.

## Commands

| command | |
| --- | --- |"""
OPTIONS: Final = """
## Options

An option has one kind of value in all commands.

| option | value | meaning |
| --- | --- | --- |"""
COMMANDS_MAX: Final = 3
"""An option of more commands than these is told without their names."""


def commands() -> dict[str, Any]:
    """Return the commands by their names, without groups of commands."""
    return dict(_leaves(typer.main.get_command(app)))


def _leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, TyperGroup):
        yield " ".join(path), command
        return
    for name, each in command.commands.items():
        yield from _leaves(each, *path, name)


def page() -> str:
    """Return the page."""
    found: dict[tuple[str, ...], dict[str, TyperOption]] = {}
    for command, each in commands().items():
        for option in each.params:
            if isinstance(option, TyperOption):
                found.setdefault(tuple(option.opts), {})[command] = option
    told = [f"| `{command}` | {_first_line(each)} |" for command, each in commands().items()]
    rows = [_row(names, found[names]) for names in sorted(found)]
    return "\n".join([HEAD, *told, OPTIONS, *rows, ""])


def _first_line(command: Any) -> str:
    return " ".join(str(command.help).partition("\n\n")[0].split())


def _row(names: tuple[str, ...], uses: dict[str, TyperOption]) -> str:
    first = next(iter(uses.values()))
    value = "" if first.is_flag else f"`{first.metavar}`"
    meaning = " ".join(dict.fromkeys(str(each.help) for each in uses.values()))
    where = ", ".join(f"`{each}`" for each in uses) if len(uses) <= COMMANDS_MAX else ""
    told = f"{meaning} ({where})" if where else meaning
    return f"| {', '.join(f'`{each}`' for each in names)} | {value} | {told} |"


if __name__ == "__main__":
    print(page())  # noqa: T201 (the purpose of the program)
