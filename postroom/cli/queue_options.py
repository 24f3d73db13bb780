"""The settings of a queue as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from postroom.cli.options import decorated, required_store

_Seconds = Annotated[float | None, typer.Option(metavar="SECONDS", min=0, show_default=False)]
_Count = Annotated[int | None, typer.Option(metavar="N", min=0, show_default=False)]
_Rate = Annotated[float | None, typer.Option(metavar="A-SECOND", min=0, show_default=False)]


def _settings(
    ack_wait: Annotated[
        float | None, typer.Option(help="Seconds until a message is fired again.", min=0)
    ] = None,
    min_backoff: _Seconds = None,
    max_backoff: _Seconds = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="After so many it is dead; 0: never.", min=0)
    ] = None,
    purge_after: Annotated[
        float | None, typer.Option(help="Seconds that a done message is kept.", min=0)
    ] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--no-archive", help="Keep done messages for ever.")
    ] = None,
    batch_size: _Count = None,
    cache_size: _Count = None,
    poller_interval: _Seconds = None,
    max_rate: Annotated[
        float | None, typer.Option(help="Messages a second; 0: any number.", min=0)
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Held at a time; 0: any number.", min=0)
    ] = None,
    order: Literal["none", "group"] | None = None,
    on_duplicate: Literal["ignore", "error", "replace"] | None = None,
    dead_letter_queue: Annotated[
        str | None, typer.Option(help="Where the dead go; empty: nowhere else.")
    ] = None,
    group_max_rate: _Rate = None,
    group_max_concurrency: _Count = None,
) -> dict[str, Any]:
    """Those that were given. 0, and nothing, are written for what has no bound."""
    given = {name: value for name, value in locals().items() if value is not None}
    for name in (
        "max_attempts", "max_rate", "max_concurrency", "group_max_rate", "group_max_concurrency",
        "dead_letter_queue",
    ):  # fmt: skip
        if name in given and not given[name]:
            given[name] = None
    return given


def on_a_store_with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a function whose first arguments are a store and settings a command with options for
    both.
    """
    return decorated(command, required_store, _settings)
