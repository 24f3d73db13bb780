"""The newest manifest of a folder, and the check that it belongs to this store.

The store knows an archive as two queries of staged batches. The last batch of ``archive ID`` is the
number of the run that began last. The last batch of ``archive ID trimmed`` is the number of the
last run by which the store was trimmed. A run begins before its manifest exists, and trims
afterwards. These numbers tell of any folder whether it may be the one into which this store was
archived last.
"""

from __future__ import annotations

import secrets
from typing import Final

from postroom.client.sync import CoreDatabase
from postroom.counted import counted
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import ArchiveFolder
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest
from postroom.pipeline.jobs.job import JobFailed

_TRIES: Final = 5
_JOB_BYTES: Final = 24
_ARCHIVE: Final = b"archive "


def latest(folder: ArchiveFolder) -> ArchiveManifest:
    """Return the newest manifest of a folder; an empty one if there is none.

    Raises:
        Invalid: it is none, or of a later version.
    """
    for _ in range(_TRIES):
        number = newest_number(folder)
        if not number:
            return ArchiveManifest()
        try:
            found = manifests.decode(folder.read(manifests.manifest_path(number)))
            return manifests.joined(found, manifests.read_lists(folder, found))
        except FileNotFoundError:  # there are newer ones, and it was deleted
            continue
    raise JobFailed(
        f"manifests of {folder.uri()}, or lists that they refer to, vanish while they are read: "
        "try again, or bring the folder back as it was"
    )


def newest_number(folder: ArchiveFolder) -> int:
    """Return the number of the newest manifest; 0: there is none."""
    return manifests.newest(each.path for each in folder.files(manifests.MANIFESTS))


def latest_of_store(db: CoreDatabase, folder: ArchiveFolder) -> ArchiveManifest:
    """Return the newest manifest of a folder if it is of this store; an empty one if it has none.

    Raises:
        JobFailed: it is of another store, or an old copy.
        Invalid: it is none, or of a later version.
    """
    for _ in range(_TRIES):
        found = latest(folder)
        begun, trimmed = (_noted(db, query) for query in (_begun(found), _trimmed(found)))
        if found.number == newest_number(folder):
            break
    else:
        raise JobFailed(f"others archive into {folder.uri()} all the time: try again")
    if found.number and begun < found.number:
        raise JobFailed(
            f"the archive {folder.uri()} is of another store, or this store was made anew or "
            "restored; nothing was changed: give another folder"
        )
    if found.number and (begun > found.number + 1 or trimmed > found.number):
        raise JobFailed(
            f"this store was archived {counted(max(begun - 1, trimmed), 'time')} at least, and "
            "the folder "
            f"{folder.uri()} knows of {counted(found.number, 'run')}: it is an old copy; nothing "
            "was changed: "
            "bring the folder back that was archived into last"
        )
    return found


def note_begun(db: CoreDatabase, before: ArchiveManifest) -> None:
    """Note in the store that the run after a manifest has begun."""
    _note(db, _begun(before), before.number + 1)


def note_trimmed(db: CoreDatabase, manifest: ArchiveManifest) -> None:
    """Note in the store that it is trimmed by a manifest from now on."""
    _note(db, _trimmed(manifest), manifest.number)


def _note(db: CoreDatabase, query: bytes, number: int) -> None:
    db.staging.publish(query, number, secrets.token_bytes(_JOB_BYTES), [])


def _noted(db: CoreDatabase, query: bytes) -> int:
    """Return the number of the run that the store knows; 0: none."""
    found = db.staging.last(query)
    return 0 if found is None else found.batch


def _begun(manifest: ArchiveManifest) -> bytes:
    """Return the query whose last batch is the run of an archive that began last."""
    return _ARCHIVE + manifest.archive.encode()


def _trimmed(manifest: ArchiveManifest) -> bytes:
    """Return the query whose last batch is the run by which the store was trimmed last."""
    return _begun(manifest) + b" trimmed"
