"""The manifests of an archive, one for each run, and the rules that follow from them.

::

    FOLDER/manifests/00000007.json                      the newest counts, and only that
    FOLDER/lists/5-a0b7.../1.json                       files that it counts without naming them
    FOLDER/files/7-5c1f.../queues/q=mail-18f0.../day=2026-11-22/part-....parquet
    FOLDER/files/7-5c1f.../inboxes/day=2026-11-22/part-....parquet

A manifest names every file of the archive. It also tells up to which timestamp these files have
each queue, and the history of inboxes: wholly, and once. It appears as a whole, under a number of
its own. For a reader, a run is therefore one step. Before it, the earlier manifest is the archive,
and the store has all that came later; after it, the new one is. Other files in the folder were left
by killed runs, and do not count.

Files of days that are over do not change any more. They are named by *lists*, to which manifest
after manifest refers. A manifest is about as large as the files of the last days::

    manifest 900 ── files: those of the last days
         └── lists ─┬─ lists/412-9c../1.json ── 731 files of days that are over
                    └─ lists/877-1f../1.json ── 655 files

A list is written once, before the first manifest that refers to it, and is never changed. A list
is given up if one of its files is replaced, because a day that was over got another message. The
next manifest names its files itself, and they come into a list again. Lists that were given up stay
as long as files that were replaced. A list is made of many files. Therefore lists are few, and a
manifest grows by a line for each.

Gaps that touch are one (:mod:`.gaps`). Nothing here knows Spark or a store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from postroom.errors import Invalid
from postroom.pipeline.jobs.archive.folders import ArchiveFolder

FORMAT: Final = 1
MANIFESTS: Final = "manifests"
FILES: Final = "files"
LISTS: Final = "lists"
MANIFESTS_KEPT: Final = 20
_DIGITS: Final = 8
"""The digits of a run's number: there are fewer than a hundred million runs."""


class Kept(msgspec.Struct, frozen=True):
    """A file of the archive.

    Attributes:
        path: below the folder.
        table: ``queues`` or ``inboxes``.
        part: what its folder is about: of which queue, and of which day.
        rows, size: how many messages, and bytes.
    """

    path: str
    table: str
    part: str
    rows: int
    size: int


class Dropped(msgspec.Struct, frozen=True):
    """A file that was replaced; a reader of an older manifest may still have it open.

    Attributes:
        at: the timestamp of the run that has replaced it.
    """

    path: str
    at: int


class Known(msgspec.Struct, frozen=True):
    """A queue that the archive knows.

    Attributes:
        created_at: one that was made anew under the same name has another one.
        until: all that ended up to this timestamp, and was there to be read, is in the files.
        acknowledged: how many messages ever were, at the most by that timestamp; negative: that is
            not known.
        kept: for how many seconds what was done stayed there to be read, as it was set then;
            negative: for ever, or that is not known.
    """

    created_at: int
    until: int
    acknowledged: int = -1
    kept: float = -1.0


class Gap(msgspec.Struct, frozen=True):
    """History that may be missing, since the store did not keep it until it was archived.

    Attributes:
        what: the name of a queue, empty if it is told no more; or ``inboxes``.
        after, until: timestamps between which it may be missing.
        is_queue: whether ``what`` is a queue.
        dropped: it was dropped, with what was not archived yet.
    """

    what: str
    after: int
    until: int
    is_queue: bool = False
    dropped: bool = False

    @property
    def place(self) -> str:
        """Return the queue of the gap, or the inboxes, in words."""
        if not self.is_queue:
            return "inboxes"
        return f"the queue {self.what}" if self.what else "other queues"

    @property
    def reason(self) -> str:
        """Return the reason, and what to do, in words."""
        if self.dropped:
            return "it was dropped before that was archived; archive first, and then drop"
        return "the store had not kept it; archive more often"


class Listed(msgspec.Struct, frozen=True):
    """A list of files.

    Attributes:
        path: below the folder.
        files: how many it names.
    """

    path: str
    files: int


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The content of an archive: see the module.

    Attributes:
        number: of the run; 0: there was none yet.
        archive: what the store knows this archive by.
        at: the timestamp at which the run has read the store.
        queues: by name.
        inboxes_until: what was consumed from inboxes up to this timestamp is in the files.
        gaps: what may be missing.
        files: all that there are; as it is stored, without those that lists name.
        dropped: files that are to be deleted.
        lists: those that name the other files.
    """

    number: int = 0
    archive: str = ""
    at: int = 0
    queues: dict[str, Known] = {}
    inboxes_until: int = 0
    gaps: list[Gap] = []
    files: list[Kept] = []
    dropped: list[Dropped] = []
    format: int = FORMAT
    lists: list[Listed] = []

    def until(self, queue: str, created_at: int) -> int:
        """Return up to when a queue is in the files; 0: nothing of it is."""
        known = self.queues.get(queue)
        return known.until if known is not None and known.created_at == created_at else 0


_decoder: Final = msgspec.json.Decoder(ArchiveManifest)


def encode(content: ArchiveManifest | list[Kept]) -> bytes:
    """Return a manifest, or a list, as it is stored: text that a person can read."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def decode(content: bytes) -> ArchiveManifest:
    """Return a stored manifest.

    Raises:
        Invalid: it is none, or of a later version.
    """
    try:
        found = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"this is no manifest of an archive: {error}") from error
    if found.format != FORMAT:
        raise Invalid(
            f"this archive was written by a later version (format {found.format}, and this one "
            f"knows {FORMAT}): nothing was changed: upgrade"
        )
    return found


def manifest_path(number: int) -> str:
    """Return the path of a manifest."""
    return f"{MANIFESTS}/{number:0{_DIGITS}}.json"


def number_in(path: str) -> int:
    """Return the number of the manifest at a path; 0: there is none."""
    number = _number_of(path)
    return number if path == manifest_path(number) else 0


def _number_of(path: str) -> int:
    """Return the number of the manifest, or of the draft of one, at a path."""
    folder, _, name = path.rpartition("/")
    digits = name[:_DIGITS]
    return int(digits) if folder == MANIFESTS and digits.isdecimal() else 0


def newest(paths: Iterable[str]) -> int:
    """Return the highest number among files; 0: there is no manifest."""
    return max(map(number_in, paths), default=0)


def run_in(path: str) -> int:
    """Return the number of the run that has written a file, or a list; 0: none has."""
    top, _, rest = path.partition("/")
    number, dash, _ = rest.partition("/")[0].partition("-")
    return int(number) if top in {FILES, LISTS} and dash and number.isdecimal() else 0


# --- rules ----------------------------------------------------------------------------------------


def useless_files(manifest: ArchiveManifest, paths: Iterable[str]) -> list[str]:
    """Return the files below the folder that do not count and never will.

    Files of runs with a higher number belong to a run at work.
    """
    counts = {each.path for each in manifest.files} | {each.path for each in manifest.dropped}
    counts |= {each.path for each in manifest.lists}
    counts |= {_checksums_of(path) for path in counts}
    found = []
    for path in paths:
        run, number = run_in(path), _number_of(path)
        last = manifest.number - (MANIFESTS_KEPT if number_in(path) else 0)
        if (0 < run <= manifest.number and path not in counts) or 0 < number <= last:
            found.append(path)
    return found


def _checksums_of(path: str) -> str:
    """Return the path of Spark's checksums of a file, for file systems without their own."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def files_to_compact(
    files: Iterable[Kept], *, files_max: int, size_small: int, closed: Mapping[str, bool]
) -> list[Kept]:
    """Return the files that are to become fewer.

    Args:
        files: of the archive.
        files_max: of a day of a queue, so many small ones may stay.
        size_small: bytes below which a file is small.
        closed: by ``part``, whether nothing more is expected there: then one small file may stay.
    """
    small: dict[tuple[str, str], list[Kept]] = defaultdict(list)
    for each in files:
        if each.size < size_small:
            small[each.table, each.part].append(each)
    found: list[Kept] = []
    for (_, part), few in small.items():
        if len(few) > (1 if closed.get(part, False) else files_max):
            found += few
    return found


def replaced(
    manifest: ArchiveManifest, old: Iterable[Kept], new: Iterable[Kept], at: int
) -> tuple[list[Kept], list[Dropped]]:
    """Return the files, and the dropped ones, after some were replaced.

    Args:
        manifest: as it was.
        old: those that go; ``new``: what takes their place.
        at: now.
    """
    gone = {each.path for each in old}
    files = [each for each in manifest.files if each.path not in gone]
    dropped = [*manifest.dropped, *(Dropped(path, at) for path in sorted(gone))]
    return sorted([*files, *new], key=lambda each: each.path), dropped


def still_dropped(manifest: ArchiveManifest, before: int) -> list[Dropped]:
    """Return the files that were dropped at a timestamp or later: they stay for now."""
    return [each for each in manifest.dropped if each.at >= before]


# --- lists of files -------------------------------------------------------------------------------


LIST_FILES_MIN: Final = 500
"""The least number of files of a list."""
LIST_FILES_MAX: Final = 5_000

_list_decoder: Final = msgspec.json.Decoder(list[Kept])


def read_lists(folder: ArchiveFolder, manifest: ArchiveManifest) -> dict[str, list[Kept]]:
    """Return the lists of a manifest, by their paths.

    Raises:
        Invalid: one of them is no list.
        FileNotFoundError: one is not there.
    """
    found = {}
    for each in manifest.lists:
        try:
            found[each.path] = _list_decoder.decode(folder.read(each.path))
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
    if len(settled) >= LIST_FILES_MIN:
        pieces = -(-len(settled) // LIST_FILES_MAX)
        new = {f"{LISTS}/{run}/{n + 1}.json": settled[n::pieces] for n in range(pieces)}
        taken = {each.path for each in settled}
        rest = [each for each in rest if each.path not in taken]
    lists = [*stay, *(Listed(path, len(few)) for path, few in new.items())]
    whole = msgspec.structs.replace(
        manifest, lists=lists,
        dropped=[*manifest.dropped, *(Dropped(path, manifest.at) for path in sorted(given_up))],
    )  # fmt: skip
    return whole, msgspec.structs.replace(whole, files=rest), new
