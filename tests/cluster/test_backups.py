"""Backups of three real nodes, and restores into them, while leaders are killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.backup import restore, verify
from postroom.backup.folder import PartFile
from postroom.client.sync_parts import Restore
from postroom.errors import CommitUnknown
from tests.backup.moves import CUTS, MOVES_MAX, check_moves, check_restored, move, total
from tests.client.images import Workload, read
from tests.cluster.harness import ClusterProcesses, cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path / "nodes") as processes:
        yield processes


def test_a_backup_of_three_nodes_begins_anew_when_the_leader_is_killed(
    three: ClusterProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    end, killed = PartFile.end, []
    with three.connect() as db, three.connect() as other:

        def once(tx: postroom.Transaction) -> None:
            tx.increment(b"sent", 1)
            tx.enqueue_message(b"inbox", b"x")

        def send() -> None:
            while not stop.is_set():
                other.run(once)

        def ending(self: PartFile, *given: Any) -> Any:
            if not killed:
                killed.append(three.leader(db))
                killed[0].kill()
            return end(self, *given)

        monkeypatch.setattr(PartFile, "end", ending)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            db.backup(tmp_path / "full")
        finally:
            stop.set()
            sender.join()
        killed[0].restart()
        increment = db.backup(tmp_path / "one", since=tmp_path / "full")
        found = read(db)[1]
    assert increment.tables == verify(tmp_path / "one")[-1].tables
    with postroom.open(":memory:") as embedded:
        restore(embedded, tmp_path / "one")
        assert {name for name, _ in read(embedded)[1]} == {name for name, _ in found}
    with postroom.open(":memory:") as embedded:
        restore(embedded, tmp_path / "full")
        embedded.drain()
        (inbox,) = embedded.inboxes()
        assert inbox.messages == postroom.integer(embedded.get(b"sent"))


def test_a_restore_into_three_nodes_goes_on_when_the_leader_is_killed(
    three: ClusterProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(":memory:") as db:
        work = Workload(db, 8, delays=(None, 3600.0))
        for _ in range(60):
            work.step()
        db.drain()
        db.backup(tmp_path / "full")
        found = read(db)[1]
    end_part, killed = Restore.end_part, []
    with three.connect() as db:

        def ending(*given: Any) -> Any:
            if not killed:
                killed.append(three.leader(db))
                killed[0].kill()
            return end_part(*given)

        monkeypatch.setattr(Restore, "end_part", ending)
        restore(db, tmp_path / "full")
        assert read(db)[1] == found
        killed[0].restart()
        db.put(b"new", b"1")


def test_ranges_that_several_nodes_lead_are_backed_up_at_one_moment(
    three: ClusterProcesses, tmp_path: Path
) -> None:
    stop = threading.Event()
    with three.connect() as db, three.connect() as other:
        spread(db)

        def work(own: bytes) -> None:
            for _ in range(MOVES_MAX):
                with contextlib.suppress(CommitUnknown):  # each move is whole, or not there
                    if not stop.is_set():
                        other.run(lambda tx: move(tx, own))

        workers = [threading.Thread(target=work, args=(b"%d" % own,)) for own in range(3)]
        for worker in workers:
            worker.start()
        try:
            while not total(db, b"n"):
                pass
            db.backup(tmp_path / "full")
            db.split(b"n1")
            db.backup(tmp_path / "one", since=tmp_path / "full")
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        moved = check_moves(db)
    found = [check_restored(tmp_path / name) for name in ("full", "one")]
    assert 0 < found[0] <= found[1] <= moved


def test_a_trail_goes_on_under_another_leader(three: ClusterProcesses, tmp_path: Path) -> None:
    with three.connect() as db:
        work = Workload(db, 9, delays=(None, 3600.0))
        db.backup(tmp_path / "full", trail=True)
        for _ in range(20):
            work.step()
        killed = three.leader(db)
        killed.kill()
        db.put(b"between", b"1")
        with db.begin() as tx:
            tx.put(b"between", b"2")
        for _ in range(20):
            work.step()
        db.put(b"between", b"3")
        killed.restart()
        three.leader(db).kill()
        db.put(b"between", b"4")
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
    one = verify(tmp_path / "one")[-1]
    assert one.trail_until == one.timestamp, "it leads from the first one to the second"
    at = tx.commit_timestamp.datetime + timedelta(milliseconds=1)
    with postroom.open(":memory:") as embedded:
        restore(embedded, tmp_path / "one", at=at)
        assert embedded.get(b"between") == b"2"


def spread(db: postroom.Database) -> None:
    """Split a store into three ranges, and have each node lead one."""
    nodes = [each.node_id for each in db.status().nodes]
    ids = [1, *(db.split(cut).id for cut in CUTS)]
    for range_id, node_id in zip(ids, nodes, strict=True):
        db.move_lease(range_id, node_id)
