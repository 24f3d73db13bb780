"""Stories of two ranges, whose leases two nodes hold, told step by step.

::

    machine 1 ── holds the lease of the left range, up to ``m`` ── "a"
    machine 2 ── holds the lease of the right range ────────────── "n"
    machine 3 ── follows

Each is the story of a mutation of the models. A call from one range to another, or its answer, is
held up in the middle of it. In a story of clocks nodes tell each other no time: each rule must do
without that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from postroom.errors import Retryable
from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.messaging.handover.channels import lane_of
from postroom.messaging.handover.requests import HandOver
from postroom.ranges.transactions.requests import Prepare, Resolve
from postroom.server.hosted_range import HostedRange
from tests.sim.checkers import Broken, require
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.process import ADMINISTRATOR
from tests.sim.cluster.steps import (
    PATIENCE_SECONDS,
    client,
    come_to_rest,
    three_nodes,
    until,
)
from tests.sim.workloads.workload import reap_all

LEFT: Final = b"a"
RIGHT: Final = b"n"
_CUT: Final = b"m"
_AHEAD_SECONDS: Final = 30.0
_RUN_SECONDS: Final = 2.5
"""The time after which a run of a commit is over."""
_MESSAGES: Final = 3
_IN_ONE_LANE: Final = [
    key for key in (b"n%d" % number for number in range(100)) if lane_of(key) == lane_of(RIGHT)
][:2]
"""Two keys whose messages share a channel."""


def write_skew_of_two_transactions(seed: int) -> None:
    """Let each of two transactions read what the other one writes.

    ::

        first    reads n ─ prepared in the right range ── its answer is late ──▶ writes a
        second   reads a ───────────────────────────────▶ writes n
    """
    with two_ranges(seed) as cluster:
        one, _, _ = cluster.machines
        first, second = client(cluster, "first"), client(cluster, "second")
        committed: list[str] = []
        with held_calls(one, Prepare, answers=True) as held:
            _spawn(cluster, "first", _copy(first, RIGHT, LEFT, b"first", committed))
            until(cluster, lambda: held)
            _spawn(cluster, "second", _copy(second, LEFT, RIGHT, b"second", committed))
            cluster.agenda.run(0.5)
        cluster.agenda.run(2 * _RUN_SECONDS)
        come_to_rest(cluster)
        require(len(committed) < 2, "each has read what the other one has overwritten")


def write_below_a_commit_that_has_read_the_key(seed: int) -> None:
    """Write what a commit has only read, where the clock is behind that of the commit."""
    with two_ranges(seed, tells_time=False) as cluster:
        one, _, _ = cluster.machines
        reader, writer = client(cluster, "reader"), client(cluster, "writer")
        let_clock_lead(one)
        read = cluster.run(_reading(reader, RIGHT, LEFT), "it commits", PATIENCE_SECONDS)
        cluster.agenda.run(1.0)  # the right range has heard of it
        written = cluster.run(_writing(writer, RIGHT), "it commits", PATIENCE_SECONDS)
        require(written > read, "a key has changed below a commit that has read it")


def commit_above_a_reader(seed: int) -> None:
    """Let a reader pass by what is prepared, by a later clock than that of the commit."""
    with two_ranges(seed, tells_time=False) as cluster:
        one, two, _ = cluster.machines
        db, reader = client(cluster, "client"), client(cluster, "reader")
        with held_calls(one, Prepare, answers=True) as held:
            task = cluster.spawn("commit", _put_both_once(db))
            until(cluster, lambda: held)
            let_clock_lead(two)
            tx = reader.begin()
            cluster.run(tx.get(RIGHT), "it is read", PATIENCE_SECONDS)
        until(cluster, lambda: task.done)
        committed = task.result
        require(committed > tx.read_timestamp, "a commit is below a reader that it was not told to")


def run_that_was_given_up(seed: int) -> None:
    """Let the answer of a part come after the commit was given up, and its client has died."""
    with two_ranges(seed) as cluster:
        one, _, _ = cluster.machines
        db = client(cluster, "client")
        with held_calls(one, Prepare, answers=True) as held:
            task = cluster.spawn("commit", _put_both_once(db))
            until(cluster, lambda: held)
            cluster.kill(task, db)
            cluster.agenda.run(_RUN_SECONDS)
        come_to_rest(cluster)
        _require_both_or_none(cluster)


def word_of_an_earlier_run(seed: int) -> None:
    """Let a range hear late that a run of a commit is dead, of which a later one has committed.

    ::

        first run    prepared ── its answer is late: it is over ── "dead" is late ──────────┐
        second run                          prepared ── committed ── "committed" is late ─┐ │
        right range  ◀────────────────────────────────────────────────── "committed", "dead"
    """
    with two_ranges(seed) as cluster:
        one, _, _ = cluster.machines
        db = client(cluster, "client")
        with held_calls(one, Resolve) as words:
            with held_calls(one, Prepare, answers=True) as held:
                task = cluster.spawn("commit", db.run(_put_both))
                until(cluster, lambda: held)
                until(cluster, lambda: words)
            until(cluster, lambda: task.done)
            dead = [each for each in words if not _request_of(each).timestamp]
            require(dead, "the right range hears of the first run")
            words[:] = [*dead, *(each for each in words if each not in dead)]
        come_to_rest(cluster)
        _require_both_or_none(cluster)


def read_of_what_was_acknowledged_elsewhere(seed: int) -> None:
    """Begin to read by a clock that is behind that of a range whose write was acknowledged."""
    with two_ranges(seed, tells_time=False) as cluster:
        _, two, _ = cluster.machines
        let_clock_lead(two)
        writer, reader = client(cluster, "writer"), client(cluster, "reader")
        cluster.run(writer.put(RIGHT, b"new"), "a put", PATIENCE_SECONDS)
        tx = reader.begin()
        cluster.run(tx.get(LEFT), "it is read", PATIENCE_SECONDS)
        found = cluster.run(tx.get(RIGHT), "it is read", PATIENCE_SECONDS)
        require(found == b"new", f"it was acknowledged, and {found!r} is read")


def write_between_two_reads(seed: int) -> None:
    """Write in both ranges after a transaction has read in one, before it reads in the other."""
    with two_ranges(seed) as cluster:
        writer, reader = client(cluster, "writer"), client(cluster, "reader")
        seen: list[bytes] = []

        async def look() -> None:
            tx = reader.begin()
            seen.append(await tx.get(LEFT))
            await writer.run(_put_both)
            seen.append(await tx.get(RIGHT))
            await tx.commit()

        task = _spawn(cluster, "look", look())
        until(cluster, lambda: task.done)
        require(len(set(seen)) < 2, f"a commit over both ranges is read in half: {seen}")


def batch_for_a_part_of_a_range(seed: int) -> None:
    """Let a range hand over the messages for one key of another range, then the older ones."""
    with two_ranges(seed) as cluster:
        one, _, _ = cluster.machines
        db = client(cluster, "client")
        assert one.node is not None
        calls = one.node.calls
        recipient_of = calls.recipient_of
        calls.recipient_of = lambda key: (
            recipient_of(key)._replace(  # type: ignore[method-assign]
                start=key, end=key + b"\0"
            )
            if key >= _CUT
            else recipient_of(key)
        )
        with held_calls(one, HandOver) as held:
            for number in range(_MESSAGES):
                for key in _IN_ONE_LANE:
                    cluster.run(_send(db, key, b"%d" % number), "it is sent", PATIENCE_SECONDS)
            until(cluster, lambda: len(held) > 1)
            held.reverse()
        cluster.agenda.run(10.0)
        calls.recipient_of = recipient_of  # type: ignore[method-assign]
        for key in _IN_ONE_LANE:
            _require_messages(cluster, db, key, [b"%d" % number for number in range(_MESSAGES)])


def batch_that_is_sent_again_after_a_split(seed: int) -> None:
    """Split a range that has taken a message, which was consumed, and its sender has not heard.

    ::

        left range   a message ──▶ taken ── the answer is lost ────────── the message, again
        right range                ──── consumed ──── splits: a third range ──▶ knows it
    """
    with two_ranges(seed) as cluster:
        one, _, _ = cluster.machines
        db, administrator = client(cluster, "client"), client(cluster, ADMINISTRATOR)
        with held_calls(one, HandOver, answers=True) as held:
            cluster.run(_send(db, RIGHT, b"0"), "it is sent", PATIENCE_SECONDS)
            until(cluster, lambda: held)
            cluster.run(reap_all(db, RIGHT), "it is reaped", PATIENCE_SECONDS)
            cluster.run(administrator.split(RIGHT), "it is split", PATIENCE_SECONDS)
            held.clear()
        cluster.agenda.run(10.0)
        _require_messages(cluster, db, RIGHT, [])


def snapshot_of_a_right_half_before_its_split(seed: int) -> None:
    """Let a node hear of a right half while it still has all of its keys in the left one.

    ::

        machine 1   leads the right half ── a snapshot ──▶ machine 3   has not heard of the split
        machine 2   leads the left half ── cut off from ── machine 3
    """
    with two_ranges(seed) as cluster:
        one, two, three = cluster.machines
        db = client(cluster, ADMINISTRATOR)
        cluster.network.cut(two.name, three.name)
        cluster.network.cut(three.name, two.name)
        made = cluster.run(db.split(RIGHT), "it is split", PATIENCE_SECONDS)
        cluster.run(db.move_lease(made.id, one.node_id), "it moves", PATIENCE_SECONDS)
        until(cluster, lambda: _serves(one, made.id))
        try:
            for number in range(20):  # its leader speaks to all members
                cluster.run(db.put(RIGHT, b"%d" % number), "a put", PATIENCE_SECONDS)
                cluster.agenda.run(0.1)
        except ValueError as error:  # the node itself refuses to go on
            raise Broken(str(error)) from error
        come_to_rest(cluster)


# --- steps


@contextmanager
def two_ranges(seed: int, *, tells_time: bool = True) -> Iterator[Cluster]:
    """Run three nodes with two ranges; the second node has the lease of the right one."""
    update = HybridLogicalClock.update if tells_time else lambda *_: None
    with patch.object(HybridLogicalClock, "update", update), three_nodes(seed) as cluster:
        two = cluster.machines[1]
        db = client(cluster, ADMINISTRATOR)
        for key in (LEFT, RIGHT):
            cluster.run(db.put(key, b"old"), "a put")
        made = cluster.run(db.split(_CUT), "it is split", PATIENCE_SECONDS)
        cluster.run(db.move_lease(made.id, two.node_id), "it moves", PATIENCE_SECONDS)
        until(cluster, lambda: _serves(two, made.id))
        cluster.agenda.run(2.0)
        yield cluster


def let_clock_lead(machine: Machine) -> None:
    """Let the clock of a node be far ahead of the others, as after a wrong time of its machine."""
    assert machine.node is not None
    clock = machine.node.clock
    clock.pass_over(clock.now() + from_seconds(_AHEAD_SECONDS))


def _hosted(machine: Machine, range_id: int) -> HostedRange | None:
    return None if machine.node is None else machine.node.replicas.hosted.get(range_id)


def _serves(machine: Machine, range_id: int) -> bool:
    hosted = _hosted(machine, range_id)
    return hosted is not None and hosted.replica.serves


@contextmanager
def held_calls(
    machine: Machine, kind: type, *, answers: bool = False
) -> Iterator[list[Callable[[], object]]]:
    """Hold the calls of a node to ranges, or their answers, until the block ends."""
    assert machine.node is not None
    calls = machine.node.calls
    carry = calls.carry
    held: list[Callable[[], object]] = []

    def slow(recipient: Any, request: Any, answered: Callable[[Any], None]) -> None:
        if type(request) is not kind:
            carry(recipient, request, answered)
        elif answers:
            carry(recipient, request, lambda answer: held.append(partial(answered, answer)))
        else:
            held.append(partial(carry, recipient, request, answered))

    calls.carry = slow  # type: ignore[method-assign]
    try:
        yield held
    finally:
        calls.carry = carry  # type: ignore[method-assign]
        for each in held:
            machine.act(each)


def _request_of(held: Any) -> Any:
    return held.args[1]


def _spawn(cluster: Cluster, name: str, story: Any) -> Any:
    """Begin a client that may be refused."""

    async def tell() -> None:
        with suppress(Retryable):
            await story

    return cluster.spawn(name, tell())


async def _copy(db: Any, source: bytes, target: bytes, name: bytes, committed: list[str]) -> None:
    tx = db.begin()
    await tx.get(source)
    tx.put(target, name)
    await tx.commit()
    committed.append(name.decode())


async def _reading(db: Any, source: bytes, target: bytes) -> Any:
    tx = db.begin()
    await tx.get(source)
    tx.put(target, b"new")
    return await tx.commit()


async def _writing(db: Any, key: bytes) -> Any:
    tx = db.begin()
    tx.put(key, b"newer")
    return await tx.commit()


async def _put_both(tx: Any) -> None:
    tx.put(LEFT, b"new")
    tx.put(RIGHT, b"new")


async def _put_both_once(db: Any) -> Any:
    tx = db.begin()
    await _put_both(tx)
    return await tx.commit()


async def _send(db: Any, key: bytes, value: bytes) -> None:
    def enqueue(tx: Any) -> None:
        tx.put(LEFT, value)
        tx.enqueue_message(key, value)

    await db.run(enqueue)


def _require_both_or_none(cluster: Cluster) -> None:
    db = client(cluster, "last")
    values = {cluster.run(db.get(key), "it is read", PATIENCE_SECONDS) for key in (LEFT, RIGHT)}
    require(len(values) == 1, f"a commit over two ranges has written {values}")


def _require_messages(cluster: Cluster, db: Any, key: bytes, wanted: list[bytes]) -> None:
    """Require that an inbox has these messages, in order."""
    found = cluster.run(db.peek(key, 100), "it is peeked", PATIENCE_SECONDS)
    values = [message.value for message in found]
    require(values == wanted, f"there are {values}")
