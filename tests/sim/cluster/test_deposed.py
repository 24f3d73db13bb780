"""Two nodes that both believe that they hold the lease: the deposed one delivers nothing.

Its belief is made up: it neither looks at the time, nor notices that nobody answers it. The
promise is kept since its proposals are entries of a term that is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.raft.election import Elections
from postroom.ranges.lease import LeaseHolder
from postroom.server.assembly import NodeOptions
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

MESSAGES = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    options = NodeOptions(disk_reserve_bytes=0, lease_seconds=1.0)
    made = Cluster(1, [options] * 3, [(1.0, 0.0, 0.0)] * 3)
    for machine in made.machines:
        assert machine.open()
    yield made
    made.abandon()


def leader_of(cluster: Cluster) -> Machine:
    leader = cluster.leader()
    assert leader is not None
    return leader


def believes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine lead until it hears otherwise."""
    assert machine.node is not None
    believer, serves = machine.node.root.replica.lease_holder, LeaseHolder.serves
    core, check_quorum = machine.node.root.replica.group.core, Elections._check_quorum
    monkeypatch.setattr(
        LeaseHolder,
        "serves",
        lambda lease_holder, now: lease_holder is believer or serves(lease_holder, now),
    )
    monkeypatch.setattr(
        Elections,
        "_check_quorum",
        lambda rules: None if rules._core is core else check_quorum(rules),
    )


def test_the_deposed_one_delivers_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")

    def send(tx: Any) -> None:
        for number in range(MESSAGES):
            tx.enqueue_message(b"key", b"%d" % number, deliver_at=4.0)

    cluster.run(db.run(send), "messages are sent, to arrive later")
    deposed = leader_of(cluster)
    others = [machine.name for machine in cluster.machines if machine is not deposed]
    for place in (*others, "client"):
        cluster.network.cut(deposed.name, place)
        cluster.network.cut(place, deposed.name)
    believes(deposed, monkeypatch)
    monkeypatch.setattr(cluster.overseer.leases, "acted", lambda *_: None)  # two do serve
    cluster.agenda.run_until(lambda: leader_of(cluster) is not deposed, "another one leads", 10.0)

    assert deposed.node is not None
    group = deposed.node.root.replica.group
    before = group.last_index
    cluster.agenda.run(4.0)  # the messages are due
    assert group.is_leader
    assert deposed.node.root.services.running
    assert group.last_index > before, "its dispatcher has not tried"
    found = cluster.run(db.peek(b"key"), "they have arrived, from the other one")
    assert len(found) == MESSAGES

    cluster.network.mend_all()
    cluster.run(db.put(b"other", b""), "all goes on")
    cluster.agenda.run(3.0)
    assert not group.is_leader
    content = cluster.overseer.look()  # replicas are equal, and no message is in two places
    assert content is not None
    assert content.counters.delivered == MESSAGES
    assert len(content.inboxes[b"key"]) == MESSAGES
