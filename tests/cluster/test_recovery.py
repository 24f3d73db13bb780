"""A cluster that has lost its majority goes on with one node, and the others stay outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import Error, Invalid
from postroom.server import recovery
from tests.cli.commands import failed_with, invoke, lines
from tests.cluster.harness import ClusterProcesses, cluster, eventually

ACTS = 60


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Yield three nodes with values, messages and a queue."""
    with cluster(tmp_path) as processes:
        with processes.connect() as db:
            db.create_queue("work")
            for number in range(ACTS):
                with db.begin() as tx:
                    tx.put(b"key/%03d" % number, b"value")
                    tx.enqueue_message(b"inbox", b"%d" % number)
                    tx.enqueue("work", b"job")
            db.drain()
            eventually(lambda: [each.entries_behind for each in db.status().nodes] == [0, 0, 0])
        yield processes


def stopped(three: ClusterProcesses, number: int) -> Path:
    """Stop all nodes as by a power failure; return the folder of one."""
    for node in three.nodes:
        if node.runs:
            node.kill()
    return three.nodes[number].disk.folder


def has_all(db: postroom.Database) -> bool:
    """Return whether a store has everything that was acknowledged, once."""
    checked = db.images.check()
    assert not checked.wrong
    (inbox,) = db.inboxes()
    ready = db.queue("work").stats().ready
    return (inbox.messages, ready, len(list(db.scan()))) == (ACTS, ACTS, ACTS)


def test_a_node_goes_on_alone_and_the_others_stay_outside(three: ClusterProcesses) -> None:
    folder = stopped(three, 2)
    before = recovery.survey(folder)
    assert [each.node_id for each in before.others] == [1, 2]
    store = recovery.recover(folder)
    assert store != before.store_id
    last = three.nodes[2]
    last.restart()
    with postroom.connect(last.address, insecure=True) as db:
        assert has_all(db)
        assert db.status().store_id == store
        db.put(b"new", b"1")
        first = three.nodes[0]
        first.start()
        first.wait_line(lambda line: "another cluster" in line)
        first.kill()
        first.wipe()
        first.join = last.address
        first.restart()
        eventually(lambda: len(db.status().nodes) == 2)
    with postroom.connect(three.nodes[0].address, insecure=True) as db:
        assert db.get(b"new") == b"1"


@pytest.mark.parametrize("step", ["_apply_all", "_record_writes"])
def test_a_recovery_that_was_interrupted_goes_on(
    step: str, three: ClusterProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped(three, 1)

    def killed(*_: Any) -> Any:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(recovery, step, killed)
        with pytest.raises(InterruptedError):
            recovery.recover(folder)
    three.nodes[1].start()
    three.nodes[1].wait_line(lambda line: "was interrupted" in line)
    three.nodes[1].wait()
    with pytest.raises(Error):
        postroom.open(folder)
    assert recovery.survey(folder).interrupted
    recovery.recover(folder)
    with postroom.open(folder) as db:
        assert has_all(db)


def test_all_ranges_go_on(tmp_path: Path) -> None:
    with cluster(tmp_path) as three:
        with three.connect() as db:
            for number in range(ACTS):
                db.put(b"key/%03d" % number, b"value")
            db.split(b"key/030")
            db.put(b"key/050", b"last")
            eventually(lambda: len({each.leader for each in db.ranges()}) == 1)
            leader = db.ranges()[0].leader  # it has all that was acknowledged
            with db.begin() as tx:
                tx.put(b"key/000", b"both")
                tx.put(b"key/059", b"both")
        alone = three.nodes[leader - 1]
        folder = stopped(three, leader - 1)
        told = lines("recover", folder.as_posix(), "--force", "--yes")
        assert (
            told[-2]
            == "may be there in part: transactions over several ranges, if there are several"
        )
        alone.restart()
        with postroom.connect(alone.address, insecure=True) as db:
            assert [each.copies for each in db.ranges()] == [(leader,), (leader,)]
            assert len(list(db.scan())) == ACTS
            assert db.get(b"key/050") == b"last"
            assert db.get(b"key/000") == db.get(b"key/059")
            with db.begin() as tx:
                tx.put(b"key/000", b"new")
                tx.put(b"key/059", b"new")


def test_a_survey_changes_nothing_and_tells_what_may_be_missing(three: ClusterProcesses) -> None:
    folder = str(stopped(three, 0))
    told = lines("recover", folder)
    assert told[0].startswith("node 1 at ")
    assert "last entry" in told[1]
    assert "s ago" in told[1]
    assert told[2].startswith("to be given up: node 2 at ")
    assert told[3].startswith("may be missing: every later entry")
    (record,) = (json.loads(line) for line in lines("recover", folder, "--json"))
    assert record["ranges"][0]["voters"] == [1, 2, 3]
    refused = invoke("recover", folder, "--force")
    assert failed_with(refused, 1, "Go on with this node alone?", "nothing was changed")
    assert not recovery.survey(Path(folder)).interrupted
    done = lines("recover", folder, "--force", "--yes")
    assert "is a cluster of one" in done[-1]
    assert failed_with(invoke("recover", folder), 1, "alone in its cluster")


def test_a_folder_that_is_no_node_to_recover_is_refused(
    three: ClusterProcesses, tmp_path: Path
) -> None:
    with pytest.raises(Error, match="is open in process"):
        recovery.recover(three.nodes[0].disk.folder)
    with pytest.raises(Invalid, match="no store"):
        recovery.recover(tmp_path / "none")
    postroom.open(tmp_path / "embedded").close()
    with pytest.raises(Invalid, match="no node of a cluster"):
        recovery.recover(tmp_path / "embedded")
