"""The commands that files for deployment run, beside those that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from postroom.cli.application import app


def unknown_words(words: Sequence[str]) -> list[str]:
    """Return the options of a command of postroom that it does not have.

    Args:
        words: the name of the command, and its arguments; options are written in full.
    """
    command: Any = typer.main.get_command(app)
    left = list(words)
    while isinstance(command, TyperGroup):
        name = left.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {name for each in command.params for name in each.opts}
    return [each for each in left if each[0] == "-" and each.partition("=")[0] not in known]
