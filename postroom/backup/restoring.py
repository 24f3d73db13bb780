"""The restore of a backup into an empty store.

::

    all files are checked ─▶ BeginRestore: the store is closed ─▶ part by part: entries
                                                                         │
    EndRestore: the store is open ◀── the store counts: as the manifest says?

:mod:`postroom.messaging.ingest.restores` tells what the store does with entries. A restore that was
killed goes on with the parts that are not there.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from postroom.backup.chain import Chain
from postroom.backup.folder import BackupFolder
from postroom.backup.progress import Progress, silent
from postroom.backup.verifying import check_counts, recount
from postroom.client.staging import cut
from postroom.client.sync import CoreDatabase
from postroom.client.sync_parts import Restore
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.limits import RESTORED_CHUNK_ROWS_MAX

_CHUNK_BYTES: Final = 1024 * 1024
_CHUNK_ROWS: Final = RESTORED_CHUNK_ROWS_MAX // 2


class RestoredBackup(NamedTuple):
    """The result of a restore.

    Attributes:
        backup: the id of the last backup that is in it.
        timestamp: the timestamp at which the store was as it is now.
        tables: the number of entries in each table.
        done_before: whether this backup was restored already, and nothing was done.
    """

    backup: str
    timestamp: Timestamp
    tables: dict[str, int]
    done_before: bool = False


def restore(
    db: CoreDatabase,
    folder: str | Path,
    *,
    at: datetime | None = None,
    progress: Progress = silent,
) -> RestoredBackup:
    """Restore a backup into an empty store, which serves nobody until that is complete.

    Messages that had been delivered are not delivered again, and those that waited are delivered
    once.

    Args:
        db: the store.
        folder: the folder of the backup; those before it lie beside it.
        at: the time of a backup of the chain, or one to which a trail leads; ``None``: that of the
            last backup.
        progress: a function that is told how far it is.

    Raises:
        Invalid: the backup is damaged, or not complete, and nothing was changed; or the store is
            not empty; or its counts in the end are not those of the manifest, and it stays closed.
    """
    chain = find(folder, at)
    image = _Image(chain, _checked(chain, progress))
    begun = db.images.begin(uuid.uuid4().bytes, chain.image, chain.timestamp)
    if begun is not None:
        _fill(db, begun, image, progress)
    return RestoredBackup(
        chain.last.backup, Timestamp(chain.timestamp), image.tables, begun is None
    )


def find(folder: str | Path, at: datetime | None = None) -> Chain:
    """Return the chain of backups that a restore would take; its manifests are read.

    Raises:
        Invalid: one is missing or damaged, or there is none of this time.
    """
    return Chain.of(BackupFolder(folder)).until(at)


class _Image(NamedTuple):
    """An image that a chain makes, with the number of entries of each table."""

    chain: Chain
    tables: dict[str, int]


def _checked(chain: Chain, progress: Progress) -> dict[str, int]:
    """Check all files; return the number of entries in each table.

    The manifest tells it; between two backups it is counted.
    """
    if chain.stretch is not None:
        counted = recount(chain, "checking", progress)
        check_counts(counted.tables, counted, chain.stretch.backup.folder.path)
        return counted.tables
    parts = len(chain.last.parts)
    for number in range(parts):
        progress("checking", number, parts)
        chain.check(number)
    progress("checking", parts, parts)
    return chain.last.tables


def _fill(db: CoreDatabase, begun: Restore, image: _Image, progress: Progress) -> None:
    parts = len(image.chain.last.parts)
    there = db.images.read().parts
    for number in range(parts):
        progress("restoring", number, parts)
        if number not in there:
            begun.end_part(number, _send(begun, image.chain, number))
    progress("restoring", parts, parts)
    try:
        check_counts(image.tables, db.images.check(), "the restored store")
    except Invalid as error:
        raise Invalid(
            f"{error}; it stays closed: run the restore again with a sound backup, or abandon it "
            "(--abandon)"
        ) from error
    begun.end(parts, sum(image.tables.values()))


def _send(begun: Restore, chain: Chain, number: int) -> int:
    """Send the entries of a part; return how many there are."""
    sent = 0
    for names, stored in chain.read(number):
        for chunk in cut(zip(names, stored, strict=True), _CHUNK_BYTES, _CHUNK_ROWS):  # type: ignore[arg-type]  # merged entries have values
            begun.send(*chunk)
        sent += len(names)
    return sent
