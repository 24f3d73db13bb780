"""The taking of a backup: all entries of a store at one timestamp, or what has changed since.

::

    hold(whole) ── part by part: pages ─┬─ recounted ──────────────────────┐
         │          (paced)             └─ all, or the differences ─▶ file ├─▶ manifest: done
         └── one timestamp, one snapshot of the leader's engine ───────────┘

An increment reads the store whole, too, and the backups before it: what waits in outboxes and
queues has no versions. It saves room, not reading.

The snapshot is gone with the lease. Then, and after a kill, the backup begins anew, at a later
timestamp.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from postroom.backup import manifest as manifests
from postroom.backup.blocks import Block
from postroom.backup.chain import Chain
from postroom.backup.folder import BackupFolder, PartFile
from postroom.backup.manifest import BackupManifest, BackupPart
from postroom.backup.merging import Differences
from postroom.backup.pace import Pace
from postroom.backup.progress import Progress, silent
from postroom.backup.recount import Recount
from postroom.client.database import CoreDatabase
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.clock import Timestamp
from postroom.limits import BACKUP_CHAIN_MAX
from postroom.messaging.bulk_requests import BYTES, RecordsPage, unpack

PART_BYTES: Final = 16 * 1024 * 1024
"""The size of a part in the store, about. The index of its inboxes is in memory meanwhile."""
_BEGUN_AT_MOST: Final = 3

T = TypeVar("T")
Elsewhere = Callable[..., Awaitable[Any]]
"""A function that calls another one where it may wait for the device, with its arguments."""


class BackupResult(NamedTuple):
    """The result of a backup.

    Attributes:
        folder: its folder.
        backup: its id.
        timestamp: the timestamp of everything in it.
        tables: the number of entries of the store in each table.
        written: the number of entries in the files: of an increment, those that have changed.
        bytes: the size of all files.
        since: the id of the backup before; empty: it is a full one.
        done_before: whether it was there already, and nothing was done.
    """

    folder: str
    backup: str
    timestamp: Timestamp
    tables: dict[str, int]
    written: int
    bytes: int
    since: str = ""
    done_before: bool = False


class _Goal(NamedTuple):
    """The id of the store, the folder of the backup, and the backups before it, if it has any."""

    store: str
    target: BackupFolder
    before: Chain | None


class _Span(NamedTuple):
    """A part of the store that gets a file of its own.

    Attributes:
        table: ``range_image`` for the entries of no key, else ``image``.
        start, end: its keys.
    """

    table: str
    start: bytes
    end: bytes | None


async def take(
    db: CoreDatabase,
    folder: str | Path,
    since: str | Path | None,
    rate: int | None,
    progress: Progress | None,
    elsewhere: Elsewhere,
) -> BackupResult:
    """Take a backup; see ``db.backup``.

    Args:
        db: the store.
        folder, since, rate, progress: as ``db.backup`` takes them.
        elsewhere: calls what waits for the device.
    """
    if rate is not None and not rate > 0:
        raise ValueError(f"rate is a number of bytes in a second, above 0, not {rate}")
    target = BackupFolder(folder)
    before = None if since is None else _earlier(target, BackupFolder(since))
    store = (await db.status()).store_id.hex()
    for each in (target.manifest(), None if before is None else before.last):
        if each is not None and each.store != store:
            raise Invalid(
                f"the backup of {manifests.time_of(each.timestamp)} is of another store, "
                f"{each.store}; nothing was changed: make a full one in a new folder"
            )
    await _check_ranges(db)

    async def last_entry() -> int:
        return (await db.status()).applied_index

    pace = Pace(db.sender, last_entry, rate)
    for _ in range(_BEGUN_AT_MOST):
        goal = _Goal(store, target, before)
        taking = _Taking(db, goal, pace, progress or silent, elsewhere)
        try:
            with target.written():
                return await taking.run()
        except SnapshotTooOld:
            continue  # another node leads: its snapshot is another one
    raise Unavailable(
        f"{_BEGUN_AT_MOST} times the leader changed while the store was read; there is no backup "
        f"in {folder}: look after the nodes, and run it again"
    )


async def _check_ranges(db: CoreDatabase) -> None:
    ranges = await db.ranges()
    if len(ranges) > 1:
        raise Invalid(
            f"a store of one range is backed up, and this one has {len(ranges)}; there is no "
            "backup: stop all nodes, and copy their folders"
        )


def _earlier(target: BackupFolder, since: BackupFolder) -> Chain:
    if since.path.absolute().parent != target.path.absolute().parent:
        raise Invalid(
            f"{target.path} does not lie beside {since.path}, where a restore looks for the backup "
            "before it; nothing was changed: give a folder beside it"
        )
    chain = Chain.of(since)
    if len(chain.links) >= BACKUP_CHAIN_MAX:
        raise Invalid(
            f"{since.path} ends a chain of {len(chain.links)} backups, and no restore takes a "
            "longer one; nothing was changed: make a full one, without since"
        )
    return chain


class _Taking:
    """One try to take a backup."""

    def __init__(
        self, db: CoreDatabase, goal: _Goal, pace: Pace, progress: Progress, elsewhere: Elsewhere
    ) -> None:
        self._db = db
        self._store, self._target, self._before = goal
        self._pace = pace
        self._progress = progress
        self._elsewhere = elsewhere
        self._recount = Recount()

    async def run(self) -> BackupResult:
        """Take the backup, if it is not there; return it."""
        known = self._target.manifest()
        if known is not None:
            return self._result(known, done_before=True)
        async with self._db.hold(whole=True) as at:
            spans = await self._spans()
            parts = [await self._part(number, spans, int(at)) for number in range(len(spans))]
        manifest = self._manifest(int(at), parts)
        await self._elsewhere(self._target.commit, manifest)
        self._progress("backing up", len(spans), len(spans))
        return self._result(manifest, done_before=False)

    async def _spans(self) -> list[_Span]:
        """Return the parts: those of the backup before, or such that each has as much to read."""
        of_range = _Span("range_image", b"", None)
        if self._before is not None:
            return [of_range, *map(_span_of, self._before.last.parts[1:])]
        found = await self._db.partitions(part_bytes=PART_BYTES)
        return [of_range, *(_Span("image", each.start, each.end) for each in found)]

    async def _part(self, number: int, spans: Sequence[_Span], at: int) -> BackupPart:
        """Write the file of a part."""
        self._progress("backing up", number, len(spans))
        table, start, end = spans[number]
        pages = self._db.bulk.scan(table, start, end, at=at)
        before = None if self._before is None else await self._checked(self._before, number)
        with PartFile(self._target, number) as file:
            file.begin()
            async with aclosing(pages):
                async for page in pages:
                    if page.rows:
                        await self._elsewhere(self._add, file, before, page)
                    await self._pace.after(_bytes_of(page))
            self._recount.end_part()
            part: BackupPart = await self._elsewhere(_ended, file, before, spans[number])
        return part

    async def _checked(self, before: Chain, number: int) -> Differences:
        await self._elsewhere(before.check, number)
        return Differences(before.read(number))

    def _add(self, file: PartFile, before: Differences | None, page: RecordsPage) -> None:
        block = Block(page.columns["name"], page.columns["stored"])
        names, stored = unpack(BYTES, block.names), unpack(BYTES, block.stored)
        self._recount.add(names, stored)
        if before is None:
            file.add_block(block, page.rows)
            return
        for changed in before.of((names, stored)):
            file.add(changed)

    def _manifest(self, at: int, parts: list[BackupPart]) -> BackupManifest:
        counted = self._recount.end()
        if counted.wrong:
            raise Invalid(
                "the counters and indexes of the store differ from its entries, so no restore "
                f"would accept them: {'; '.join(counted.wrong[:5])}; there is no backup: see "
                "'postroom pipeline run audit'"
            )
        before = None if self._before is None else self._before.last
        return BackupManifest(
            manifests.FORMAT, uuid.uuid4().hex, self._store, at, manifests.time_of(at),
            "" if before is None else before.backup, 0 if before is None else before.timestamp,
            counted.tables, tuple(parts),
        )  # fmt: skip

    def _result(self, manifest: BackupManifest, *, done_before: bool) -> BackupResult:
        return BackupResult(
            str(self._target.path), manifest.backup, Timestamp(manifest.timestamp),
            manifest.tables, sum(part.entries for part in manifest.parts), manifest.bytes,
            manifest.since, done_before,
        )  # fmt: skip


def _span_of(part: BackupPart) -> _Span:
    end = None if part.end is None else bytes.fromhex(part.end)
    return _Span("image", bytes.fromhex(part.start), end)


def _ended(file: PartFile, before: Differences | None, span: _Span) -> BackupPart:
    if before is not None:
        for gone in before.rest():
            file.add(gone)
    return file.end(span.start, span.end)


def _bytes_of(page: RecordsPage) -> int:
    return sum(len(column.data) for column in page.columns.values())
