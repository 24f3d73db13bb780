"""Bugs that the simulated cluster has found, each as a script that failed before it was mended.

Those that need no second node are told with the embedded store.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

import postroom
from postroom import limits
from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.router import Router
from postroom.errors import CommitUnknown, TransactionTooLarge
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import EngineFailed
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.requests import ReadCounters, ReapQueue
from postroom.protocol import frames
from postroom.ranges.locks import LockTable
from postroom.ranges.requests import GetForUpdate, Put, ScanChanges
from postroom.ranges.waiting import Waiting
from postroom.server.assembly import NodeOptions
from tests.sim.cluster import floods, steps
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.embedded import transaction
from tests.sim.cluster.joining import NOTICED_SECONDS, Joining
from tests.sim.test_found import opened

# --- change feeds


def test_a_commit_that_was_under_way_when_the_first_watcher_came_is_told_of() -> None:
    """The feed remembers a commit under way that was evaluated before the first watcher came."""
    store = opened()
    store.run(store.database().put(b"before", b""))
    store.machine.end_turn()
    assert store.machine.node is not None
    last_commit = store.machine.node.root.replica.last_commit
    store.submit(transaction(1, Put(b"under way", b""), began=store.now()))
    store.machine.take_part()
    watches = ScanChanges(b"", b"\xff", last_commit, wait=False)
    store.submit(watches)  # the first watcher: memory begins here
    store.machine.end_turn()
    changes = store.submit(watches).result.changes
    assert [change.key for change in changes] == [b"under way"]


def test_a_watch_during_a_commit_does_not_pass_it_over() -> None:
    store = opened()
    store.run(store.database().put(b"before", b""))
    store.machine.end_turn()
    assert store.machine.node is not None
    watches = ScanChanges(b"", b"\xff", store.machine.node.root.replica.last_commit, wait=False)
    began = store.submit(watches)  # memory begins here
    assert began.result.changes == []
    store.submit(transaction(1, Put(b"under way", b""), began=store.now()))
    store.machine.take_part()
    meanwhile = store.submit(watches)
    store.machine.end_turn()
    (change,) = store.submit(watches).result.changes
    assert meanwhile.result.changes == []
    assert began.result.until < change.timestamp
    assert meanwhile.result.until < change.timestamp


# --- floods


def test_a_polite_client_gets_on_beside_a_flood_and_large_commits_in_small_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 200014: a turn of a flood had 200 steps, and completed one key of a large commit."""
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 1)
    with steps.three_nodes(1) as cluster:
        polite, other = (steps.client(cluster, name) for name in ("polite", "other"))

        async def commit_much() -> None:
            for _ in range(10):
                async with other.begin() as tx:
                    for number in range(150):
                        tx.put(b"large/%03d" % number, b"")

        task = cluster.spawn_awaiting("large commits", commit_much())
        floods.check(cluster, polite, "puts", random.Random(1))
        cluster.run_until(lambda: task.done, "all is committed")


# --- the client's router


class _Port:
    """A port that remembers which links the router has asked to be written."""

    def __init__(self) -> None:
        self.links: list[int] = []
        self.to_write: list[int] = []

    def open(self, link: int, address: str) -> None:
        self.links.append(link)

    def output(self, link: int) -> None:
        self.to_write.append(link)

    def close(self, link: int) -> None: ...
    def alarm(self, when: float) -> None: ...


def test_a_reaper_whose_answer_was_lost_is_sent_again_at_once() -> None:
    """The request goes out behind a release of what the lost answer may have taken.

    The port must be told that there is something to write, although the second of the two is no
    news. Otherwise the request stands still until its deadline.
    """
    port = _Port()
    router = Router(["one:1"], port, lambda: 0.0, random.Random(1))
    router.start()
    router.submit(_Reaps(ReapQueue(b"key", 1, 1000, b"t" * 16, 60.0, wait=False)))
    router.tick()
    first = port.links[-1]
    found = frames.Welcome(frames.PROTOCOL_VERSION, 1, 1, 1, [(1, "one:1")], 100, 1)
    welcome = frames.encode(found)
    take_all(router, first)
    router.received(first, welcome)
    take_all(router, first)
    router.disconnected(first, None)
    router.tick()
    second = port.links[-1]
    assert second != first
    take_all(router, second)
    router.received(second, welcome)
    router.tick()
    assert second in port.to_write


def test_a_client_does_not_begin_by_the_clock_of_a_node_that_does_not_lead() -> None:
    """The first node that the client meets is an hour behind.

    A transaction that begins by that clock has begun too long ago to tell its outcome.
    """
    port = _Port()
    router = Router(["one:1", "two:1"], port, lambda: 0.0, random.Random(1))
    router.start()
    router.tick()
    nodes = [(1, "one:1"), (2, "two:1")]
    behind = frames.Welcome(frames.PROTOCOL_VERSION, 1000, 1, 2, nodes, 100, 1)
    router.received(port.links[-1], frames.encode(behind))
    assert router.reading() == 0
    router.tick()
    leads = frames.Welcome(frames.PROTOCOL_VERSION, 5000, 2, 2, nodes, 100, 1)
    router.received(port.links[-1], frames.encode(leads))
    assert router.reading() == 5000


class _Reaps(RemoteCall):
    __slots__ = ()

    def complete(self, result: object, error: BaseException | None) -> None:
        raise AssertionError("nobody has answered")


def take_all(router: Router, link: int) -> None:
    while router.take(link) is not None:
        pass


# --- locks


def test_transactions_that_wait_for_each_other_do_not_wait_until_they_expire() -> None:
    """Two that locked two keys in opposite orders stood still for a minute."""
    locks = LockTable(Waiting(lambda _: None))
    one, other, third = (GetForUpdate(b"", 0, name, 60.0) for name in (b"one", b"other", b"third"))
    assert locks.acquire(b"a", one.transaction_id) is None
    assert locks.acquire(b"b", other.transaction_id) is None
    for request, key in ((one, b"b"), (third, b"a")):
        assert locks.acquire(key, request.transaction_id) == key
        locks.wait(request, key, age=1)
        assert locks.youngest_of_circle(request.transaction_id) is None
    assert locks.acquire(b"a", other.transaction_id) == b"a"
    locks.wait(other, b"a", age=2)
    assert locks.youngest_of_circle(other.transaction_id) == other.transaction_id
    locks.release(other.transaction_id)
    assert locks.acquire(b"b", one.transaction_id) is None
    assert locks.youngest_of_circle(third.transaction_id) is None


def test_an_outcome_that_nobody_can_tell_any_more_is_not_asked_for_until_a_minute_is_over(
    cluster: Cluster,
) -> None:
    """Clocks had been set ahead while a commit was under way, and its record might be gone."""
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")

    def late(tx: Any) -> None:
        tx.put(b"key", b"value")
        tx._lifetime.began -= from_seconds(100.0)

    with pytest.raises(CommitUnknown, match="read what it would have written"):
        cluster.run(db.run(late), "it is told at once", 1.0)


def test_a_busy_client_learns_of_nodes_that_come_after_it(cluster: Cluster) -> None:
    """A client is told who the nodes are when it comes.

    Then they are replaced one by one; when the one that it talks to dies, it must know another one.
    """
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    first = list(cluster.machines)
    assert cluster.leader() is first[0]
    joining = Joining(cluster, random.Random(1), 0.1)
    over: list[None] = []

    async def stay_busy() -> None:
        while not over:
            await db.get(b"key")
            await db._sender.sleep(0.05)

    busy = cluster.spawn("busy client", stay_busy())
    for machine in first[1:]:
        assert joining.add_node()
        cluster.agenda.run_until(joining.is_settled, "a node joins", 10.0)
        assert joining.retire_node(machine)
        cluster.agenda.run_until(lambda: not joining.leaving, "a node leaves", 10.0)
    over.append(None)
    cluster.agenda.run_until(lambda: busy.done, "it stops", 1.0)
    first[0].crash(power=True)
    cluster.run(db.put(b"key", b"value"), "the others answer", 20.0)


# --- nodes that come and go


@pytest.mark.parametrize("leads", [1, 2])
def test_a_node_that_is_retired_stays_while_a_dead_one_is_counted(
    cluster: Cluster, leads: int
) -> None:
    """One of three nodes is dead, and another one is retired, which may lead.

    Without the retired one, those that are counted are the dead one and one more. They could agree
    on nothing, not even on that. Just after an election the new leader must not take the dead one
    for alive.
    """
    stays, goes, dead = cluster.machines
    if leads == goes.node_id:
        stays.act(lambda: stays.node.root.replica.group.transfer_leadership(goes.node_id))  # type: ignore[union-attr]
        cluster.agenda.run_until(lambda: cluster.leader() is goes, "the lead goes over", 5.0)
        cluster.agenda.run(1.0)
    joining = Joining(cluster, random.Random(3), 0.1)
    assert joining.die(dead)
    cluster.agenda.run(NOTICED_SECONDS)
    assert joining.retire_node(goes)
    cluster.agenda.run_until(lambda: cluster.machines == [stays], "both are gone", 30.0)
    assert joining.is_settled()


# --- commands


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(1, [NodeOptions(disk_reserve_bytes=0)] * 3, [(1.0, 0.0, 0.0)] * 3)
    for machine in cluster.machines:
        assert machine.open()
    cluster.agenda.run(5.0)
    return cluster


MANY: Final = 48
"""The number of values of a mebibyte that are more than a command may have."""


def fill(cluster: Cluster, db: Any, write: Callable[[Any, int], None]) -> None:
    for first in range(0, MANY, 12):

        def some(tx: Any, first: int = first) -> None:
            for number in range(first, first + 12):
                write(tx, number)

        cluster.run(db.run(some), "many are written")


def test_a_small_transaction_that_overwrites_much_does_not_stop_the_cluster(
    cluster: Cluster,
) -> None:
    """The old versions move, and go into the command.

    If no leader can append it, each stops, and the client goes to the next one.
    """
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    fill(cluster, db, lambda tx, number: tx.put(b"%d" % number, bytes(1 << 20)))

    def delete(tx: Any) -> None:
        for number in range(MANY):
            tx.delete(b"%d" % number)

    with pytest.raises(TransactionTooLarge):
        cluster.run(db.run(delete), "it is refused")
    assert cluster.run(db.get(b"0"), "it is read")


def test_many_small_requests_that_overwrite_much_are_not_one_command(cluster: Cluster) -> None:
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    fill(cluster, db, lambda tx, number: tx.put(b"%d" % number, bytes(1 << 20)))
    tasks = [cluster.spawn("delete", db.delete(b"%d" % number)) for number in range(MANY)]
    cluster.agenda.run_until(lambda: all(task.done for task in tasks), "all are deleted", 10.0)
    assert cluster.run(db.get(b"0"), "it is read") is None


def test_large_messages_that_are_due_together_are_delivered(cluster: Cluster) -> None:
    """Five hundred at a time, however large: no leader could append that."""
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    then = cluster.run(db.now(), "it says the time").datetime + timedelta(seconds=10)
    fill(cluster, db, lambda tx, _: tx.enqueue_message(b"key", bytes(1 << 20), deliver_at=then))
    cluster.agenda.run(15.0)
    counters = cluster.run(db._sender.send(ReadCounters()), "counters are read")
    assert (counters.delivered, counters.pending_messages) == (MANY, 0)


def test_updates_that_come_to_more_than_they_say_are_carried_out(cluster: Cluster) -> None:
    db: Any = cluster.database("client")
    cluster.run(db._sender.connect(), "somebody answers")
    fill(cluster, db, lambda tx, number: tx.put(b"%d" % number, bytes(1 << 20)))

    def defer(tx: Any) -> None:
        for number in range(MANY):
            tx.enqueue_update(postroom.Delete(b"%d" % number), execute_at=5.0)

    cluster.run(db.run(defer), "updates are sent")
    cluster.agenda.run(10.0)
    counters = cluster.run(db._sender.send(ReadCounters()), "counters are read")
    assert (counters.executed, counters.pending_updates) == (MANY, 0)


# --- clocks


def test_a_follower_whose_wall_clock_is_behind_is_not_behind_the_lease() -> None:
    """Clients that met it first began their transactions an hour ago."""
    options = [NodeOptions(disk_reserve_bytes=0)] * 3
    cluster = Cluster(1, options, [(1.0, offset, 0.0) for offset in (0.0, 0.0, -3600.0)])
    for machine in cluster.machines:
        assert machine.open()
    cluster.agenda.run(5.0)
    for machine in cluster.machines:
        assert machine.node is not None
        lease = machine.node.root.replica.lease
        assert lease.holder
        assert machine.node.clock.reading() >= lease.start


# --- disks


def test_an_unsynced_write_is_durable_once_the_store_was_opened() -> None:
    """LevelDB writes what it finds in its log to a synced table, and the disk in memory does, too.

    Otherwise a node speaks of a term that it can still forget.
    """
    disk = MemoryDisk()
    disk.write_faults[1] = WriteFault.THERE_WHOLE
    engine = MemoryEngine(disk)
    with pytest.raises(EngineFailed):
        engine.write({keys.store_key("name"): b"value"}, sync=True)
    engine.close()
    assert MemoryEngine(disk).get(keys.store_key("name")) == b"value"
    assert disk.durable.get(keys.store_key("name")) == b"value"
