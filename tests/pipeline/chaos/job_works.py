"""The results that jobs must have, whichever process was killed: nothing lost, nothing doubled.

They are killed after a step that is drawn, or a moment later; then they are run again, until one
run comes to its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar, Final
from unittest import mock

import postroom
from postroom.pipeline.jobs.archive import newest
from postroom.pipeline.jobs.archive.folders import LocalArchiveFolder
from postroom.pipeline.jobs.export import export
from postroom.pipeline.jobs.export_files import MANIFEST, STARTED, Folder
from postroom.pipeline.jobs.job import tried
from postroom.server.loopback import LoopbackServer
from tests.client.images import read
from tests.cluster.harness import eventually
from tests.layers.search.looking import differences
from tests.pipeline.chaos.works import WORKS, Work

ACCOUNTS: Final = 17
ENDED_AT_ONCE: Final = 40
_QUEUES: Final = ("kept", "done")


class Job(Work):
    """A job.

    Attributes:
        steps_most: it is killed after so many steps of it at the latest.
        cuts: the keys at which the store is split, one each time that the work goes on.
    """

    steps_most: ClassVar[int] = 4
    cuts: ClassVar[tuple[bytes, ...]] = ()
    moment_seconds = 2.0

    def has_begun(self) -> bool:
        return self.steps() >= self.kill_after

    def progress(self) -> object:
        return self.steps(), sum(1 for _ in self.folder.rglob("*"))

    def split(self) -> None:
        """Split the store at the next key, if one is left."""
        begins = {each.start for each in self.db.ranges()}
        left = [each for each in self.cuts if each not in begins]
        if left:
            self.db.split(left[0])


class Archive(Job):
    """Messages of queues and of inboxes end while it runs."""

    name = "archive"
    steps_most = 14
    cuts = (b"i", b"3", b"5", b"1", b"7")

    def prepare(self) -> None:
        """Prepare a store that keeps the history of inboxes, however long it takes."""
        self.expected_ids: Counter[tuple[str, str]] = Counter()
        self._number = 0
        self.db.create_queue("kept", archive=True)
        self.db.create_queue("done")
        self._held = self.db.hold()
        self._held.__enter__()

    def go_on(self) -> None:
        self.split()
        ids = [str(self._number + each) for each in range(ENDED_AT_ONCE)]
        self._number += ENDED_AT_ONCE
        with self.db.begin() as tx:
            for id_ in ids:
                for queue in _QUEUES:
                    tx.enqueue(queue, b"", id=id_)
                tx.enqueue_message(b"inbox", id_.encode())
        for queue in _QUEUES:
            handle = self.db.queue(queue)
            while messages := handle.claim(ENDED_AT_ONCE):
                handle.acknowledge(messages)
        gone = 0
        while gone < ENDED_AT_ONCE:
            with self.db.begin() as tx:
                gone += len(tx.reap_queue(b"inbox", ENDED_AT_ONCE))
        names = ("inbox", *_QUEUES)
        self.expected_ids.update((each, id_) for id_ in ids for each in names)

    def check(self) -> None:
        """Check that each message that had ended when the last run began is in one file, once."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - needs the extra

        root = self.folder / "archive"
        found: Counter[tuple[str, str]] = Counter()
        manifest = newest.latest(LocalArchiveFolder(root))
        for each in manifest.files:
            table = pq.ParquetFile(root / each.path).read().to_pydict()
            if each.table == "inboxes":
                found.update(("inbox", value.decode()) for value in table["value"])
            else:
                rows = zip(table["queue"], table["id"], strict=True)
                found.update((queue, id_.decode()) for queue, id_ in rows)
        assert found == self.expected_ids
        assert manifest.gaps == []
        on_disk = {path.relative_to(root).as_posix() for path in root.rglob("*.parquet")}
        counted = {each.path for each in (*manifest.files, *manifest.dropped)}
        assert on_disk == counted, "what killed runs have left is gone"


class Export(Job):
    """Sums that stay, and messages that wait, while what they are made of changes."""

    name = "export"
    cuts = (b"a/5", b"k", b"b", b"k/0000500", b"5", b"inbox/3", b"a/12", b"a/8")

    def prepare(self) -> None:
        fill(self.db, self.rows)

    def go_on(self) -> None:
        """Move amounts between accounts: all of them, and what was sent, stay as much as before."""
        self.split()
        for number in range(ACCOUNTS):
            with self.db.begin() as tx:
                one, other = b"a/%d" % number, b"a/%d" % ((number + 1) % ACCOUNTS)
                tx.put(one, b"%d" % (int(tx.get(one)) - 1))
                tx.put(other, b"%d" % (int(tx.get(other)) + 1))

    def check(self) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - needs the extra

        root = self.folder / "export"
        manifest = Folder(str(root)).manifest()
        assert manifest is not None
        found: dict[str, list[dict[str, Any]]] = {}
        for file in manifest.files:
            rows = pq.ParquetFile(root / file.path).read().to_pylist()
            found.setdefault(file.table, []).extend(rows)
        values = {row["key"]: row["value"] for row in found["data"]}
        assert len(values) == len(found["data"]) == self.rows + ACCOUNTS
        assert sum(int(values[b"a/%d" % number]) for number in range(ACCOUNTS)) == 0
        assert len(found["inbox"]) == self.rows
        names = {(row["key"], row["name"]) for row in found["queue"]}
        assert len(names) == len(found["queue"])
        there = {each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file()}
        wanted = {file.path for file in manifest.files} | {MANIFEST, STARTED}
        assert wanted <= there  # a late task of a dead driver may write a file that does not count


class Restore(Job):
    """A copy of a store, which must be it in the end."""

    name = "restore"

    def prepare(self) -> None:
        """Export another store, without Spark."""
        server = LoopbackServer(self.folder / "source", create=True)
        try:
            with postroom.connect(server.address, insecure=True) as source:
                fill(source, self.rows)
                self.at, self.image = read(source)
            export_here({"connect": server.address, "insecure": "true"}, self.folder / "export")
        finally:
            server.close()

    def check(self) -> None:
        assert self.db.images.read().state == "done"
        _, found = read(self.db)
        tables = [dict(each for each in image if is_kept(*each)) for image in (self.image, found)]
        assert tables[0] == tables[1]
        assert sum(1 for _ in self.db.scan()) == self.rows + ACCOUNTS


class LoadFiles(Job):
    """Rows of files, each of which adds one to a key."""

    name = "load-files"
    steps_most = 2

    def prepare(self) -> None:
        lines = (json.dumps({"id": f"{number:07d}"}) for number in range(self.rows))
        (self.folder / "rows.json").write_text("\n".join(lines))

    def check(self) -> None:
        assert self.counted(b"f/") == self.expected()


class Index(Job):
    """An index of documents, some of which change while they are indexed."""

    name = "index"
    steps_most = 3

    def prepare(self) -> None:
        self._round = 0
        with self.db.begin() as tx:
            for number in range(self.rows):
                tx.put(b"d/%07d" % number, b"red wine %d" % number)

    def go_on(self) -> None:
        """Change documents by transactions that tell the index, if there is one."""
        self._round += 1
        told = bool(self.db.search_indexes())
        for number in range(self._round, self.rows, 31):
            key, text = b"d/%07d" % number, b"white wine %d %d" % (number, self._round)
            with self.db.begin() as tx:
                if told:
                    self.db.search_index("chaos").put(tx, key, text)
                else:
                    tx.put(key, text)

    def check(self) -> None:
        assert differences(self.db, "chaos") == []
        hits = self.db.search_index("chaos").search("wine", limit=5, consistent=True)
        assert len(hits) == 5
        self.db.sweep_search_indexes()


def fill(db: postroom.Database, rows: int) -> None:
    """Write values, messages of inboxes, and messages of a queue that wait, or are done."""
    db.create_queue("kept", archive=True, purge_after=1_000_000)
    numbers = iter(range(rows))
    while few := list(islice(numbers, 200)):
        with db.begin() as tx:
            for number in few:
                tx.put(b"k/%07d" % number, b"%d" % number)
                tx.enqueue_message(b"inbox/%d" % (number % 7), b"%d" % number)
                tx.enqueue("kept", b"", id=f"{number}")
    with db.begin() as tx:
        for number in range(ACCOUNTS):
            tx.put(b"a/%d" % number, b"0")
    handle = db.queue("kept")
    handle.acknowledge(handle.claim(rows // 2))
    eventually(lambda: sum(each.messages for each in db.inboxes(limit=10)) == rows, 60.0)


def is_kept(name: bytes, stored: bytes) -> bool:
    """Return whether an entry must be equal in a copy; counters and notes may differ."""
    del stored
    return import_module("postroom.messaging.image_entries").table_of(name) in {
        "data", "inbox", "inbox_index", "queue",
    }  # fmt: skip


def export_here(store: dict[str, str], folder: Any) -> None:
    """Run the job, with its tasks in this thread."""

    def here(
        spark: Any, act: Callable[[Any], bytes], things: Sequence[Any], stage: str, progress: Any
    ) -> list[bytes]:
        del spark, stage, progress
        said = [tried(act, thing) for thing in things]
        assert not any(failed for failed, _ in said), said
        return [answer for _, answer in said]

    with mock.patch.object(import_module("postroom.pipeline.jobs.export"), "spread", here):
        export(None, store, str(folder))  # type: ignore[arg-type]


ALL_WORKS: dict[str, type[Work]] = WORKS | {
    each.name: each for each in (Archive, Export, Restore, LoadFiles, Index)
}
