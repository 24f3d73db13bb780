"""A restore into a cluster of three real processes, whose leader is killed in the middle."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from tests.client.images import IMAGE, Workload, read
from tests.cluster.harness import ClusterProcesses, cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path) as processes:
        yield processes


def test_a_restore_outlives_the_leader(three: ClusterProcesses) -> None:
    with postroom.open(":memory:") as db:
        work = Workload(db, 8, delays=(None, 3600.0))
        for _ in range(60):
            work.step()
        at, found = read(db)
    with three.connect() as db:
        run = uuid.uuid4().bytes
        begun = db.images.begin(run, IMAGE, at)
        assert begun is not None
        half = len(found) // 2
        begun.send([name for name, _ in found[:half]], [stored for _, stored in found[:half]])
        begun.end_part(0, half)
        three.leader(db).kill()
        assert db.images.read().parts == {0: half}
        begun.send([name for name, _ in found[half:]], [stored for _, stored in found[half:]])
        begun.end_part(1, len(found) - half)
        counted = db.images.check()
        assert not counted.wrong
        begun.end(2, len(found))
        assert read(db)[1] == found
        assert db.now() > at
        db.put(b"new", b"1")
        db.drain()
        three.leader(db).kill()  # the second of three: nobody serves until one is back
        for node in three.nodes:
            if not node.runs:
                node.start()
        assert db.get(b"new") == b"1"
        db.delete(b"new")
        names = {name for name, _ in found}
        assert {name for name, _ in read(db)[1]} == names
