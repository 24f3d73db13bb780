"""The cost of many ranges on a node: as many transactions, from one group, eight and a hundred.

::

    64 clients ── get, commit ──▶ one node ─┬─ range 1   replica, group   ─┐
    (one thread, one transaction            ├─ ...                          ├─▶ one turn,
     under way each, next range by turns)   └─ range 100 replica, group   ─┘    one record

The ranges are made by splits. Each of them has its share of the keys, and its services. With many
groups a turn has about as many proposals as there are transactions, instead of one. The work for a
proposal is then done for each transaction.
"""

from __future__ import annotations

import random  # noqa: TID251 - makes an instance, seeded
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.harness import Measured, Settings, benchmark
from benchmarks.transactions import VALUE, _names
from postroom.kv.clock import SystemClock
from postroom.kv.storage import Storage
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.raft.interface import NoPeers
from postroom.ranges.calls import Call
from postroom.ranges.requests import CommitTransaction, Get, Increment, Put
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from postroom.server.opening import open_storage

IN_FLIGHT: Final = 64
ROUNDS: Final = 5
SERVING_SECONDS_MAX: Final = 60.0
"""The time until a range must have begun, and all must have their leases."""


class _Asked(Call):
    """A request of this benchmark itself, and its answer."""

    __slots__ = ("answer", "done")

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.done = False

    def complete(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.answer, self.done = result, True


class _Client(Call):
    """The client of one transaction after the other, each in the next range: a read, a commit."""

    __slots__ = ("_groups", "_name", "_node", "_number", "committed", "failed")

    def __init__(self, node: Node, groups: int, number: int) -> None:
        super().__init__(None)
        self._node = node
        self._groups = groups
        self._number = number
        self._name = number.to_bytes(8, "big")
        self.committed = 0
        self.failed: BaseException | None = None

    def begin(self) -> None:
        """Begin the next transaction."""
        self._number += 1
        self.request = Get(self._names()[0])
        self._node.replicas.submit(self)

    def _names(self) -> tuple[bytes, bytes, bytes]:
        account, inbox, counter = _names(self._number)
        prefix = _first_key(self._number % self._groups)
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
        self._node.replicas.submit(self)


def _first_key(index: int) -> bytes:
    """Return the first key of a range."""
    return b"%04d/" % index


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
        node.start()
        for index in range(1, groups):
            self._split_at(_first_key(index))
        self._clients = [_Client(node, groups, 7919 * number) for number in range(IN_FLIGHT)]
        hosted = node.replicas.hosted.values()
        self._turn_until(lambda: all(each.replica.serves for each in hosted))
        for client in self._clients:
            client.begin()

    def _split_at(self, key: bytes) -> None:
        range_id = self._ask(NewRangeId())
        self._ask(PrepareSplit(key, range_id))
        self._turn_until(lambda: range_id in self._node.replicas.hosted)

    def _ask(self, request: Any) -> Any:
        asked = _Asked(request)
        self._node.replicas.submit(asked)
        self._turn_until(lambda: asked.done)
        return asked.answer

    def _turn_until(self, condition: Callable[[], bool]) -> None:
        patience = time.perf_counter() + SERVING_SECONDS_MAX
        while not condition():
            assert time.perf_counter() < patience, "a range does not begin, or has no lease"
            self._node.turn()

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
