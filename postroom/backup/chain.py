"""The chain of backups that make an image: a full one, then increments, each since the one before.

An increment names the backup before it by its id, which is looked for in the folders beside it. A
manifest has no paths, so all of a chain can be moved or renamed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, Self

from postroom.backup.blocks import Entries
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupManifest, time_of
from postroom.backup.merging import merged
from postroom.errors import Invalid
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import BACKUP_CHAIN_MAX, BACKUP_FOLDERS_MAX


class Backup(NamedTuple):
    """One backup of a chain."""

    folder: BackupFolder
    manifest: BackupManifest


class Chain:
    """A chain of backups.

    Args:
        links: the full backup, and then each increment.
    """

    def __init__(self, links: list[Backup]) -> None:
        self.links = links

    @classmethod
    def of(cls, folder: BackupFolder) -> Self:
        """Return the chain that ends with the backup in a folder.

        Raises:
            Invalid: there is no backup in it; or one of the chain is missing, damaged, or is not
                what the next one names.
        """
        links = [Backup(folder, folder.complete())]
        while links[0].manifest.since:
            if len(links) == BACKUP_CHAIN_MAX:
                raise Invalid(
                    f"more than {BACKUP_CHAIN_MAX} backups are a chain that ends with "
                    f"{folder.path}; nothing was changed: make a full one"
                )
            links.insert(0, _before(links[0]))
        return cls(links)

    @property
    def last(self) -> BackupManifest:
        """Return the manifest of the last backup."""
        return self.links[-1].manifest

    def until(self, at: datetime | None) -> Chain:
        """Return the chain up to the backup of a time; ``None``: all of it.

        Raises:
            Invalid: no backup of the chain has this time.
        """
        if at is None:
            return self
        wanted = int(at.astimezone(UTC).timestamp())
        times = [(link.manifest.timestamp >> LOGICAL_BITS) // 1000 for link in self.links]
        if wanted in times:
            return Chain(self.links[: times.index(wanted) + 1])
        told = ", ".join(time_of(link.manifest.timestamp) for link in self.links)
        raise Invalid(
            f"no backup has the time {at.astimezone(UTC).isoformat()}; nothing was changed: give "
            f"one of {told}. A backup has one version of each key and none of what waits in an "
            "outbox or queue, so the state between two of them is not known"
        )

    def check(self, number: int) -> None:
        """Check the files of a part against their manifests.

        Raises:
            Invalid: one of them is another one.
        """
        for link in self.links:
            link.folder.check(link.manifest, number)

    def read(self, number: int) -> Iterator[Entries]:
        """Iterate over the entries of a part of the store, in pieces.

        Raises:
            Invalid: a file is damaged.
        """
        return merged([link.folder.read(number) for link in self.links])


def _before(link: Backup) -> Backup:
    """Return the backup since which another one has what has changed."""
    folder, manifest = link
    for path in islice(folder.path.absolute().parent.iterdir(), BACKUP_FOLDERS_MAX):
        other = BackupFolder(path)
        try:
            found = other.manifest()
        except (Invalid, OSError):
            continue  # another backup, which may be damaged
        if found is not None and found.backup == manifest.since:
            check_follows(manifest, found, folder.path)
            return Backup(other, found)
    raise Invalid(
        f"{folder.path} has what has changed since the backup {manifest.since} of "
        f"{time_of(manifest.since_timestamp)}, and no folder beside it has that one whole; nothing "
        "was changed: put all backups of a chain into one folder"
    )


def check_follows(manifest: BackupManifest, before: BackupManifest, path: object) -> None:
    """Check that a backup can be the one after another.

    Raises:
        Invalid: it is of another store, or is not later, or has other parts.
    """
    spans = [[(part.start, part.end) for part in each.parts] for each in (manifest, before)]
    if manifest.store != before.store:
        what = "it is of another store"
    elif not before.timestamp == manifest.since_timestamp < manifest.timestamp:
        what = "it is not later"
    elif spans[0] != spans[1]:
        what = "its parts are others"
    else:
        return
    raise Invalid(
        f"{path} does not follow the backup {before.backup} that it names: {what}; nothing was "
        "changed: make a full one"
    )
