"""Situations that chance hardly ever brings about, told step by step.

Each needs several rare things one after the other. A sound store comes through each of them.

The overseer of the cluster (:mod:`.overseer`) looks at it here too, and says what is wrong.
The seed is that of delays, time-outs and what a loss of power leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final

from postroom.errors import LeaseLost, Unavailable
from postroom.raft.interface import RaftOptions
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.sim.checkers import require
from tests.sim.cluster import absence, floods
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import SYNC_SECONDS
from tests.sim.cluster.steps import (
    LEASE_SECONDS,
    PATIENCE_SECONDS,
    client,
    come_to_rest,
    cut_off,
    group_of,
    has_entry,
    held_packets,
    log_of,
    serves,
    three_nodes,
    until,
)

Schedule = Callable[[int], None]

MIB: Final = 1024 * 1024
_OLD_SECONDS: Final = RECORD_SECONDS + 15.0
_KEYS: Final = 5


def entry_of_an_earlier_term(seed: int) -> None:
    """Overwrite an entry that a majority has (figure 8 of the Raft paper, of three).

    ::

        one    x  ── dead ──  leads again, two gets x ── cut off
        two    ·              ·                       x  votes for three  ─▶ its entry replaces x
        three  ·  leads: y    ── dead ──────────────────  leads
    """
    raft = RaftOptions(append_bytes_max=1, quiet_after_seconds=None)  # each entry goes alone
    with three_nodes(seed, raft=raft) as cluster:
        one, two, three = cluster.machines
        db = client(cluster, "client")
        place = log_of(one).last_index + 1
        cut_off(cluster, one)
        task = cluster.spawn("a put that no other node hears of", db.put(b"key", b"x"))
        until(cluster, lambda: has_entry(one, place))
        cluster.kill(task, db)
        cluster.agenda.run(0.01)  # it is synced
        one.crash(power=False)

        until(cluster, lambda: cluster.leader() in (two, three))
        if cluster.leader() is two:
            two, three = three, two
        cut_off(cluster, three)
        until(cluster, lambda: has_entry(three, place))
        cluster.agenda.run(0.01)
        three.crash(power=False)

        cluster.network.mend_all()
        assert one.open()
        until(cluster, lambda: has_entry(two, place))
        cluster.network.cut(one.name, two.name)  # the entry of the new term does not arrive
        cluster.agenda.run(0.2)  # but the answer to the one before it does
        cut_off(cluster, one)
        assert three.open()
        until(cluster, lambda: cluster.leader() is three)
        come_to_rest(cluster)


def vote_in_a_term_that_was_entered_before(seed: int) -> None:
    """Let a member hear of a term before it is asked for its vote in it, and vote then.

    ::

        two    campaigns ── its request is slow ─────────────────▶ three   votes for it
        one    votes for it, and tells three of the term ─▶ three
    """
    with three_nodes(seed) as cluster:
        one, two, three = cluster.machines
        held = held_packets(cluster, two, three)
        one.act(lambda: group_of(one).transfer_leadership(two.node_id))
        until(cluster, lambda: cluster.leader() is two)
        term = group_of(two).term
        until(cluster, lambda: group_of(three).term == term)
        require(log_of(three).vote is None, "nobody has asked it")
        held()
        until(cluster, lambda: log_of(three).vote == two.node_id)
        cluster.agenda.run(0.01)
        three.crash(power=True)
        assert three.open()
        require(log_of(three).vote == two.node_id, f"{three.name} has forgotten its vote")
        come_to_rest(cluster)


def proposal_of_a_former_lease(seed: int) -> None:
    """Let a leaseholder propose under a former lease.

    It has evaluated a transaction, and stands still before it proposes it. Meanwhile another one
    holds the lease, and writes what the transaction has read. Then the first one leads again.
    """
    with three_nodes(seed) as cluster:
        one, two, _ = cluster.machines
        db, other = client(cluster, "client"), client(cluster, "other client")
        cluster.run(db.put(b"count", b"0"), "a put")
        late: list[tuple[Any, ...]] = []
        propose = group_of(one).propose
        group_of(one).propose = lambda *proposal: late.append(proposal)  # type: ignore[method-assign]
        first = cluster.spawn("first", db.run(_count_up))
        until(cluster, lambda: late)
        group_of(one).propose = propose  # type: ignore[method-assign]

        one.act(lambda: group_of(one).transfer_leadership(two.node_id))
        until(cluster, lambda: serves(two))
        cluster.run(other.run(_count_up), "another one counts", PATIENCE_SECONDS)
        two.act(lambda: group_of(two).transfer_leadership(one.node_id))
        until(cluster, lambda: cluster.leader() is one and group_of(one).has_applied_own_term)
        one.act(lambda: propose(*late[0]))
        until(cluster, lambda: first.done)
        come_to_rest(cluster)
        count = cluster.run(other.get(b"count"), "it is read", PATIENCE_SECONDS)
        require(count == b"2", f"two have counted, and it is {count!r}")


def snapshot_that_outlasts_its_garbage(seed: int) -> None:
    """Let what a snapshot sees be overwritten, deleted, and old enough to be collected.

    It is old by everybody's clock; the lease goes over meanwhile.
    """
    with three_nodes(
        seed, gc_ttl_seconds=1.0, gc_interval_seconds=5.0, poll_seconds=5.0
    ) as cluster:
        one, two, _ = cluster.machines
        db, other = client(cluster, "client"), client(cluster, "other client")
        for number in range(_KEYS):
            cluster.run(db.put(b"%d" % number, b"old"), "a put")
        opened = db.snapshot()
        snapshot = cluster.run(opened.__aenter__(), "a snapshot is opened")
        for number in range(_KEYS):
            cluster.run(other.put(b"%d" % number, b"new"), "a put")
            cluster.run(other.delete(b"%d" % number), "a deletion")
        cluster.agenda.run(_OLD_SECONDS)
        one.act(lambda: group_of(one).transfer_leadership(two.node_id))
        until(cluster, lambda: serves(two))
        cluster.agenda.run(10.0)
        for number in range(_KEYS):
            found = cluster.run(snapshot.get(b"%d" % number), "it is read", PATIENCE_SECONDS)
            require(found == b"old", f"the snapshot sees {found!r} at {number}")
        cluster.run(opened.__aexit__(None, None, None), "it is closed")


def attempt_that_was_overtaken(seed: int) -> None:
    """Let a consumer acknowledge a message that another one holds.

    The first one has held it for longer than it may.
    """
    with three_nodes(seed) as cluster:
        db, other = client(cluster, "client"), client(cluster, "other client")
        made = db.create_queue("q", ack_wait=1.0, min_backoff=0, max_backoff=1)
        cluster.run(made, "a queue is made")

        async def enqueue(tx: Any) -> None:
            tx.enqueue("q", b"payload")

        cluster.run(db.run(enqueue), "a message is enqueued")
        first = cluster.run(db.queue("q").claim(1, wait=5.0), "it is claimed")[0]
        second = cluster.run(other.queue("q").claim(1, wait=9.0), "it is claimed again")[0]
        with suppress(LeaseLost):
            cluster.run(first.acknowledge(), "it is too late")
            require(False, "who holds a message no more has acknowledged it")
        cluster.run(second.acknowledge(), "it is done")
        come_to_rest(cluster)


def leader_that_hears_nobody(seed: int) -> None:
    """Let a leader, which all others hear, hear of no other node: no other one campaigns."""
    _write_while_leader_is(seed, "deaf")


def leader_that_stands_still(seed: int) -> None:
    """Stop the leader's process while its connections stay: no event tells that it is gone."""
    _write_while_leader_is(seed, "asleep")


def leader_that_cannot_hold_its_lease(seed: int) -> None:
    """Let a disk be so slow that its leader's leases are over when they are stored."""
    patient = RaftOptions(election_seconds_min=4.0, election_seconds_max=5.0)
    with three_nodes(seed, raft=patient) as cluster:
        first, *others = cluster.machines
        db = client(cluster, "somebody")
        first.disk_slowness = 2.2 * LEASE_SECONDS / SYNC_SECONDS
        cluster.agenda.run(LEASE_SECONDS)
        cluster.run(db.get(b"key"), "it is read", PATIENCE_SECONDS)
        require(any(map(serves, others)), "another node holds the lease")
        first.disk_slowness = 1.0
        come_to_rest(cluster)


def _write_while_leader_is(seed: int, missing: str) -> None:
    with three_nodes(seed) as cluster:
        db = client(cluster, "client")
        cluster.run(db.put(b"key", b"before"), "a put", PATIENCE_SECONDS)
        absence.WAYS[missing](cluster, cluster.machines[0], cluster.machines[0].random)
        cluster.run(db.put(b"key", b"meanwhile"), "the others are enough", PATIENCE_SECONDS)
        cluster.machines[0].wake_up()
        come_to_rest(cluster)
        found = cluster.run(db.get(b"key"), "it is read", PATIENCE_SECONDS)
        require(found == b"meanwhile", f"it is {found!r}")


def disks_that_fill_at_the_same_time(seed: int) -> None:
    """Fill all three disks to the reserve, then to the brim; then give them room again."""
    with three_nodes(seed, segment_bytes=4 * MIB, disk_reserve_bytes=2000) as cluster:
        db = client(cluster, "client")
        for number in range(10):
            cluster.run(db.put(b"%d" % number, bytes(100)), "a put", PATIENCE_SECONDS)
        _leave_room(cluster, 1000)
        _require_refused(cluster, db)
        cluster.run(db.delete(b"1"), "a deletion is taken", PATIENCE_SECONDS)
        _leave_room(cluster, 0)
        for number in (0, 2, 3):
            _require_value(cluster, db, b"%d" % number, bytes(100))
        for number in range(4, 10):
            cluster.run(db.delete(b"%d" % number), "a deletion is taken, still", PATIENCE_SECONDS)
        _require_refused(cluster, db)
        for machine in cluster.machines:
            require(machine.serves(), "a node whose disk is full goes on")
            machine.disk.capacity_bytes = None
        cluster.agenda.run(5.0)
        cluster.run(db.put(b"10", b"again"), "there is room again", PATIENCE_SECONDS)
        for machine in cluster.machines:
            machine.crash(power=True)
            require(machine.open(), "it opens again")
        for key, value in ((b"0", bytes(100)), (b"1", None), (b"4", None), (b"10", b"again")):
            _require_value(cluster, db, key, value)


def program_with_many_sessions(seed: int) -> None:
    """Let one program want, in many sessions, all that it can; a polite client goes on."""
    with three_nodes(seed) as cluster:
        db = client(cluster, "polite")
        for name in floods.FLOODS:
            floods.check(cluster, db, name, Random(f"{name} {seed}"))
        come_to_rest(cluster)


def _leave_room(cluster: Cluster, room_bytes: int) -> None:
    """Let each disk have so much room left, and its node find out."""
    for machine in cluster.machines:
        machine.disk.capacity_bytes = machine.disk.content.bytes_stored + room_bytes
    cluster.agenda.run(1.0)


def _require_refused(cluster: Cluster, db: Any) -> None:
    try:
        cluster.run(db.put(b"new", bytes(100)), "a put is refused", PATIENCE_SECONDS)
    except Unavailable as error:
        require("nothing was changed" in str(error), f"it says why, not {error}")
    else:
        require(False, "a put is refused while there is no room")


def _require_value(cluster: Cluster, db: Any, key: bytes, value: bytes | None) -> None:
    found = cluster.run(db.get(key), "it is read", PATIENCE_SECONDS)
    require(found == value, f"{key!r} is {found!r}")


async def _count_up(tx: Any) -> None:
    tx.put(b"count", b"%d" % (int(await tx.get(b"count")) + 1))
