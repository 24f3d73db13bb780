"""Wall clocks of three nodes that jump by a day and come back: what is due comes in time.

A clock that the others contradict is in ``tests/cluster/test_cluster.py``; here they agree. Jumps
at any moment, and the lateness of all that waits, are the simulator's (``tests/sim/clock.py``).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import postroom
from postroom.errors import Error
from postroom.kv.clock import from_seconds
from tests.cluster.harness import ClusterProcesses, cluster, eventually

DAY = 86_400.0
SECONDS = 1.0
"""Messages are due after this time."""
PATIENCE_SECONDS = 120.0
"""The longest wait: far less than a day."""


def set_clocks(three: ClusterProcesses, ahead_seconds: float) -> None:
    """Set the wall clocks of all nodes."""
    for node in three.nodes:
        node.set_clock(ahead_seconds)


def is_written(db: postroom.Database) -> bool:
    """Return whether something is written: not in transactions that a jump has made too old."""
    with suppress(Error):
        db.put(b"key", b"value")
        return True
    return False


def send(db: postroom.Database, name: bytes) -> None:
    """Send a message that is due after a length of time, and one that is due at a moment."""

    def enqueue(tx: postroom.Transaction) -> None:
        now = datetime.now(UTC)  # noqa: TID251 - that of the machine, which the nodes come back to
        at = now + timedelta(seconds=SECONDS)
        tx.enqueue_message(b"inbox", name + b", length", deliver_at=SECONDS)
        tx.enqueue_message(b"inbox", name + b", moment", deliver_at=at)
        tx.enqueue_message(b"later", name, deliver_at=at + timedelta(hours=1))

    db.run(enqueue)


def take(db: postroom.Database, count: int) -> set[bytes]:
    """Return what comes in time."""
    found: set[bytes] = set()
    while len(found) < count:
        with db.begin() as tx:
            messages = tx.reap_queue(b"inbox", count, wait=PATIENCE_SECONDS)
            found |= {message.value for message in messages}
        assert messages, f"only {found} came"
    return found


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_due_message_comes_in_time_after_all_wall_clocks_were_wrong(
    tmp_path: Path, jump: float
) -> None:
    with cluster(tmp_path) as three, three.connect() as db:
        db.put(b"key", b"value")
        before = int(db.now())
        set_clocks(three, jump)
        eventually(lambda: is_written(db))
        if jump > 0:
            eventually(lambda: is_written(db) and int(db.now()) > before + from_seconds(DAY / 2))
        set_clocks(three, 0.0)
        eventually(lambda: is_written(db))
        corrected = int(db.now())
        send(db, b"after")
        assert take(db, 2) == {b"after, length", b"after, moment"}
        assert not db.peek(b"later"), "timestamps that are a day ahead bring no moment early"
        assert int(db.now()) > corrected > before, "timestamps never go back"
