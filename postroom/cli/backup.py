"""The commands about backups: ``postroom backup``, ``verify`` and ``restore``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom import backup as backups
from postroom.backup.manifest import BackupManifest, time_of
from postroom.cli.options import AsJson, Folder, StoreOptions, on_a_store
from postroom.cli.output import as_bytes, print_json, print_line
from postroom.cli.spark import progress_shown
from postroom.counted import counted

_Since = Annotated[
    Path | None,
    typer.Option(
        "--since",
        metavar="FOLDER",
        help="Write only what has changed since the backup in FOLDER, beside it.",
    ),
]
_Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="SIZE", help="Read at most SIZE in a second, as 20MiB."),
]
_Trail = Annotated[
    bool,
    typer.Option("--trail", help="Keep all changes for the next backup: restores reach any time."),
]
_NoTrail = Annotated[bool, typer.Option("--no-trail", help="Keep no changes any more.")]
_At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Restore the store of TIME, that 'verify' tells."),
]
_Abandon = Annotated[
    bool, typer.Option("--abandon", help="Give up a restore that was begun: the store is empty.")
]


@on_a_store
def backup(
    store: StoreOptions,
    folder: Folder,
    since: _Since = None,
    rate: _Rate = None,
    trail: _Trail = False,
    no_trail: _NoTrail = False,
    as_json: AsJson = False,
) -> None:
    """Back up a store into FOLDER, while it is in use.

    All of it is of one timestamp. Run it again when it was killed: without its manifest a folder
    has no backup.
    """
    bytes_a_second = None if rate is None else as_bytes(rate, 1, "--rate")
    if trail and no_trail:
        raise typer.BadParameter("give one of --trail and --no-trail", param_hint="--no-trail")
    wanted = trail if trail or no_trail else None
    with store.open_existing() as db, progress_shown(quiet=as_json) as progress:
        done = db.backup(folder, since=since, rate=bytes_a_second, trail=wanted, progress=progress)
    if as_json:
        print_json({**done._asdict(), "timestamp": int(done.timestamp)})
    elif done.done_before:
        print_line(
            f"{folder} has a backup of {time_of(done.timestamp)} already; nothing was done: give "
            "a new folder"
        )
    else:
        kept = counted(sum(done.tables.values()), "entry", "entries")
        changed = f"; {done.written:,} have changed" if done.since else ""
        led = _led(done) if trail and done.since else ""
        print_line(
            f"{folder}: {kept} of {time_of(done.timestamp)}{changed}; {done.bytes:,} bytes{led}"
        )


def _led(done: backups.BackupResult) -> str:
    """Return how far the trail leads, for people."""
    if not done.trail_until:
        return (
            "; no trail leads to it, since it was begun after the backup before: the next has one"
        )
    if done.trail_until < done.timestamp:
        return f"; its trail ended at {time_of(done.trail_until)}"
    return ""


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read the backup in FOLDER and those before it, and recount all of their entries.

    Ends with 1 if anything is damaged. Prints the time of each backup, the full one first.
    """
    with progress_shown(quiet=as_json) as progress:
        chain = backups.verify(folder, progress=progress)
    for each in chain:
        if as_json:
            print_json({
                "backup": each.backup, "store": each.store, "timestamp": each.timestamp,
                "time": each.time, "since": each.since, "trail_until": each.trail_until,
                "tables": each.tables,
            })  # fmt: skip
        else:
            print_line(
                each.time, _kind(each), counted(each.entries, "entry", "entries"), each.backup
            )


def _kind(manifest: BackupManifest) -> str:
    """Return what a backup has, for people."""
    if not manifest.trail:
        return "changes" if manifest.since else "full"
    until = "" if manifest.trail_until == manifest.timestamp else time_of(manifest.trail_until)
    return f"changes, trail until {until}" if until else "changes, trail"


@on_a_store
def restore(
    store: StoreOptions,
    folder: Folder,
    at: _At = None,
    abandon: _Abandon = False,
    as_json: AsJson = False,
) -> None:
    """Restore the backup in FOLDER into a new store, which serves nobody until that is complete.

    Run it again when it was killed: it goes on.
    """
    wanted = None if at is None else _time(at)
    if abandon:
        with store.open_existing() as db:
            db.images.abandon()
        print_line("the restore is abandoned: the store is empty, and serves")
        return
    backups.find(folder, wanted)  # before a store is made for nothing
    with store.open_or_create() as db, progress_shown(quiet=as_json) as progress:
        done = backups.restore(db, folder, at=wanted, progress=progress)
    if as_json:
        print_json(_restored(done))
        return
    kept = counted(sum(done.tables.values()), "entry", "entries")
    before = "was restored before: nothing was done" if done.done_before else "is restored"
    print_line(f"the store of {time_of(done.timestamp)} with {kept} {before}")


def _restored(done: backups.RestoredBackup) -> dict[str, Any]:
    return {**done._asdict(), "timestamp": int(done.timestamp)}


def _time(text: str) -> datetime:
    """Return the time that a text tells; without an offset it is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: write one such as 2026-11-27T21:59:30", param_hint="--at"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
