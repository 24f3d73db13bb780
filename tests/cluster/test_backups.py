"""Backups of three real nodes, and restores into them, while leaders are killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.backup import restore, verify
from postroom.backup.folder import PartFile
from postroom.client.sync_parts import Restore
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
