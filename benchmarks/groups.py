"""The cost of many ranges on a node: as many transactions, from one group, eight and a hundred.

::

    64 clients ── get, commit ──▶ one node ─┬─ range 1   replica, group   ─┐
    (one thread, one transaction            ├─ ...                          ├─▶ one turn,
     under way each, next range by turns)   └─ range 100 replica, group   ─┘    one record

A node has one range, and the others are put together here, from the same parts. Each of them holds
its share of the keys. With many groups a turn has about as many proposals as there are
transactions, instead of one. The work for a proposal is then done for each transaction.
"""

from __future__ import annotations

import random  # noqa: TID251 - makes an instance, seeded
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.harness import Measured, Settings, benchmark
from benchmarks.transactions import VALUE, _names
from postroom.kv.clock import SystemClock
from postroom.kv.engine import BlockDamaged
from postroom.kv.storage import Storage
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.raft.interface import NoPeers
from postroom.ranges.calls import Call
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.replica import Replica, take_turn
from postroom.ranges.requests import CommitTransaction, Get, Increment, Put
from postroom.server.assembly import NodeOptions, assemble_range
from postroom.server.node import Node
from postroom.server.opening import open_storage
from postroom.server.replicas import Replicas

IN_FLIGHT: Final = 64
ROUNDS: Final = 5
SERVING_SECONDS_MAX: Final = 60.0
"""The time until each range must have its lease."""


class _Host:
    """The host of one more replica: its messages are not delivered later, and no services run."""

    def __init__(self, node: Node, wants_turn: Callable[[], None]) -> None:
        self._wants_turn = wants_turn
        self.lease_seconds = node.lease_seconds
        self.monotonic = node.monotonic
        self.values_bytes = node.values_bytes

    def may_rest(self) -> bool:
        return False

    def on_serving(self, serves: bool) -> None:
        """Ignore the news: there is no listener."""

    def wake(self, *, urgent: bool) -> None:
        """Note that this replica is to have its part of the next turn of the loop below."""
        self._wants_turn()

    def on_damage(self, error: BlockDamaged) -> bool:
        return False


class _ManyReplicas(Replicas):
    """The replicas of the node: those that want one have their part of a turn."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.monotonic)
        self.add(node.root)
        self.all = [node.root.replica]
        self.awake: dict[int, Replica] = {1: node.root.replica}
        self.evaluate = self._evaluate_all

    def wants_turn_of(self, range_id: int) -> None:
        self.awake[range_id] = self.all[range_id - 1]

    def _evaluate_all(self) -> None:
        awake, self.awake = self.awake, {1: self.all[0]}
        take_turn(awake.values())


def _one_more(node: Node, replicas: _ManyReplicas, stored: Any, range_id: int) -> Replica:
    """Return the replica of one more range of ``node``, with all that a range can do."""
    descriptor = {descriptor_key(range_id): encode_descriptor(RangeDescriptor(range_id))}
    node.engine.write(descriptor, sync=True)
    host = _Host(node, partial(replicas.wants_turn_of, range_id))
    replica = assemble_range(range_id, node, host, stored).replica
    replica.group = node.consensus.create(range_id, (node.node_id,), replica.state)
    replica.group.on_leadership = replica.on_leadership
    return replica


class _Client(Call):
    """The client of one transaction after the other, each in the next range: a read, a commit."""

    __slots__ = ("_name", "_node", "_number", "_ranges", "committed", "failed")

    def __init__(self, node: Node, ranges: list[Replica], number: int) -> None:
        super().__init__(None)
        self._node = node
        self._ranges = ranges
        self._number = number
        self._name = number.to_bytes(8, "big")
        self.committed = 0
        self.failed: BaseException | None = None

    def begin(self) -> None:
        """Begin the next transaction."""
        self._number += 1
        self.request = Get(self._names()[0])
        self._range.submit(self)

    @property
    def _range(self) -> Replica:
        return self._ranges[self._number % len(self._ranges)]

    def _names(self) -> tuple[bytes, bytes, bytes]:
        account, inbox, counter = _names(self._number)
        prefix = b"%d/" % (self._number % len(self._ranges))
        return prefix + account, prefix + inbox, prefix + counter

    def complete(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            self.failed = error
            return
        if type(self.request) is CommitTransaction:
            self.committed += 1
            self.begin()
            return
        account, inbox, counter = self._names()
        self.request = CommitTransaction(
            self._name + self._number.to_bytes(8, "big"), result.timestamp, 60.0,
            result.timestamp, account, [account], [],
            [Put(account, VALUE), EnqueueMessage(inbox, VALUE), EnqueueUpdate(Increment(counter))],
        )  # fmt: skip
        self._range.submit(self)


class _Groups:
    """A node with as many ranges as wanted, and clients in this thread.

    Attributes:
        processor_us: of all threads for a transaction, in each round.
    """

    def __init__(self, settings: Settings, groups: int) -> None:
        self.processor_us: list[float] = []
        seeded = random.Random(1)
        folder = settings.folder / f"{groups}-groups"
        storage = open_storage(folder, seeded, engine_name=settings.engine)
        assert isinstance(storage, Storage)
        self._node = node = Node(storage, SystemClock(), seeded, NoPeers(), NodeOptions())
        replicas = _ManyReplicas(node)
        node.replicas = replicas
        node.start()
        for range_id in range(2, groups + 1):
            replicas.all.append(_one_more(node, replicas, storage.applied, range_id))
        ranges = replicas.all
        self._clients = [_Client(node, ranges, 7919 * number) for number in range(IN_FLIGHT)]
        patience = time.perf_counter() + SERVING_SECONDS_MAX
        while not all(replica.serves for replica in ranges):
            assert time.perf_counter() < patience, "not all ranges have a lease"
            for replica in ranges:
                replica.wake_up()
            node.turn()
        for client in self._clients:
            client.begin()

    def rate(self, seconds: float) -> float:
        """Return transactions a second."""
        before = self._committed()
        begin, used = time.perf_counter(), time.process_time()
        while time.perf_counter() < begin + seconds or self._committed() == before:
            self._node.turn()
        elapsed, used = time.perf_counter() - begin, time.process_time() - used
        for client in self._clients:
            if client.failed is not None:
                raise client.failed
        committed = self._committed() - before
        self.processor_us.append(used / committed * 1e6)
        return committed / elapsed

    def _committed(self) -> int:
        return sum(client.committed for client in self._clients)

    def close(self) -> None:
        """Let go of the folder."""
        self._node.close()


@benchmark("8 groups on a node, share of one group's throughput", "%", 90.0)
def eight_groups(settings: Settings) -> Measured:
    """Measure outbox transactions a second of eight groups, as a part of what one group does."""
    return _share(settings, 8)


@benchmark("100 groups on a node, share of one group's throughput", "%", 55.0)
def hundred_groups(settings: Settings) -> Measured:
    """Measure outbox transactions a second of a hundred groups, as a part of what one group does.

    64 clients go through the groups by turns; the library's client is left out. Rounds alternate,
    and the value is the median of their ratios.
    """
    return _share(settings, 100)


def _share(settings: Settings, groups: int) -> Measured:
    one, many = _Groups(settings, 1), _Groups(settings, groups)
    try:
        one.rate(settings.seconds / 10)
        many.rate(settings.seconds / 10)
        rates = [
            (one.rate(settings.seconds / 3), many.rate(settings.seconds / 3)) for _ in range(ROUNDS)
        ]
    finally:
        one.close()
        many.close()
    processor_us = [statistics.median(each.processor_us[1:]) for each in (one, many)]
    return Measured(
        statistics.median(100 * several / single for single, several in rates),
        {
            "one_group_a_second": statistics.median(single for single, _ in rates),
            "all_groups_a_second": statistics.median(several for _, several in rates),
            "one_group_processor_us": processor_us[0],
            "all_groups_processor_us": processor_us[1],
            "processor_share": 100 * processor_us[0] / processor_us[1],
        },
    )
