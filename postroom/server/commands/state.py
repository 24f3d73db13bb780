"""The command status: what the store says about itself."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.table import Table

import postroom
from postroom.server.commands.options import AsJson, StorePath, open_existing
from postroom.server.commands.output import print_json


def status(path: StorePath, as_json: AsJson = False) -> None:
    """Print what the store holds and what is under way."""
    with open_existing(path) as db:
        facts = _facts(db.status())
    if as_json:
        print_json(facts)
    else:
        Console().print(_table(str(path), facts))


def _facts(now: postroom.Status) -> dict[str, object]:
    return {
        **now._asdict(),
        "timestamp": now.timestamp.datetime.isoformat(),
        "counters": msgspec.structs.asdict(now.counters),
    }


def _table(title: str, facts: dict[str, object]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in _flat("", facts):
        table.add_row(name.replace("_", " "), value)
    return table


def _flat(prefix: str, facts: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The facts as pairs; those inside others under both names."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name} · ", value)
        else:
            yield prefix + name, f"{value:,}" if type(value) is int else str(value)
