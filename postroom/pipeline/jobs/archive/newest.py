"""The newest manifest of a folder, and whether it is of this store.

The store knows an archive as two queries of staged batches: the last batch of ``archive ID`` is the
number of the run that was begun last, that of ``archive ID trimmed`` of the last one by which the
store was trimmed. A run is begun before there is its manifest, and trims when there is. So of
whatever folder it can be said whether it may be the one that this store was archived into last.
"""

from __future__ import annotations

import secrets
from typing import Final

from postroom.client.sync import Database
from postroom.counted import counted
from postroom.pipeline.jobs.archive import lists
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import Folder
from postroom.pipeline.jobs.archive.manifest import Manifest
from postroom.pipeline.jobs.job import JobFailed

_TRIES: Final = 5
_JOB_BYTES: Final = 24
_ARCHIVE: Final = b"archive "


def latest(folder: Folder) -> Manifest:
    """The newest manifest of a folder; an empty one if there is none.

    Raises:
        Invalid: it is none, or of a later version.
    """
    for _ in range(_TRIES):
        number = newest_number(folder)
        if not number:
            return Manifest()
        try:
            found = manifests.decode(folder.read(manifests.path_of(number)))
            return lists.joined(found, lists.read(folder, found))
        except FileNotFoundError:  # there are newer ones, and it was deleted
            continue
    raise JobFailed(
        f"manifests of {folder.uri()}, or lists that they refer to, vanish while they are read: "
        "try again, or bring the folder back as it was"
    )


def newest_number(folder: Folder) -> int:
    """The number of the newest manifest; 0: there is none."""
    return manifests.newest(each.path for each in folder.files(manifests.MANIFESTS))


def of_this_store(db: Database, folder: Folder) -> Manifest:
    """The newest manifest of a folder, which is of this store; an empty one if there is none.

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


def note_begun(db: Database, before: Manifest) -> None:
    """The run after a manifest is begun."""
    _note(db, _begun(before), before.number + 1)


def note_trimmed(db: Database, manifest: Manifest) -> None:
    """The store is trimmed by a manifest from now on."""
    _note(db, _trimmed(manifest), manifest.number)


def _note(db: Database, query: bytes, number: int) -> None:
    db.staging.publish(query, number, secrets.token_bytes(_JOB_BYTES), [])


def _noted(db: Database, query: bytes) -> int:
    """Which run the store knows; 0: of none."""
    found = db.staging.read(query).queries[:1]
    return found[0].batch if found and found[0].query == query else 0


def _begun(manifest: Manifest) -> bytes:
    """By which name the store knows the run of an archive that was begun last."""
    return _ARCHIVE + manifest.archive.encode()


def _trimmed(manifest: Manifest) -> bytes:
    """The same of the last run by which it was trimmed."""
    return _begun(manifest) + b" trimmed"


__all__ = ["latest", "newest_number", "note_begun", "note_trimmed", "of_this_store"]
