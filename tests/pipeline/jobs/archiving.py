"""A store, its archive, and all that ever ended in it; what Spark does is done by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import postroom
import postroom.testing
from postroom.messaging.bulk_requests import RecordFilter
from postroom.pipeline.jobs.archive.files import HistorySpan
from postroom.pipeline.jobs.archive.folders import LocalArchiveFolder
from postroom.pipeline.jobs.archive.manifest import Kept
from postroom.pipeline.jobs.archive.newest import latest
from postroom.pipeline.jobs.archive.run import ArchiveResult, ArchiveRun, ArchiveSettings
from tests.client.stores import Store

GC_TTL = 80.0
"""History is kept for less."""


class Killed(BaseException):
    """The death of a process, as good as kill -9."""


class ByHand:
    """A writer of files with a line a message."""

    def __init__(self, db: postroom.Database, root: Path, name: str) -> None:
        self._db, self._root, self._name, self._number = db, root, name, 0

    def write_queues(self, span: HistorySpan) -> list[Kept]:
        new = []
        for name in span.created_at:
            pages = [
                page
                for state in ("done", "archived")
                for page in self._db.bulk.queue(name, state, at=span.until, start=span.after + 1)
            ]
            new += self._put(
                "queues", name, [str(each.id) for page in pages for each in page.messages]
            )
        return new

    def write_inboxes(self, after: int, until: int) -> list[Kept]:
        found = [
            each.message.value.decode()
            for page in self._db.bulk.records("reaped", at=until, wanted=RecordFilter(after))
            for each in page
            if each.consumed
        ]
        return self._put("inboxes", "", found)

    def compact(self, table: str, files: list[Kept]) -> list[Kept]:
        new = []
        for part in sorted({each.part for each in files}):
            some = [each for each in files if each.part == part]
            rows = [row for each in some for row in read(self._root, each)]
            new += self._put(table, part.partition("/")[0], rows)
        return new

    def _put(self, table: str, part: str, rows: list[str]) -> list[Kept]:
        if not rows:
            return []
        self._number += 1
        path = f"files/{self._name}/{self._number}.parquet"
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(rows))
        return [Kept(path, table, f"{part}/day=2030-01-01", len(rows), place.stat().st_size)]


def read(root: Path, file: Kept) -> list[str]:
    rows: list[str] = json.loads((root / file.path).read_text())
    return rows


class Archiver:
    """A store, its archive, and all that ever ended in it."""

    def __init__(self, store: postroom.testing.Store | Store, root: Path) -> None:
        self.store, self.db, self.root = store, store.db, root
        self.folder = LocalArchiveFolder(root)
        self.expected: Counter[tuple[str, str]] = Counter()
        self._number = 0
        self.db.create_queue("kept", archive=True)
        self.db.create_queue("done", purge_after=10_000)

    def work(self, queues: Sequence[str] = ("kept", "done")) -> None:
        for _ in range(3):
            self._number += 1
            with self.db.begin() as tx:
                for queue in queues:
                    tx.enqueue(queue, b"", id=f"{self._number}")
                tx.enqueue_message(b"inbox", b"%d" % self._number)
            for queue in queues:
                handle = self.db.queue(queue)
                handle.acknowledge(handle.claim(1))
                self.expected["queues", str(f"{self._number}".encode())] += 1
            with self.db.begin() as tx:
                tx.reap_queue(b"inbox")
            self.expected["inboxes", f"{self._number}"] += 1

    def run(self, failpoint: Callable[[str], None] = lambda _: None) -> ArchiveResult:
        settings = ArchiveSettings(keep=0.0, grace=1000.0, files_max=2)
        run = ArchiveRun(self.db, self.folder, settings, failpoint=failpoint)
        return run.whole(lambda name: ByHand(self.db, self.root, name))

    def archived(self) -> Counter[tuple[str, str]]:
        """Return the messages that a reader of the archive finds."""
        files = latest(self.folder).files
        return Counter((each.table, row) for each in files for row in read(self.root, each))

    def seen(self) -> Counter[tuple[str, str]]:
        """Return the messages that a reader of archive and store finds, as the report does."""
        manifest, found = latest(self.folder), self.archived()
        at = int(self.db.now())
        hand = ByHand(self.db, self.root / "other", "x")
        made = {each.name: int(each.created_at) for each in self.db.queues()}
        for name, created_at in made.items():
            after = manifest.until(name, created_at)
            for each in hand.write_queues(HistorySpan({name: created_at}, after, at)):
                found.update((each.table, row) for row in read(self.root / "other", each))
        for each in hand.write_inboxes(max(manifest.inboxes_until, self.readable()), at):
            found.update((each.table, row) for row in read(self.root / "other", each))
        return found

    def readable(self) -> int:
        return max(int(each.readable_from) for each in self.db.partitions())


def killer(step: str, times: int = 1) -> Callable[[str], None]:
    """Return a failpoint that kills before a step, when that is to be done for the given time."""
    left = times

    def failpoint(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if not left:
                raise Killed(step)

    return failpoint
