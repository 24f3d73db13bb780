"""Situations that chance hardly ever brings about, told step by step.

Each needs several rare things one after the other. A sound store comes through each of them.

The overseer of the cluster (:mod:`.overseer`) looks at it here too, and says what is wrong.
The seed is that of delays, time-outs and what a loss of power leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final

from postroom.errors import LeaseLost, Unavailable
from postroom.raft.interface import RaftOptions
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.server.assembly import NodeOptions
from tests.sim.checkers import require
from tests.sim.cluster import absence, floods
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.disks import SEGMENT_BYTES
from tests.sim.generators import closed_quietly

Schedule = Callable[[int], None]

MIB: Final = 1024 * 1024
_PATIENCE_SECONDS: Final = 20.0
_LEASE_SECONDS: Final = 1.0
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
    with _cluster(seed, raft=raft) as cluster:
        one, two, three = cluster.machines
        db = _client(cluster, "client")
        place = _log(one).last_index + 1
        _cut_off(cluster, one)
        task = cluster.spawn("a put that no other node hears of", db.put(b"key", b"x"))
        _until(cluster, lambda: _has(one, place))
        cluster.kill(task, db)
        cluster.agenda.run(0.01)  # it is synced
        one.crash(power=False)

        _until(cluster, lambda: cluster.leader() in (two, three))
        if cluster.leader() is two:
            two, three = three, two
        _cut_off(cluster, three)
        _until(cluster, lambda: _has(three, place))
        cluster.agenda.run(0.01)
        three.crash(power=False)

        cluster.network.mend_all()
        assert one.open()
        _until(cluster, lambda: _has(two, place))
        cluster.network.cut(one.name, two.name)  # the entry of the new term does not arrive
        cluster.agenda.run(0.2)  # but the answer to the one before it does
        _cut_off(cluster, one)
        assert three.open()
        _until(cluster, lambda: cluster.leader() is three)
        _come_to_rest(cluster)


def vote_in_a_term_that_was_entered_before(seed: int) -> None:
    """Let a member hear of a term before it is asked for its vote in it, and vote then.

    ::

        two    campaigns ── its request is slow ─────────────────▶ three   votes for it
        one    votes for it, and tells three of the term ─▶ three
    """
    with _cluster(seed) as cluster:
        one, two, three = cluster.machines
        held = _held_packets(cluster, two, three)
        one.act(lambda: _group(one).transfer_leadership(two.node_id))
        _until(cluster, lambda: cluster.leader() is two)
        term = _group(two).term
        _until(cluster, lambda: _group(three).term == term)
        require(_log(three).vote is None, "nobody has asked it")
        held()
        _until(cluster, lambda: _log(three).vote == two.node_id)
        cluster.agenda.run(0.01)
        three.crash(power=True)
        assert three.open()
        require(_log(three).vote == two.node_id, f"{three.name} has forgotten its vote")
        _come_to_rest(cluster)


def proposal_of_a_former_lease(seed: int) -> None:
    """Let a leaseholder propose under a former lease.

    It has evaluated a transaction, and stands still before it proposes it. Meanwhile another one
    holds the lease, and writes what the transaction has read. Then the first one leads again.
    """
    with _cluster(seed) as cluster:
        one, two, _ = cluster.machines
        db, other = _client(cluster, "client"), _client(cluster, "other client")
        cluster.run(db.put(b"count", b"0"), "a put")
        late: list[tuple[Any, ...]] = []
        propose = _group(one).propose
        _group(one).propose = lambda *proposal: late.append(proposal)  # type: ignore[method-assign]
        first = cluster.spawn("first", db.run(_count_up))
        _until(cluster, lambda: late)
        _group(one).propose = propose  # type: ignore[method-assign]

        one.act(lambda: _group(one).transfer_leadership(two.node_id))
        _until(cluster, lambda: _serves(two))
        cluster.run(other.run(_count_up), "another one counts", _PATIENCE_SECONDS)
        two.act(lambda: _group(two).transfer_leadership(one.node_id))
        _until(cluster, lambda: cluster.leader() is one and _group(one).has_applied_own_term)
        one.act(lambda: propose(*late[0]))
        _until(cluster, lambda: first.done)
        _come_to_rest(cluster)
        count = cluster.run(other.get(b"count"), "it is read", _PATIENCE_SECONDS)
        require(count == b"2", f"two have counted, and it is {count!r}")


def snapshot_that_outlasts_its_garbage(seed: int) -> None:
    """Let what a snapshot sees be overwritten, deleted, and old enough to be collected.

    It is old by everybody's clock; the lease goes over meanwhile.
    """
    with _cluster(seed, gc_ttl_seconds=1.0, gc_interval_seconds=5.0, poll_seconds=5.0) as cluster:
        one, two, _ = cluster.machines
        db, other = _client(cluster, "client"), _client(cluster, "other client")
        for number in range(_KEYS):
            cluster.run(db.put(b"%d" % number, b"old"), "a put")
        opened = db.snapshot()
        snapshot = cluster.run(opened.__aenter__(), "a snapshot is opened")
        for number in range(_KEYS):
            cluster.run(other.put(b"%d" % number, b"new"), "a put")
            cluster.run(other.delete(b"%d" % number), "a deletion")
        cluster.agenda.run(_OLD_SECONDS)
        one.act(lambda: _group(one).transfer_leadership(two.node_id))
        _until(cluster, lambda: _serves(two))
        cluster.agenda.run(10.0)
        for number in range(_KEYS):
            found = cluster.run(snapshot.get(b"%d" % number), "it is read", _PATIENCE_SECONDS)
            require(found == b"old", f"the snapshot sees {found!r} at {number}")
        cluster.run(opened.__aexit__(None, None, None), "it is closed")


def attempt_that_was_overtaken(seed: int) -> None:
    """Let a consumer acknowledge a message that another one holds.

    The first one has held it for longer than it may.
    """
    with _cluster(seed) as cluster:
        db, other = _client(cluster, "client"), _client(cluster, "other client")
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
        _come_to_rest(cluster)


def leader_that_hears_nobody(seed: int) -> None:
    """Let a leader, which all others hear, hear of no other node: no other one campaigns."""
    _write_while_leader_is(seed, "deaf")


def leader_that_stands_still(seed: int) -> None:
    """Stop the leader's process while its connections stay: no event tells that it is gone."""
    _write_while_leader_is(seed, "asleep")


def _write_while_leader_is(seed: int, missing: str) -> None:
    with _cluster(seed) as cluster:
        db = _client(cluster, "client")
        cluster.run(db.put(b"key", b"before"), "a put", _PATIENCE_SECONDS)
        absence.WAYS[missing](cluster, cluster.machines[0], cluster.machines[0].random)
        cluster.run(db.put(b"key", b"meanwhile"), "the others are enough", _PATIENCE_SECONDS)
        cluster.machines[0].wake_up()
        _come_to_rest(cluster)
        found = cluster.run(db.get(b"key"), "it is read", _PATIENCE_SECONDS)
        require(found == b"meanwhile", f"it is {found!r}")


def disks_that_fill_at_the_same_time(seed: int) -> None:
    """Fill all three disks to the reserve, then to the brim; then give them room again."""
    with _cluster(seed, segment_bytes=4 * MIB, disk_reserve_bytes=2000) as cluster:
        db = _client(cluster, "client")
        for number in range(10):
            cluster.run(db.put(b"%d" % number, bytes(100)), "a put", _PATIENCE_SECONDS)
        _leave_room(cluster, 1000)
        _require_refused(cluster, db)
        cluster.run(db.delete(b"1"), "a deletion is taken", _PATIENCE_SECONDS)
        _leave_room(cluster, 0)
        for number in (0, 2, 3):
            _require_value(cluster, db, b"%d" % number, bytes(100))
        for number in range(4, 10):
            cluster.run(db.delete(b"%d" % number), "a deletion is taken, still", _PATIENCE_SECONDS)
        _require_refused(cluster, db)
        for machine in cluster.machines:
            require(machine.serves(), "a node whose disk is full goes on")
            machine.disk.capacity_bytes = None
        cluster.agenda.run(5.0)
        cluster.run(db.put(b"10", b"again"), "there is room again", _PATIENCE_SECONDS)
        for machine in cluster.machines:
            machine.crash(power=True)
            require(machine.open(), "it opens again")
        for key, value in ((b"0", bytes(100)), (b"1", None), (b"4", None), (b"10", b"again")):
            _require_value(cluster, db, key, value)


def program_with_many_sessions(seed: int) -> None:
    """Let one program want, in many sessions, all that it can; a polite client goes on."""
    with _cluster(seed) as cluster:
        db = _client(cluster, "polite")
        for name in floods.FLOODS:
            floods.check(cluster, db, name, Random(f"{name} {seed}"))
        _come_to_rest(cluster)


def _leave_room(cluster: Cluster, room_bytes: int) -> None:
    """Let each disk have so much room left, and its node find out."""
    for machine in cluster.machines:
        machine.disk.capacity_bytes = machine.disk.content.bytes_stored + room_bytes
    cluster.agenda.run(1.0)


def _require_refused(cluster: Cluster, db: Any) -> None:
    try:
        cluster.run(db.put(b"new", bytes(100)), "a put is refused", _PATIENCE_SECONDS)
    except Unavailable as error:
        require("nothing was changed" in str(error), f"it says why, not {error}")
    else:
        require(False, "a put is refused while there is no room")


def _require_value(cluster: Cluster, db: Any, key: bytes, value: bytes | None) -> None:
    found = cluster.run(db.get(key), "it is read", _PATIENCE_SECONDS)
    require(found == value, f"{key!r} is {found!r}")


async def _count_up(tx: Any) -> None:
    tx.put(b"count", b"%d" % (int(await tx.get(b"count")) + 1))


# --- steps of all schedules


@contextmanager
def _cluster(seed: int, *, segment_bytes: int = SEGMENT_BYTES, **more: Any) -> Iterator[Cluster]:
    """Run three nodes; the first one leads."""
    settings = {"disk_reserve_bytes": 0, "lease_seconds": _LEASE_SECONDS, **more}
    options = NodeOptions(**settings)
    cluster = Cluster(seed, [options] * 3, [(1.0, 0.0, 0.0)] * 3)
    with closed_quietly():
        try:
            for machine in cluster.machines:
                machine.segment_bytes = segment_bytes
                assert machine.open()
            _until(cluster, lambda: _serves(cluster.machines[0]))
            cluster.agenda.run(2.0)
            yield cluster
        finally:
            cluster.abandon()


def _client(cluster: Cluster, name: str) -> Any:
    db: Any = cluster.database(name)
    cluster.run(db._sender.connect(), "somebody answers")
    return db


def _group(machine: Machine) -> Any:
    assert machine.node is not None
    return machine.node.root.replica.group


def _log(machine: Machine) -> Any:
    return _group(machine).core.journal


def _has(machine: Machine, index: int) -> bool:
    return machine.node is not None and _log(machine).last_index >= index


def _serves(machine: Machine) -> bool:
    return machine.node is not None and machine.node.root.replica.serves


def _until(cluster: Cluster, condition: Callable[[], object]) -> None:
    cluster.agenda.run_until(condition, "the schedule goes on", _PATIENCE_SECONDS)


def _cut_off(cluster: Cluster, machine: Machine) -> None:
    """Cut a machine off from the other nodes; clients still reach it."""
    for other in cluster.machines:
        if other is not machine:
            cluster.network.cut(machine.name, other.name)
            cluster.network.cut(other.name, machine.name)


def _held_packets(cluster: Cluster, source: Machine, target: Machine) -> Callable[[], None]:
    """Hold packets between two machines from now on; return what lets them arrive."""
    carry = cluster.network.carry
    held: list[Callable[[], object]] = []

    def slow(from_: str, to: str, arrive: Callable[[], object]) -> None:
        if (from_, to) == (source.name, target.name):
            held.append(arrive)
        else:
            carry(from_, to, arrive)

    def release() -> None:
        cluster.network.carry = carry  # type: ignore[method-assign]
        for arrive in held:
            arrive()

    cluster.network.carry = slow  # type: ignore[method-assign]
    return release


def _come_to_rest(cluster: Cluster) -> None:
    """Mend everything, and check that all machines hold the same."""
    cluster.network.mend_all()
    for machine in cluster.machines:
        if machine.node is None:
            assert machine.open()
    cluster.agenda.run(5.0)
    # At this moment an entry may be on its way.
    cluster.run_until(
        lambda: len({_group(machine).applied_index for machine in cluster.machines}) == 1,
        "all have applied the same entries",
    )
    cluster.overseer.look()
