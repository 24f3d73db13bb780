"""The job ``archive``: history out of the store, into files, and then out of the store.

::

    newest manifest, number n
       │  the store is told: run n + 1 of this archive            identity
       ▼  one timestamp is held
    read what ended since manifest n ── files of this run ── synced, read back, counted
       │                                small files ── fewer, larger ones
       ▼
    manifest n + 1 appears                                        the one step that counts
       │
       ▼
    the store is told: trimmed by n + 1                           no older folder is taken any more
    the store is trimmed up to what manifest n + 1 says           may be repeated
    what nobody needs is deleted

A run that is killed before the manifest has changed nothing visible, and the next one writes its
files anew. After it, the next run trims what the killed one would have trimmed, since trimming goes
by the manifest. No message is lost, and none is in the archive twice. A reader of the archive who
takes from the store only what ended later than the manifest sees each message once.
"""

from __future__ import annotations

import datetime
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from pyspark.sql import SparkSession

from postroom.client.queues.messages import QueueInfo
from postroom.client.sync import CoreDatabase
from postroom.counted import counted
from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv.clock import from_seconds
from postroom.pipeline.jobs.archive import gaps as all_gaps
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive import newest
from postroom.pipeline.jobs.archive.files import (
    INBOXES,
    QUEUES,
    QUEUES_AT_ONCE,
    HistorySpan,
    Writer,
    day_of,
)
from postroom.pipeline.jobs.archive.folders import ArchiveFolder, open_folder
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest, Gap, Kept, Known
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database

KEEP_SECONDS: Final = 86_400.0
"""The time for which archived messages stay in the store; done ones stay as long by default."""
GRACE_SECONDS: Final = 86_400.0
"""The time for which files stay that were replaced by larger ones."""
FILES_MAX: Final = 8
"""The small files of a day of a queue that may stay before they become one."""
SMALL_BYTES: Final = 64 * 1024 * 1024
TRIMMED_AT_ONCE: Final = 50_000
_PART_BYTES: Final = 1 << 60
_TRIES: Final = 5

Failpoint = Callable[[str], None]


def _nothing(step: str) -> None:
    del step


@dataclass(frozen=True)
class ArchiveResult:
    """The result of a run.

    Attributes:
        number: of the run; the archive is what the manifest of this number says.
        at: the timestamp up to which history is in the archive now.
        queue_messages, inbox_messages: how many this run has added.
        files: how many the archive has now; ``rows``: how many messages they hold.
        compacted: how many files became fewer ones; ``deleted``: how many were deleted.
        trimmed: how many messages were deleted from the store.
        gaps: what may be missing since the run before, because the store did not keep it so long.
        gaps_so_far: what may be missing since all runs.
        damaged: the queues that were left out, since they cannot be read, and why. They are
            archived when they can.
    """

    number: int
    at: int
    queue_messages: int
    inbox_messages: int
    files: int
    rows: int
    compacted: int
    deleted: int
    trimmed: int
    gaps: tuple[Gap, ...]
    gaps_so_far: tuple[Gap, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)


def archive(  # noqa: PLR0913 - each argument is an option
    spark: SparkSession,
    store: Mapping[str, str],
    folder: str,
    *,
    keep: float = KEEP_SECONDS,
    grace: float = GRACE_SECONDS,
    files_max: int = FILES_MAX,
    progress: JobProgress = SILENT,
    failpoint: Failpoint = _nothing,
) -> ArchiveResult:
    """Move history out of the store into Parquet.

    History is done and archived messages of queues, and messages consumed from inboxes. Run it
    again and again, at least once in ``gc_ttl``; run it again when it was killed.

    Args:
        spark: a session on which :func:`postroom.pipeline.register` was called.
        store: options of the source that say which store.
        folder: a path, or a URI of a file system that Spark can write.
        keep: for so many seconds archived messages stay in the store as well, and their ids are
            duplicates.
        grace: files that were replaced are deleted after so many seconds.
        files_max: so many small files of a day of a queue may stay.
        progress: is told how far it is.
        failpoint: is called before each step that changes something, with its name.

    Raises:
        JobFailed: this archive is another store's, or another run was quicker.
        Invalid: the folder contains something else; or a time is none.
    """
    for name, seconds in (("keep", keep), ("grace", grace)):
        if not 0 <= seconds < math.inf:
            raise Invalid(f"{name} is seconds, from 0 on, not {seconds}; nothing was changed")
    target = open_folder(spark, folder)
    with database(spark, store) as db:
        run = ArchiveRun(db, target, ArchiveSettings(keep, grace, files_max), progress, failpoint)
        return run.whole(lambda name: Writer(spark, store, target, name))


class HistoryWriter(Protocol):
    """The writer of files that a run needs from Spark: see :class:`.Writer`."""

    def write_queues(self, span: HistorySpan) -> list[Kept]:
        """Write the messages of queues that were done, or archived."""

    def write_inboxes(self, after: int, until: int) -> list[Kept]:
        """Write the messages that were consumed from inboxes."""

    def compact(self, table: str, files: list[Kept]) -> list[Kept]:
        """Write the messages of some files into fewer files."""


@dataclass(frozen=True)
class ArchiveSettings:
    """The options of a run: see :func:`archive`."""

    keep: float = KEEP_SECONDS
    grace: float = GRACE_SECONDS
    files_max: int = FILES_MAX


@dataclass(frozen=True)
class Plan:
    """The part of the store that a run reads.

    Attributes:
        infos: of all queues that can be read.
        damaged: the others, and why not.
        queues: up to when they are in the files after this run.
        spans: what is new of them.
        inboxes_after: what was consumed from inboxes after this timestamp is new.
    """

    infos: list[QueueInfo]
    damaged: dict[str, str]
    queues: dict[str, Known]
    spans: list[HistorySpan]
    inboxes_after: int


@dataclass(eq=False)
class ArchiveRun:
    """A run of the job, and its steps. It knows nothing of Spark.

    Attributes:
        db: the store.
        folder: of the archive.
        settings: how much stays, and for how long.
        progress: is told how far it is.
        failpoint: is called before each step that changes something.
    """

    db: CoreDatabase
    folder: ArchiveFolder
    settings: ArchiveSettings
    progress: JobProgress = SILENT
    failpoint: Failpoint = _nothing

    def whole(self, writer_of: Callable[[str], HistoryWriter]) -> ArchiveResult:
        """Do all steps.

        Args:
            writer_of: makes who writes the files of a run, by its name.
        """
        before = self.begin()
        name = f"{before.number + 1}-{secrets.token_hex(4)}"
        writer = writer_of(name)
        counted = all_gaps.acknowledged_counts(self.db)  # counted before messages are read
        with self._alone(before):
            with self.hold(before) as (since, at):
                plan = self.plan(before, since, at, counted)
                new = self.write(writer, plan, at)
                gaps = self.gaps(before, plan, at)
            after = msgspec.structs.replace(
                before, number=before.number + 1, at=at, queues=plan.queues, inboxes_until=at,
                gaps=all_gaps.merged([*before.gaps, *gaps]), files=[*before.files, *new],
                dropped=manifests.still_dropped(before, at - from_seconds(self.settings.grace)),
            )  # fmt: skip
            after, compacted = self.compact(writer, after)
        after = self.commit(after, name)
        trimmed = self.trim(after, at - from_seconds(self.settings.keep))
        return ArchiveResult(
            after.number, at,
            sum(each.rows for each in new if each.table == QUEUES),
            sum(each.rows for each in new if each.table == INBOXES),
            len(after.files), sum(each.rows for each in after.files),
            compacted, self.tidy(after), trimmed, tuple(gaps), tuple(after.gaps), plan.damaged,
        )  # fmt: skip

    def begin(self) -> ArchiveManifest:
        """Return the newest manifest of this store, and note the new run in the store."""
        before = newest.latest_of_store(self.db, self.folder)
        if not before.number:
            before = msgspec.structs.replace(before, archive=secrets.token_hex(16))
        self.failpoint("identity")
        newest.note_begun(self.db, before)
        return before

    @contextmanager
    def hold(self, before: ArchiveManifest) -> Iterator[tuple[int, int]]:
        """Hold the timestamps between which history is read: nothing of it goes meanwhile.

        The first one is that of the run before, or the first that can be read.
        """
        with self.db.hold() as at, ExitStack() as stack:
            after = before.inboxes_until
            for left in reversed(range(_TRIES)):
                parts = self.db.partitions(part_bytes=_PART_BYTES)
                after = max(before.inboxes_until, *(each.readable_from for each in parts))
                try:
                    stack.enter_context(self.db.hold(max(after, 1)))
                    break
                except SnapshotTooOld:  # history was collected just now
                    if not left:
                        raise
            yield int(after), int(at)

    def plan(
        self, before: ArchiveManifest, after_inboxes: int, at: int, counted: Mapping[str, int]
    ) -> Plan:
        """Return the part of the store that is new."""
        every = self.db.queues()
        infos = [each for each in every if not each.damaged]
        damaged = {each.name: each.damaged for each in every if each.damaged}
        queues = {name: before.queues[name] for name in damaged if name in before.queues}
        groups: dict[int, dict[str, int]] = defaultdict(dict)
        for info in infos:
            created_at = int(info.created_at)
            acknowledged, kept = counted.get(info.name, -1), all_gaps.kept_for(info)
            queues[info.name] = Known(created_at, at, acknowledged, kept)
            groups[before.until(info.name, created_at)][info.name] = created_at
        spans = [
            HistorySpan(dict(few), after, at)
            for after, names in sorted(groups.items())
            for few in _in_pieces(sorted(names.items()), QUEUES_AT_ONCE)
        ]
        return Plan(infos, damaged, queues, spans, after_inboxes)

    def gaps(self, before: ArchiveManifest, plan: Plan, at: int) -> list[Gap]:
        """Return what may have gone before it was read.

        Call it when all is read, since done messages are purged meanwhile, too.
        """
        gaps = [*all_gaps.queue_gaps(self.db, before, plan.infos, plan.damaged, at)]
        if before.number and plan.inboxes_after > before.inboxes_until:
            gaps.append(Gap(INBOXES, before.inboxes_until, plan.inboxes_after))
        return sorted(gaps, key=lambda each: each.until)

    def write(self, writer: HistoryWriter, plan: Plan, at: int) -> list[Kept]:
        """Write the new history into files, and return these."""
        self.failpoint("files of queues")
        new: list[Kept] = []
        stages = len(plan.spans) + 1
        for number, span in enumerate(plan.spans):
            self.progress("history into files", number, stages)
            new += writer.write_queues(span)
        self.failpoint("files of inboxes")
        self.progress("history into files", stages - 1, stages)
        new += writer.write_inboxes(plan.inboxes_after, at)
        self.progress("history into files", stages, stages)
        return new

    def compact(
        self, writer: HistoryWriter, manifest: ArchiveManifest
    ) -> tuple[ArchiveManifest, int]:
        """Write many small files into fewer ones."""
        today, closed = day_of(manifest.at), {}
        for each in manifest.files:
            closed[each.part] = _day_in(each.part) < today - 1
        small = manifests.files_to_compact(
            manifest.files,
            files_max=self.settings.files_max,
            size_small=SMALL_BYTES,
            closed=closed,
        )
        if not small:
            return manifest, 0
        self.failpoint("fewer files")
        new: list[Kept] = []
        for number, table in enumerate((QUEUES, INBOXES)):
            self.progress("fewer files", number, 2)
            some = [each for each in small if each.table == table]
            new += writer.compact(table, some) if some else []
        self.progress("fewer files", 2, 2)
        files, dropped = manifests.replaced(manifest, small, new, manifest.at)
        return msgspec.structs.replace(manifest, files=files, dropped=dropped), len(small)

    def commit(self, manifest: ArchiveManifest, run: str) -> ArchiveManifest:
        """Make this manifest the archive from here on; return it with its lists."""
        today = day_of(manifest.at)
        try:
            listed = manifests.read_lists(self.folder, manifest)
        except FileNotFoundError as error:  # given up by others, and deleted after the grace time
            raise self._overtaken() from error
        manifest, stored, new = manifests.divided(
            manifest, listed, lambda each: _day_in(each.part) < today - 1, run
        )
        for path, few in new.items():
            self.failpoint("list")
            self.folder.put_new(path, manifests.encode(few))
        self.failpoint("manifest")
        manifest_file = manifests.manifest_path(manifest.number)
        if not self.folder.put_new(manifest_file, manifests.encode(stored)):
            raise self._overtaken()
        return manifest

    @contextmanager
    def _alone(self, before: ArchiveManifest) -> Iterator[None]:
        """Explain a failure by a quicker run that has deleted what this one wrote.

        Raises:
            JobFailed: another run has archived meanwhile.
        """
        try:
            yield
        except Exception as error:
            if newest.newest_number(self.folder) > before.number:
                raise self._overtaken() from error
            raise

    def _overtaken(self) -> JobFailed:
        return JobFailed(
            f"another run has archived into {self.folder.uri()} meanwhile; this one has changed "
            "nothing, and nothing is missing: run one at a time"
        )

    def trim(self, manifest: ArchiveManifest, until: int) -> int:
        """Delete from the store what is safe in the files."""
        there = {each.path for each in self.folder.files(manifests.FILES)}
        missing = [each.path for each in manifest.files if each.path not in there]
        if missing:
            raise JobFailed(
                f"{counted(len(missing), 'file')} of the archive cannot be found, as "
                f"{missing[0]}; nothing was "
                "deleted from the store: bring the folder back as it was"
            )
        self.failpoint("number")
        newest.note_trimmed(self.db, manifest)
        trimmed, infos = 0, [each for each in self.db.queues() if not each.damaged]
        for number, info in enumerate(infos):
            self.failpoint("trimming")
            self.progress("out of the store", number, len(infos))
            last = min(manifest.until(info.name, int(info.created_at)), until)
            if last > 0:
                trimmed += self._trim_queue(info, last)
        self.progress("out of the store", len(infos), len(infos))
        return trimmed

    def _trim_queue(self, info: QueueInfo, last: int) -> int:
        trimmed, gone = 0, TRIMMED_AT_ONCE
        while gone >= TRIMMED_AT_ONCE:
            try:
                gone = self.db.queue(info.name).trim_archive(
                    last, created_at=int(info.created_at), limit=TRIMMED_AT_ONCE
                )
            except Invalid:
                there = {(each.name, each.created_at) for each in self.db.queues()}
                if (info.name, info.created_at) in there:
                    raise
                break  # the queue was dropped meanwhile, with all that it had
            trimmed += gone
        return trimmed

    def tidy(self, manifest: ArchiveManifest) -> int:
        """Delete files that do not count."""
        every = [each.path for top in (manifests.MANIFESTS, manifests.LISTS, manifests.FILES)
                 for each in self.folder.files(top)]  # fmt: skip
        useless = manifests.useless_files(manifest, every)
        for path in useless:
            self.failpoint("tidying")
            self.folder.delete(path)
        return sum(path.endswith(".parquet") for path in useless)


def _day_in(part: str) -> int:
    """Return the number of the day of a file's folder."""
    day = datetime.date.fromisoformat(part.rpartition("day=")[2])
    return (day - datetime.date(1970, 1, 1)).days


def _in_pieces(items: list[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
