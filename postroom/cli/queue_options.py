"""The settings of a queue as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import typer

from postroom.cli.options import required_store, with_options
from postroom.messaging.queues.requests import QueueSettings

_NEW_QUEUE: Final = QueueSettings()


def _setting(name: str, metavar: str, text: str) -> Any:
    """Return the option of a setting; its help tells what a new queue has without it."""
    default = getattr(_NEW_QUEUE, name)
    if isinstance(default, float):
        default = f"{default:g}"
    progress_shown = "" if default is None else rf"  \[a new queue: {default}]"
    least = 0 if metavar in {"SECONDS", "N", "RATE"} else None
    return typer.Option(metavar=metavar, min=least, show_default=False, help=text + progress_shown)


_AckWait = Annotated[
    float | None,
    _setting("ack_wait", "SECONDS", "Fire a message again that is held for SECONDS."),
]
_MinBackoff = Annotated[
    float | None,
    _setting("min_backoff", "SECONDS", "Wait at least SECONDS after a failed attempt."),
]
_MaxBackoff = Annotated[
    float | None,
    _setting("max_backoff", "SECONDS", "Wait at most SECONDS after a failed attempt."),
]
_MaxAttempts = Annotated[
    int | None, _setting("max_attempts", "N", "Bury a message after N attempts; 0: never.")
]
_PurgeAfter = Annotated[
    float | None, _setting("purge_after", "SECONDS", "Delete a done message after SECONDS.")
]
_Archive = Annotated[
    bool, typer.Option("--archive", help="Keep done messages for ever, in the archive.")
]
_NoArchive = Annotated[
    bool, typer.Option("--no-archive", help="Delete done messages after --purge-after.")
]
_BatchSize = Annotated[
    int | None, _setting("batch_size", "N", "Hand at most N messages to a consumer at a time.")
]
_CacheSize = Annotated[
    int | None, _setting("cache_size", "N", "Keep at most N messages in memory.")
]
_PollerInterval = Annotated[
    float | None,
    _setting("poller_interval", "SECONDS", "Look for due messages at least every SECONDS."),
]
_MaxRate = Annotated[
    float | None,
    _setting("max_rate", "RATE", "Fire at most RATE messages a second; 0: any number."),
]
_MaxConcurrency = Annotated[
    int | None, _setting("max_concurrency", "N", "Let at most N messages be held; 0: any number.")
]
_Order = Annotated[
    Literal["none", "group"] | None,
    _setting("order", "ORDER", "Keep no order (none), or that of each group (group)."),
]
_OnDuplicate = Annotated[
    Literal["ignore", "error", "replace"] | None,
    _setting("on_duplicate", "WAY", "Treat an id that is there: ignore, error or replace."),
]
_DeadLetterQueue = Annotated[
    str | None,
    _setting("dead_letter_queue", "NAME", "Move the dead into the queue NAME; empty: nowhere."),
]
_GroupMaxRate = Annotated[
    float | None,
    _setting("group_max_rate", "RATE", "Fire at most RATE messages of a group a second; 0: any."),
]
_GroupMaxConcurrency = Annotated[
    int | None,
    _setting("group_max_concurrency", "N", "Let at most N messages of a group be held; 0: any."),
]

_UNBOUNDED: Final = (
    "max_attempts", "max_rate", "max_concurrency", "group_max_rate", "group_max_concurrency",
    "dead_letter_queue",
)  # fmt: skip
"""The settings whose 0, or empty text, stands for no bound."""


def _settings(
    ack_wait: _AckWait = None,
    min_backoff: _MinBackoff = None,
    max_backoff: _MaxBackoff = None,
    max_attempts: _MaxAttempts = None,
    purge_after: _PurgeAfter = None,
    archive: _Archive = False,
    no_archive: _NoArchive = False,
    batch_size: _BatchSize = None,
    cache_size: _CacheSize = None,
    poller_interval: _PollerInterval = None,
    max_rate: _MaxRate = None,
    max_concurrency: _MaxConcurrency = None,
    order: _Order = None,
    on_duplicate: _OnDuplicate = None,
    dead_letter_queue: _DeadLetterQueue = None,
    group_max_rate: _GroupMaxRate = None,
    group_max_concurrency: _GroupMaxConcurrency = None,
) -> dict[str, Any]:
    """Return the settings that were given; ``None`` stands for no bound."""
    given: dict[str, Any] = {name: each for name, each in locals().items() if each is not None}
    if archive and no_archive:
        raise typer.BadParameter("give --archive or --no-archive, not both")
    if not given.pop("no_archive") and not archive:
        del given["archive"]
    for name in _UNBOUNDED:
        if name in given and not given[name]:
            given[name] = None
    return given


def on_a_store_with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command with options for its first arguments, a store and settings."""
    return with_options(command, required_store, _settings)
