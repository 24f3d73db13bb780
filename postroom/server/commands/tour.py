"""The command demo: the guided tour, on real data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def demo(
    path: Annotated[Path, typer.Option(metavar="DIR", help="Where its store is.")] = Path(
        "postroom-demo"
    ),
    flights: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only the first N.", show_default="the whole year"),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over with an empty store.")] = False,
) -> None:
    """Replay the departures from New York's airports in 2013, and check every unit.

    Kill it at any moment and start it again: it goes on where it was, and still ends exact.
    """
    # Only now, so that the other commands start without it.
    from postroom.server.demonstration.tour import demonstrate  # noqa: PLC0415

    if not asyncio.run(demonstrate(path, flights, fresh)):
        raise typer.Exit(1)
