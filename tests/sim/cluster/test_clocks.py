"""Wall clocks that jump and come back, on one node or on all: timestamps rise, nothing is late."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.client.database import CoreDatabase
from postroom.server.assembly import NodeOptions
from tests.sim.clock import EPOCH_SECONDS
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

DAY = 86_400.0
INBOX = b"inbox"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    options = [NodeOptions(disk_reserve_bytes=0, lease_seconds=1.0)] * 3
    cluster = Cluster(1, options, [(1.0, offset, 0.0) for offset in (0.0, 0.05, -0.05)])
    for machine in cluster.machines:
        assert machine.open()
    cluster.agenda.run(3.0)
    yield cluster
    cluster.abandon()


@pytest.fixture
def db(cluster: Cluster) -> CoreDatabase:
    db = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")  # type: ignore[attr-defined]
    cluster.run(db.put(b"k", b""), "a first commit")
    return db


def leader(cluster: Cluster) -> Machine:
    found = cluster.leader()
    assert found is not None
    return found


def ahead(cluster: Cluster, db: CoreDatabase) -> float:
    """Return how far timestamps are ahead of true time."""
    now = cluster.run(db.now(), "the time")
    return now.datetime.timestamp() - EPOCH_SECONDS - cluster.agenda.now


def send(cluster: Cluster, db: CoreDatabase, value: bytes, later: Any) -> None:
    async def enqueue(tx: Any) -> None:
        tx.enqueue_message(INBOX, value, deliver_at=later)

    cluster.run(db.run(enqueue), "a message is sent")


def arrived(cluster: Cluster, db: CoreDatabase) -> set[bytes]:
    return {each.value for each in cluster.run(db.peek(INBOX), "what has arrived")}


def moment(cluster: Cluster, seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(
        EPOCH_SECONDS + cluster.agenda.now + seconds, datetime.UTC
    )


def test_a_leader_whose_clock_jumps_by_a_day_takes_nobody_along(
    cluster: Cluster, db: CoreDatabase
) -> None:
    wrong = leader(cluster)
    wrong.clock.set_wall(DAY)
    for number in range(250):
        cluster.run(db.put(b"k", b"%d" % number), "a commit")
    send(cluster, db, b"meanwhile", 2.0)
    send(cluster, db, b"tomorrow", moment(cluster, DAY / 2))
    cluster.agenda.run(6.0)
    assert leader(cluster) is not wrong, "it has handed over"
    assert abs(ahead(cluster, db)) < 1.0
    wrong.clock.set_right()
    send(cluster, db, b"after", 1.0)
    send(cluster, db, b"at a moment", moment(cluster, 1.0))
    cluster.agenda.run(2.5)
    assert arrived(cluster, db) == {b"meanwhile", b"after", b"at a moment"}


def test_messages_are_not_late_after_all_clocks_were_ahead(
    cluster: Cluster, db: CoreDatabase
) -> None:
    for machine in cluster.machines:
        machine.clock.set_wall(DAY)
    cluster.agenda.run(1.0)
    assert ahead(cluster, db) > DAY - 10, "nobody contradicts them"
    cluster.run(db.put(b"k", b"1"), "a commit")
    send(cluster, db, b"meanwhile", 5.0)
    for machine in cluster.machines:
        machine.clock.set_right()
    cluster.agenda.run(1.0)
    send(cluster, db, b"corrected", 1.0)
    cluster.agenda.run(2.0)
    assert b"corrected" in arrived(cluster, db), "the same leader goes on with time"
    before = cluster.run(db.now(), "the time")
    leader(cluster).close()
    send(cluster, db, b"after", 1.0)
    send(cluster, db, b"at a moment", moment(cluster, 1.0))
    cluster.agenda.run(3.0)
    assert arrived(cluster, db) >= {b"after", b"at a moment"}
    cluster.agenda.run(4.0)
    assert arrived(cluster, db) == {b"corrected", b"meanwhile", b"after", b"at a moment"}
    assert cluster.run(db.now(), "the time") > before, "timestamps never step back"


def test_clocks_that_are_corrected_together_are_followed_at_once(
    cluster: Cluster, db: CoreDatabase
) -> None:
    for machine in cluster.machines:
        machine.clock.set_wall(-DAY)
    cluster.agenda.run(1.0)
    send(cluster, db, b"at a moment", moment(cluster, 5.0))
    cluster.agenda.run(6.0)
    assert arrived(cluster, db) == set()
    for machine in cluster.machines:
        machine.clock.set_right()
    cluster.agenda.run(2.0)
    assert arrived(cluster, db) == {b"at a moment"}
