"""The verification of a backup: everything is read, checked and recounted, without a store."""

from __future__ import annotations

from pathlib import Path

from postroom.backup.chain import Chain
from postroom.backup.folder import BackupFolder
from postroom.backup.manifest import BackupManifest
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
    recount = Recount()
    until = keys.u64(chain.last.timestamp)
    parts = len(chain.last.parts)
    for number in range(parts):
        progress("verifying", number, parts)
        chain.check(number)
        for names, stored in chain.read(number):
            for name, value in zip(names, stored, strict=True):
                assert value is not None, "merged entries have values"
                image_entries.check(name, value, until)
            recount.add(names, stored)  # type: ignore[arg-type]  # as above
        recount.end_part()
    check_counts(chain.last, recount.end(), folder)
    progress("verifying", parts, parts)
    return [link.manifest for link in chain.links]


def check_counts(manifest: BackupManifest, counted: Counted, where: object) -> None:
    """Compare what was counted with the manifest.

    Args:
        manifest: the manifest of the backup.
        counted: the entries.
        where: where they were counted, for people.

    Raises:
        Invalid: it is not the same.
    """
    wrong = list(counted.wrong)
    for name in sorted(manifest.tables.keys() | counted.tables.keys()):
        told, found = manifest.tables.get(name, 0), counted.tables.get(name, 0)
        if told != found:
            wrong.append(f"{name}: {told} entries are in the manifest, {found} are there")
    if wrong:
        raise Invalid(
            f"{where} is not what the manifest tells: {'; '.join(wrong[:5])}"
            + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        )
