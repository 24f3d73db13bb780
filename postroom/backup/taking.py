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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from postroom.backup import manifest as manifests
from postroom.backup.chain import Chain
from postroom.backup.folder import BackupFolder, PartFile
from postroom.backup.manifest import BackupManifest, BackupPart
from postroom.backup.merging import Differences
from postroom.backup.pace import Pace
from postroom.backup.progress import Progress
from postroom.backup.reading import ReadEntries, StoreReader
from postroom.backup.recount import Recount
from postroom.backup.store_trail import StoreTrail
from postroom.backup.trail import after
from postroom.client.database import CoreDatabase
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.clock import Timestamp
from postroom.limits import BACKUP_CHAIN_MAX

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
        trail_until: the timestamp up to which its trail leads from the backup before; 0: it has
            none.
    """

    folder: str
    backup: str
    timestamp: Timestamp
    tables: dict[str, int]
    written: int
    bytes: int
    since: str = ""
    done_before: bool = False
    trail_until: int = 0


class BackupOrder(NamedTuple):
    """The arguments of ``db.backup``, which explains them."""

    folder: str | Path
    since: str | Path | None
    rate: int | None
    trail: bool | None
    progress: Progress


class _Goal(NamedTuple):
    """The id of the store, the folder of the backup, and the backups before it, if it has any."""

    store: str
    target: BackupFolder
    before: Chain | None


Span = tuple[bytes, bytes | None]
"""The keys of a part that gets a file of its own."""


async def take(db: CoreDatabase, order: BackupOrder, elsewhere: Elsewhere) -> BackupResult:
    """Take a backup; see ``db.backup``.

    Args:
        db: the store.
        order: its arguments.
        elsewhere: calls what waits for the device.
    """
    rate = order.rate
    if rate is not None and not rate > 0:
        raise ValueError(f"rate is a number of bytes in a second, above 0, not {rate}")
    target = BackupFolder(order.folder)
    status = await db.status()
    if target.path.resolve().is_relative_to(Path(status.path).resolve()):
        raise Invalid(
            f"{target.path} lies in the folder of the store, and would be lost with it; nothing "
            "was changed: give a folder elsewhere, on another device if possible"
        )
    before = None if order.since is None else _earlier(target, BackupFolder(order.since))
    store = status.store_id.hex()
    for each in (target.manifest(), None if before is None else before.last):
        if each is not None and each.store != store:
            raise Invalid(
                f"the backup of {manifests.time_of(each.timestamp)} is of another store, "
                f"{each.store}; nothing was changed: make a full one in a new folder"
            )

    pace = Pace(db.sender, partial(applied_entries, db), rate)
    trail = StoreTrail(db, order.trail)
    for _ in range(_BEGUN_AT_MOST):
        goal = _Goal(store, target, before)
        taking = _Taking(db, goal, pace, trail, order.progress, elsewhere)
        try:
            with target.written():
                done = await taking.run()
                await trail.end(int(done.timestamp))
                return done
        except SnapshotTooOld:
            continue  # another node leads: its snapshot is another one
    raise Unavailable(
        f"{_BEGUN_AT_MOST} times the leader changed while the store was read; there is no backup "
        f"in {order.folder}: look after the nodes, and run it again"
    )


async def applied_entries(db: CoreDatabase) -> int:
    """Return the number of entries in the logs of all ranges, which grows with each write."""
    return sum(each.applied_index for each in await db.ranges())


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
        self,
        db: CoreDatabase,
        goal: _Goal,
        pace: Pace,
        trail: StoreTrail,
        progress: Progress,
        elsewhere: Elsewhere,
    ) -> None:
        self._db = db
        self._store, self._target, self._before = goal
        self._pace = pace
        self._trail = trail
        self._progress = progress
        self._elsewhere = elsewhere
        self._recount = Recount()

    async def run(self) -> BackupResult:
        """Take the backup, if it is not there; return it."""
        known = self._target.manifest()
        if known is not None:
            return self._result(known, done_before=True)
        await self._trail.begin()
        async with self._db.hold(whole=True) as at:
            reader = StoreReader(self._db, int(at), await self._db.ranges())
            spans = await self._spans(reader)
            self._progress("backing up", 0, len(spans) + 1)
            parts = [await self._part(0, reader.of_no_key(), (b"", None))]
            for number, span in enumerate(spans, 1):
                self._progress("backing up", number, len(spans) + 1)
                parts.append(await self._part(number, reader.of_keys(*span), span))
            until, trail = await self._trail_files(reader, int(at), spans)
        manifest = self._manifest(int(at), parts, until, trail)
        await self._elsewhere(self._target.commit, manifest)
        self._progress("backing up", len(parts), len(parts))
        return self._result(manifest, done_before=False)

    async def _spans(self, reader: StoreReader) -> list[Span]:
        """Return the keys of the parts: those of the backup before, if there is one."""
        if self._before is None:
            return await reader.spans(PART_BYTES)
        return [_span_of(part) for part in self._before.last.parts[1:]]

    async def _part(
        self, number: int, pages: AsyncGenerator[ReadEntries], span: Span
    ) -> BackupPart:
        """Write the file of a part."""
        before = None if self._before is None else await self._checked(self._before, number)
        with PartFile(self._target, manifests.part_name(number)) as file:
            file.begin()
            async with aclosing(pages):
                async for page in pages:
                    if page.entries[0]:
                        await self._elsewhere(self._add, file, before, page)
                    await self._pace.after(page.size)
            self._recount.end_part()
            part: BackupPart = await self._elsewhere(_ended, file, before, span)
        return part

    async def _trail_files(
        self, reader: StoreReader, at: int, spans: list[Span]
    ) -> tuple[int, list[BackupPart]]:
        """Write the trail since the backup before; return until when it is complete."""
        since = 0 if self._before is None else self._before.last.timestamp
        until = await self._trail.complete_until(since, at)
        if not until:
            return 0, []
        pages = [reader.trail_of_no_key(), *(reader.trail_of_keys(*span) for span in spans)]
        return until, [
            await self._trail_file(number, each, span)
            for number, (each, span) in enumerate(zip(pages, [(b"", None), *spans], strict=True))
        ]

    async def _trail_file(
        self, number: int, pages: AsyncGenerator[ReadEntries], span: Span
    ) -> BackupPart:
        assert self._before is not None
        since = self._before.last.timestamp
        with PartFile(self._target, manifests.trail_name(number)) as file:
            file.begin()
            async with aclosing(pages):
                async for page in pages:
                    await self._elsewhere(file.add, after(page.entries, since))
                    await self._pace.after(page.size)
            part: BackupPart = await self._elsewhere(file.end, *span)
        return part

    async def _checked(self, before: Chain, number: int) -> Differences:
        await self._elsewhere(before.check, number)
        return Differences(before.read(number))

    def _add(self, file: PartFile, before: Differences | None, page: ReadEntries) -> None:
        self._recount.add(*page.entries)  # type: ignore[arg-type]  # all have values
        if before is not None:
            for changed in before.of(page.entries):
                file.add(changed)
        elif page.block is not None:
            file.add_block(page.block, len(page.entries[0]))
        else:
            file.add(page.entries)

    def _manifest(
        self, at: int, parts: list[BackupPart], trail_until: int, trail: list[BackupPart]
    ) -> BackupManifest:
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
            counted.tables, tuple(parts), tuple(trail), trail_until,
        )  # fmt: skip

    def _result(self, manifest: BackupManifest, *, done_before: bool) -> BackupResult:
        return BackupResult(
            str(self._target.path), manifest.backup, Timestamp(manifest.timestamp),
            manifest.tables, sum(part.entries for part in manifest.parts), manifest.bytes,
            manifest.since, done_before, manifest.trail_until,
        )  # fmt: skip


def _span_of(part: BackupPart) -> Span:
    return bytes.fromhex(part.start), None if part.end is None else bytes.fromhex(part.end)


def _ended(file: PartFile, before: Differences | None, span: Span) -> BackupPart:
    if before is not None:
        for gone in before.rest():
            file.add(gone)
    return file.end(*span)
