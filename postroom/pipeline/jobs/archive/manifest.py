"""What an archive says of itself: a manifest for each run, and what follows from it.

::

    FOLDER/manifests/00000007.json                      the newest counts, and only that
    FOLDER/lists/5-a0b7.../1.json                       files that it counts without naming them
    FOLDER/files/7-5c1f.../queues/q=mail-18f0.../day=2026-11-22/part-....parquet
    FOLDER/files/7-5c1f.../inboxes/day=2026-11-22/part-....parquet

A manifest names every file of the archive, and up to which timestamp each queue, and the history of
inboxes, is in these files: wholly, and once. It appears as a whole, under a number that no other
has. So a run is one step for everybody who reads: before it the archive is what the manifest before
says, and the store has all that came later; after it, the new one. Whatever else lies in the folder
was left by runs that were killed, and counts for nothing.

Files of days that are over stay what they are. So they are named by *lists*, which manifest after
manifest refers to (:mod:`.lists`), and a manifest is about as large as what the last days have
brought. Gaps that touch are one (:mod:`.gaps`).

Nothing here knows Spark, a store, or a file system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from postroom.errors import Invalid

FORMAT: Final = 1
MANIFESTS: Final = "manifests"
FILES: Final = "files"
LISTS: Final = "lists"
MANIFESTS_KEPT: Final = 20
_DIGITS: Final = 8
"""There are fewer runs than a hundred million."""


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
    """A file that was replaced; whoever reads by an older manifest may still have it.

    Attributes:
        at: the timestamp of the run that has replaced it.
    """

    path: str
    at: int


class Known(msgspec.Struct, frozen=True):
    """A queue.

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
        """What it is a gap of, in words."""
        if not self.is_queue:
            return "inboxes"
        return f"the queue {self.what}" if self.what else "other queues"

    @property
    def reason(self) -> str:
        """Why, and what to do, in words."""
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


class Manifest(msgspec.Struct, frozen=True):
    """See the module.

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
        """Up to when a queue is in the files; 0: nothing of it is."""
        known = self.queues.get(queue)
        return known.until if known is not None and known.created_at == created_at else 0


_decoder: Final = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """As it is stored: text that a person can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode(content: bytes) -> Manifest:
    """A stored manifest.

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


def path_of(number: int) -> str:
    """Where a manifest is."""
    return f"{MANIFESTS}/{number:0{_DIGITS}}.json"


def number_in(path: str) -> int:
    """The number of the manifest at a path; 0: there is none."""
    number = _number_of(path)
    return number if path == path_of(number) else 0


def _number_of(path: str) -> int:
    """Which manifest a path is, or a draft of."""
    folder, _, name = path.rpartition("/")
    digits = name[:_DIGITS]
    return int(digits) if folder == MANIFESTS and digits.isdecimal() else 0


def newest(paths: Iterable[str]) -> int:
    """The highest number among files; 0: there is no manifest."""
    return max(map(number_in, paths), default=0)


def run_in(path: str) -> int:
    """The number of the run that has written a file, or a list; 0: none has."""
    top, _, rest = path.partition("/")
    number, dash, _ = rest.partition("/")[0].partition("-")
    return int(number) if top in {FILES, LISTS} and dash and number.isdecimal() else 0


# --- what follows ---------------------------------------------------------------------------------


def left_over(manifest: Manifest, paths: Iterable[str]) -> list[str]:
    """Of all files below the folder, those that count for nothing and never will.

    Files of runs with a higher number are somebody's who is at work.
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
    """Where Spark puts the checksums of a file, where the file system has none itself."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def to_compact(
    files: Iterable[Kept], *, files_max: int, size_small: int, closed: Mapping[str, bool]
) -> list[Kept]:
    """The files that are to become fewer.

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
    manifest: Manifest, old: Iterable[Kept], new: Iterable[Kept], at: int
) -> tuple[list[Kept], list[Dropped]]:
    """Files and dropped ones after some were replaced.

    Args:
        manifest: as it was.
        old: those that go; ``new``: what takes their place.
        at: now.
    """
    gone = {each.path for each in old}
    files = [each for each in manifest.files if each.path not in gone]
    dropped = [*manifest.dropped, *(Dropped(path, at) for path in sorted(gone))]
    return sorted([*files, *new], key=lambda each: each.path), dropped


def still_dropped(manifest: Manifest, before: int) -> list[Dropped]:
    """Those that were dropped at a timestamp or later: they stay for now."""
    return [each for each in manifest.dropped if each.at >= before]


__all__ = [
    "FILES",
    "LISTS",
    "Dropped",
    "Gap",
    "Kept",
    "Known",
    "Listed",
    "Manifest",
    "decode",
    "encode",
    "left_over",
    "newest",
    "number_in",
    "path_of",
    "replaced",
    "run_in",
    "still_dropped",
    "to_compact",
]
