"""Exports of stores with several ranges: all of them at one timestamp, restored into one range."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import postroom
from postroom import integer
from postroom.backup import reading
from postroom.client.bulk import Bulk
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.client.sync_parts import Restore
from postroom.errors import Error, Invalid
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.ingest.requests import PublishStaged, StageRows, Winner
from postroom.pipeline.jobs.export import export
from postroom.pipeline.jobs.export_files import Folder
from postroom.pipeline.jobs.restore import restore
from postroom.ranges.requests import DeleteRange, Increment
from postroom.ranges.split import halving
from postroom.server.loopback import LoopbackServer
from tests.backup.moves import CUTS, MOVES_MAX, check_moves, move, total
from tests.backup.test_killed import Killed, killed_after
from tests.backup.test_queues_of_ranges import enqueue, found, settle
from tests.client.test_staging_of_several_ranges import ATTEMPT, JOB
from tests.pipeline.jobs.in_process import InProcess
from tests.pipeline.jobs.in_process import Killed as TaskKilled

exporting = import_module("postroom.pipeline.jobs.export")
restoring = import_module("postroom.pipeline.jobs.restore")


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Run the tasks of both jobs here."""
    return InProcess(monkeypatch, exporting, restoring)


@pytest.fixture
def split(db: postroom.Database) -> postroom.Database:
    """Return the store with three ranges."""
    for cut in CUTS:
        db.split(cut)
    assert len(db.ranges()) == 3
    return db


def address(db: postroom.Database) -> dict[str, str]:
    """Return the options that say which store it is."""
    return {"connect": db.status().path, "insecure": "true"}


def exported(db: postroom.Database, folder: Path) -> Path:
    """Export a store; return the folder."""
    export(None, address(db), str(folder))  # type: ignore[arg-type]
    return folder


@contextmanager
def empty(folder: Path) -> Iterator[postroom.Database]:
    """Yield an empty store beside a folder."""
    server = LoopbackServer(folder.with_name(f"{folder.name} restored"), create=True)
    with postroom.connect(server.address, insecure=True) as db:
        yield db
    server.close()


@contextmanager
def restored(folder: Path) -> Iterator[postroom.Database]:
    """Yield the store that is made of an export."""
    with empty(folder) as db:
        restore(None, address(db), str(folder))  # type: ignore[arg-type]
        assert len(db.ranges()) == 1
        yield db


def waiting(db: postroom.Database) -> list[tuple[Any, ...]]:
    """Return the scheduled messages without their ids, which begin with a range."""
    return [(each.due, each.key, each.message) for each in db.scheduled(limit=1000)]


def check_restored(folder: Path, number: int | None = None) -> int:
    """Check that each move is whole in the store that is made of an export, and one more is."""
    with restored(folder) as db:
        first = check_moves(db, number)
        db.run(move)
        assert check_moves(db) == first + 1
        return first


def test_an_export_shows_one_moment_while_others_write_and_ranges_split(
    split: postroom.Database, tmp_path: Path
) -> None:
    stop, cuts = threading.Event(), iter([b"b", b"p", b"w"])

    def work(own: bytes) -> None:
        for _ in range(MOVES_MAX):
            if not stop.is_set():
                split.run(lambda tx: move(tx, own))

    workers = [threading.Thread(target=work, args=(b"%d" % own,)) for own in range(3)]
    for worker in workers:
        worker.start()
    try:
        while not total(split, b"n"):
            pass
        for number in range(3):
            cut = threading.Thread(target=split.split, args=(next(cuts),))
            cut.start()
            exported(split, tmp_path / str(number))
            cut.join()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    moved = check_moves(split)
    assert len(split.ranges()) == 6
    sums = [check_restored(tmp_path / str(number)) for number in range(3)]
    assert sorted(sums) == sums
    assert 0 < sums[0] <= sums[2] <= moved


@pytest.mark.parametrize("are_taken", [False, True], ids=["unsent", "taken"])
def test_an_entry_in_transit_between_ranges_arrives_once_in_the_restored_store(
    are_taken: bool, split: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that receivers have taken stay in the outboxes, or none leaves them."""

    async def never_drop(*_: Any) -> None:
        pass

    if are_taken:
        monkeypatch.setattr(SendingService, "_drop", never_drop)
    else:
        monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    for _ in range(20):
        split.run(move)
    if are_taken:
        while len(split.peek(b"z", 100)) < 20 or total(split, b"y") != 20:
            pass
    folder = exported(split, tmp_path / "export")
    monkeypatch.undo()
    InProcess(monkeypatch, exporting, restoring)
    assert check_restored(folder, 20) == 20


def test_queues_of_several_ranges_are_exported(db: postroom.Database, tmp_path: Path) -> None:
    db.create_queue("jobs", ack_wait=3600.0, purge_after=3600.0, max_attempts=1)
    enqueue(db, "before")
    held = settle(db)
    for cut in CUTS:
        db.split(cut)
    db.queue("jobs").acknowledge(held[::2])
    enqueue(db, "grouped", group="g")
    enqueue(db, "after")
    settle(db)
    db.drain()
    before, stats = found(db), db.queue("jobs").stats()
    before["dead"] += before.pop("leased")  # attempts that the end of the process has ended
    with restored(exported(db, tmp_path / "export")) as other:
        after = found(other)
        assert not after.pop("leased")
        assert after == before
        assert other.queue("jobs").stats().enqueued == stats.enqueued
        handled = 0
        while handled < stats.ready and (messages := other.queue("jobs").claim(1000, wait=5.0)):
            handled += len(messages)
            other.queue("jobs").acknowledge(messages)
        assert handled == stats.ready


def test_the_newest_result_of_an_id_that_two_ranges_keep_is_exported(tmp_path: Path) -> None:
    server = LoopbackServer(tmp_path / "brief", create=True, gc_ttl=0.01)
    with postroom.connect(server.address, insecure=True) as db:
        queue = db.create_queue("jobs", purge_after=0)
        for cut in CUTS:
            db.split(cut)
        for key in (b"u", b"n"):
            claimed: list[postroom.QueueMessage] = []
            while not claimed:  # the id is free when the message before is purged
                with db.begin() as tx:
                    tx.enqueue("jobs", b"work", id="i", key=key)
                claimed = queue.claim(wait=0.5)
            (message,) = claimed
            with db.begin() as tx:
                tx.queues.keep_result(message, 3600.0, key)
                tx.acknowledge("jobs", message)
        folder = exported(db, tmp_path / "export")
    server.close()
    with restored(folder) as other:
        assert other.queue("jobs").result("i") == b"n"
        assert other.queue("jobs").stats().results == 2


@pytest.mark.parametrize("are_sent", [False, True], ids=["unsent", "sent"])
def test_staged_rows_of_several_ranges_take_effect_once_in_the_restored_store(
    are_sent: bool, split: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not are_sent:
        monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    every = (b"b", b"p", b"z")
    for query in (b"a", b"n", b"u"):
        chunk = StageRows(query, 0, JOB, b"", ATTEMPT, 0, packed([Increment(key) for key in every]))
        split.sender.run(repeat_one(split.sender, chunk))
    for query in (b"n", b"a"):
        publish = PublishStaged(query, 0, JOB, [Winner(ATTEMPT, 1)])
        split.sender.run(repeat_one(split.sender, publish))
    if are_sent:
        split.drain()
    folder = exported(split, tmp_path / "export")
    monkeypatch.undo()
    InProcess(monkeypatch, exporting, restoring)
    of_keys = pq.read_table(folder / "staging")["key"].to_pylist()
    assert of_keys
    assert not any(of_keys), "a query is no key"
    with restored(folder) as other:
        other.staging.publish(b"u", 0, JOB, [(ATTEMPT, 1)])
        for query in (b"n", b"a"):
            other.staging.finish(query)
        other.drain()
        assert [integer(other.get(key)) for key in every] == [3, 3, 3]


def test_a_part_whose_range_splits_goes_on_with_both_halves(
    split: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PAGE_BYTES", 1 << 16)
    for key in (b"a", *(b"p/%04d" % number for number in range(100)), b"z"):
        split.put(key, bytes(10_000))
        split.run(lambda tx, key=key: tx.enqueue_message(key, b"sent"))
        with split.begin() as tx:
            tx.postpone(list(tx.reap_queue(key)), delay=3600, hold=True)
            tx.enqueue_message(key, b"held up")
    split.drain()
    scan, cuts = Bulk.scan, iter([b"p/0010", b"p/0050"])

    def splitting(self: Bulk, table: str, *args: Any, **options: Any) -> Any:
        pages = scan(self, table, *args, **options)

        async def beside() -> Any:
            async for page in pages:
                yield page
                if table == "image" and page.rows and (cut := next(cuts, None)):
                    thread = threading.Thread(target=split.split, args=(cut,))
                    thread.start()
                    thread.join()

        return beside()

    monkeypatch.setattr(Bulk, "scan", splitting)
    folder = exported(split, tmp_path / "export")
    assert len(split.ranges()) == 5
    with restored(folder) as other:
        assert [*other.scan()] == [*split.scan()]
        assert other.inboxes(limit=1000) == split.inboxes(limit=1000)
        assert waiting(other) == waiting(split)


def test_an_export_and_a_restore_that_are_killed_go_on(
    split: postroom.Database, tmp_path: Path, tasks: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        split.run(move)
    folder = tmp_path / "export"
    for tasks.kill_at in (0, 1):
        tasks.begun = 0
        with pytest.raises(TaskKilled):
            exported(split, folder)
        assert Folder(str(folder)).manifest() is None
        split.run(move)
    tasks.kill_at = None
    exported(split, folder)
    with empty(folder) as other:
        for method, times in (("send", 1), ("end_part", 2), ("end", 0)):
            with monkeypatch.context() as patched:
                patched.setattr(Restore, method, killed_after(getattr(Restore, method), times))
                with pytest.raises(Killed):
                    restore(None, address(other), str(folder))  # type: ignore[arg-type]
        restore(None, address(other), str(folder))  # type: ignore[arg-type]
        assert check_moves(other, 22) == 22


def test_an_export_is_not_restored_into_a_store_that_is_split(
    split: postroom.Database, tmp_path: Path
) -> None:
    split.run(move)
    folder = exported(split, tmp_path / "export")
    with empty(folder) as other:
        other.split(b"m")
        with pytest.raises(Invalid, match="has several ranges; nothing was changed: restore into"):
            restore(None, address(other), str(folder))  # type: ignore[arg-type]
        other.put(b"a", b"serves")
        assert other.get(b"a") == b"serves"


def test_a_restore_that_is_done_is_told_from_a_store_that_has_split_since(
    split: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halving, "RECORD_SECONDS", 0.1)  # else it splits after a minute
    split.run(move)
    with restored(exported(split, tmp_path / "export")) as other:
        other.split(b"m")
        again = restore(None, address(other), str(tmp_path / "export"))  # type: ignore[arg-type]
        assert again.done_before
        with pytest.raises(Error, match="the restore is complete"):
            other.images.abandon()


def test_a_deferred_update_that_some_ranges_have_carried_out_goes_on_in_the_others(
    split: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range in the middle takes nothing, so that its part is in transit."""
    batch = SendingService._batch

    def not_to_the_middle(self: SendingService, destination: Any) -> Any:
        return None if destination.recipient.start == b"m" else batch(self, destination)

    monkeypatch.setattr(SendingService, "_batch", not_to_the_middle)
    for key in (b"b", b"n", b"z"):
        split.put(key, b"old")

    def delete(tx: postroom.Transaction) -> None:
        tx.put(b"a", b"1")
        tx.enqueue_update(DeleteRange(b"b", None))

    split.run(delete)
    while split.get(b"b") or split.get(b"z"):
        pass
    split.put(b"b", b"new")
    folder = exported(split, tmp_path / "export")
    monkeypatch.undo()
    InProcess(monkeypatch, exporting, restoring)
    with restored(folder) as other:
        other.drain()
        assert [other.get(key) for key in (b"b", b"n", b"z")] == [b"new", None, None]
