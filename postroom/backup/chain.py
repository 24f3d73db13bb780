"""The chain of backups that make an image: a full one, then increments, each since the one before.

An increment names the backup before it by its id, which is looked for in the folders beside it. A
manifest has no paths, so all of a chain can be moved or renamed together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import NamedTuple, Self

from postroom.backup import trail
from postroom.backup.blocks import Entries
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupManifest, part_name, time_of, trail_name
from postroom.backup.merging import merged
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import BACKUP_CHAIN_MAX, BACKUP_FOLDERS_MAX


class Backup(NamedTuple):
    """One backup of a chain."""

    folder: BackupFolder
    manifest: BackupManifest


class Stretch(NamedTuple):
    """The trail of the backup that follows a chain, up to a timestamp."""

    backup: Backup
    until: int


class Chain:
    """A chain of backups.

    Args:
        links: the full backup, and then each increment.
        stretch: the stretch of a trail behind it, which leads to a later image.
    """

    def __init__(self, links: list[Backup], stretch: Stretch | None = None) -> None:
        self.links = links
        self.stretch = stretch

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

    @property
    def timestamp(self) -> int:
        """Return the timestamp of the image that it makes."""
        return self.last.timestamp if self.stretch is None else self.stretch.until

    @property
    def image(self) -> bytes:
        """Return the id of that image."""
        backup = bytes.fromhex(self.last.backup)
        if self.stretch is None:
            return backup
        return hashlib.sha256(backup + keys.u64(self.timestamp)).digest()[: len(backup)]

    def until(self, at: datetime | None) -> Chain:
        """Return the chain that makes the image of a time; ``None``: that of the last backup.

        Raises:
            Invalid: no backup of the chain has this time, and no trail leads there.
        """
        if at is None:
            return self
        if at.tzinfo is None:
            raise ValueError(f"at is an aware datetime, not {at.isoformat()}")
        times = [(link.manifest.timestamp >> LOGICAL_BITS) // 1000 for link in self.links]
        seconds = at.timestamp()
        if seconds in times:
            return Chain(self.links[: times.index(int(seconds)) + 1])
        until = (int(seconds * 1000) + 1 << LOGICAL_BITS) - 1
        for number, link in enumerate(self.links[1:], 1):
            before = self.links[number - 1].manifest.timestamp
            if before < until <= link.manifest.trail_until:
                return Chain(self.links[:number], Stretch(link, until))
        told = ", ".join(time_of(link.manifest.timestamp) for link in self.links)
        raise Invalid(
            f"no backup up to {self.links[-1].folder.path} has the time {at.isoformat()}, and no "
            f"trail leads there; nothing was changed: give one of {told}, or the folder of a later "
            "backup. A trail leads from one backup with --trail to the next"
        )

    def check(self, number: int) -> None:
        """Check the files of a part against their manifests.

        Raises:
            Invalid: one of them is another one.
        """
        for link in self.links:
            link.folder.check(part_name(number), link.manifest.parts[number])
        if self.stretch is not None:
            check_trail(self.stretch.backup, number)

    def read(self, number: int) -> Iterator[Entries]:
        """Iterate over the entries of a part of the store, in pieces.

        Raises:
            Invalid: a file is damaged.
        """
        files = [link.folder.read(part_name(number)) for link in self.links]
        if self.stretch is not None:
            files.append(read_trail(self.stretch, number))
        return merged(files)


def check_trail(backup: Backup, number: int) -> None:
    """Check the file of the trail of a part against its manifest.

    Raises:
        Invalid: it is another one.
    """
    backup.folder.check(trail_name(number), backup.manifest.trail[number])


def read_trail(stretch: Stretch, number: int) -> Iterator[Entries]:
    """Iterate over what has become of the entries of a part in a stretch, in pieces.

    Raises:
        Invalid: a file is damaged.
    """
    folder, name = stretch.backup.folder, trail_name(number)
    return trail.as_of(folder.read(name), stretch.until, folder.path / name)


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
