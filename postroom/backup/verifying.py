"""The verification of a backup: everything is read, checked and recounted, without a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from postroom.backup.blocks import Entries
from postroom.backup.chain import Backup, Chain, Stretch
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupManifest
from postroom.backup.merging import Differences
from postroom.backup.progress import Progress, silent
from postroom.backup.recount import Recount
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging import image_entries
from postroom.messaging.ingest.requests import Counted


def verify(folder: str | Path, *, progress: Progress = silent) -> list[BackupManifest]:
    """Read all files of a backup, and of those before it; compare them with manifests and counters.

    Returns:
        The manifests of the chain: the full backup's, and each increment's.

    Raises:
        Invalid: the backup is damaged, or not complete.
    """
    chain = Chain.of(BackupFolder(folder))
    counted = recount(chain, "verifying", progress)
    check_counts(chain.last.tables, counted, folder)
    for number, link in enumerate(chain.links):
        if link.manifest.trail:
            _verify_trail(Chain(chain.links[:number]), link, progress)
    return [link.manifest for link in chain.links]


def recount(chain: Chain, stage: str, progress: Progress) -> Counted:
    """Check all files of a chain and all entries of the image that it makes; count these.

    Raises:
        Invalid: a file or an entry is damaged.
    """
    counting = Recount()
    until = keys.u64(chain.timestamp)
    parts = len(chain.last.parts)
    for number in range(parts):
        progress(stage, number, parts)
        chain.check(number)
        for names, stored in chain.read(number):
            for name, value in zip(names, stored, strict=True):
                assert value is not None, "merged entries have values"
                image_entries.check(name, value, until)
            counting.add(names, stored)  # type: ignore[arg-type]  # as above
        counting.end_part()
    progress(stage, parts, parts)
    return counting.end()


def _verify_trail(before: Chain, link: Backup, progress: Progress) -> None:
    """Check that the trail of a backup leads to it, from the chain before it.

    A trail that ended before the backup is only read.
    """
    manifest, parts = link.manifest, len(link.manifest.parts)
    until, whole = Chain(before.links, Stretch(link, manifest.trail_until)), [*before.links, link]
    for number in range(parts):
        progress("verifying the trail", number, parts)
        until.check(number)
        is_same = _are_same(until.read(number), Chain(whole).read(number))
        if manifest.trail_until == manifest.timestamp and not is_same:
            raise Invalid(
                f"the trail in {link.folder.path} does not lead from the backup before it to this "
                "one: restore the times of backups only"
            )
    progress("verifying the trail", parts, parts)


def _are_same(one: Iterator[Entries], other: Iterator[Entries]) -> bool:
    """Return whether entries are the same; all of them are read."""
    differences = Differences(one)
    found = [names for piece in other for names, _ in differences.of(piece) if names]
    found += [names for names, _ in differences.rest() if names]
    return not found


def check_counts(tables: dict[str, int], counted: Counted, where: object) -> None:
    """Compare what was counted with the number of entries that there must be.

    Args:
        tables: the number of entries in each table, as the manifest tells it.
        counted: the entries.
        where: where they were counted, for people.

    Raises:
        Invalid: it is not the same.
    """
    wrong = list(counted.wrong)
    for name in sorted(tables.keys() | counted.tables.keys()):
        told, found = tables.get(name, 0), counted.tables.get(name, 0)
        if told != found:
            wrong.append(f"{name}: {told} entries are in the manifest, {found} are there")
    if wrong:
        raise Invalid(
            f"{where} is not what the manifest tells: {'; '.join(wrong[:5])}"
            + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        )
