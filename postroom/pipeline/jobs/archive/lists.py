"""Lists of the files of an archive, so that a manifest need not repeat them all.

::

    manifest 900 ── files: those of the last days
         └── lists ─┬─ lists/412-9c../1.json ── 731 files of days that are over
                    └─ lists/877-1f../1.json ── 655 files

A list is written once, before the first manifest that refers to it, and is never changed. A list
is given up if one of its files is replaced, because a day that was over got another message. The
next manifest names its files itself, and they come into a list again. Lists that were given up stay
as long as files that were replaced.

A list is made of many files. Therefore lists are few, and a manifest grows by a line for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.pipeline.jobs.archive.folders import ArchiveFolder
from postroom.pipeline.jobs.archive.manifest import (
    LISTS,
    ArchiveManifest,
    Dropped,
    Kept,
    Listed,
)

FILES_MIN: Final = 500
"""The least number of files of a list."""
FILES_MAX: Final = 5_000

_decoder: Final = msgspec.json.Decoder(list[Kept])


def path_of(run: str, number: int) -> str:
    """Return the path of a list of a run."""
    return f"{LISTS}/{run}/{number}.json"


def encode(files: list[Kept]) -> bytes:
    """Return a list in the form that is stored."""
    return msgspec.json.format(msgspec.json.encode(files), indent=1)


def read(folder: ArchiveFolder, manifest: ArchiveManifest) -> dict[str, list[Kept]]:
    """Return the lists of a manifest, by their paths.

    Raises:
        Invalid: one of them is no list.
        FileNotFoundError: one is not there.
    """
    found = {}
    for each in manifest.lists:
        try:
            found[each.path] = _decoder.decode(folder.read(each.path))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(
                f"{folder.uri(each.path)} is no list of an archive's files: {error}"
            ) from error
        if len(found[each.path]) != each.files:
            raise Invalid(f"{folder.uri(each.path)} does not name {each.files} files")
    return found


def joined(manifest: ArchiveManifest, listed: Mapping[str, list[Kept]]) -> ArchiveManifest:
    """Return a stored manifest with all files in one list."""
    files = [*manifest.files, *(each for few in listed.values() for each in few)]
    files.sort(key=lambda each: each.path)
    return msgspec.structs.replace(manifest, files=files)


def divided(
    manifest: ArchiveManifest,
    listed: Mapping[str, list[Kept]],
    is_settled: Callable[[Kept], bool],
    run: str,
) -> tuple[ArchiveManifest, ArchiveManifest, dict[str, list[Kept]]]:
    """Divide a manifest into itself and new lists.

    Args:
        manifest: a manifest with all files, and the lists of the one before.
        listed: the files that these lists name.
        is_settled: a function that returns whether a file is expected to stay.
        run: the name of the run, which is part of the names of new lists.

    Returns:
        The manifest with all files; the manifest to be stored; and the new lists, by path.
    """
    files = {each.path: each for each in manifest.files}
    stay = [
        each
        for each in manifest.lists
        if all(files.get(one.path) == one for one in listed[each.path])
    ]
    given_up = {each.path for each in manifest.lists} - {each.path for each in stay}
    named = {one.path for each in stay for one in listed[each.path]}
    rest = [each for each in manifest.files if each.path not in named]
    settled = [each for each in rest if is_settled(each)]
    new: dict[str, list[Kept]] = {}
    if len(settled) >= FILES_MIN:
        pieces = -(-len(settled) // FILES_MAX)
        new = {path_of(run, n + 1): settled[n::pieces] for n in range(pieces)}
        taken = {each.path for each in settled}
        rest = [each for each in rest if each.path not in taken]
    lists = [*stay, *(Listed(path, len(few)) for path, few in new.items())]
    whole = msgspec.structs.replace(
        manifest, lists=lists,
        dropped=[*manifest.dropped, *(Dropped(path, manifest.at) for path in sorted(given_up))],
    )  # fmt: skip
    return whole, msgspec.structs.replace(whole, files=rest), new


__all__ = ["divided", "encode", "joined", "path_of", "read"]
