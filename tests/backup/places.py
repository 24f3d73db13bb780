"""Stores that are backed up, and those that are restored; and what can be seen of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import postroom
from postroom.backup import restore, verify
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupManifest, encoded
from tests.client.images import Workload, read, seen

Found = list[tuple[bytes, bytes]]


def busy(seed: int, steps: int = 60) -> tuple[postroom.Database, Workload]:
    """Return a store in which a little of everything has happened, and what goes on doing so."""
    db = postroom.open(":memory:")
    work = Workload(db, seed, delays=(None, 3600.0))
    for _ in range(steps):
        work.step()
    db.drain()
    return db, work


def entries(db: postroom.Database) -> Found:
    """Return all entries of a store."""
    return read(db)[1]


def view(db: postroom.Database) -> dict[str, Any]:
    """Return what a client can see of a store."""
    return seen(db, [queue.name for queue in db.queues()])


def restored(folder: Path, **options: Any) -> tuple[Found, dict[str, Any]]:
    """Return all entries of the store that is made of a backup, and what can be seen of it."""
    with postroom.open(":memory:") as db:
        restore(db, folder, **options)
        return entries(db), view(db)


def is_sound(folder: Path) -> bool:
    """Return whether a backup is complete; its verification raises an error if it is damaged."""
    return (folder / "manifest.json").exists() and bool(verify(folder))


def forge(folder: Path, **changes: Any) -> None:
    """Write a manifest with other values, and a checksum that fits."""

    manifest = BackupFolder(folder).complete()
    forged: BackupManifest = msgspec.structs.replace(manifest, **changes)
    (folder / "manifest.json").write_bytes(encoded(forged))
