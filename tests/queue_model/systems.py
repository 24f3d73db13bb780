"""The systems on which a history of a queue is played.

They are a store with a clock that is moved by hand, and three simulated nodes, of which some are
killed in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Protocol

from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.queries import ListQueueMessages
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.ranges.requests import CommitTransaction, Now
from postroom.server.assembly import NodeOptions
from tests.messaging.queues.cache_rules import check_cache
from tests.messaging.queues.harness import Q, Queues, queues_of
from tests.messaging.queues.lease_rules import check_holders, check_leases
from tests.sim.cluster.cluster import Cluster
from tests.sim.generators import closed_quietly


class System(Protocol):
    """A store on which a history of a queue is played.

    Attributes:
        slack: how late it may be, in timestamp units.
        is_lenient: whether it may take its client for gone.
        consumer: the beginning of the ids of its consumers.
    """

    slack: int
    is_lenient: bool
    consumer: bytes

    def send(self, *requests: Any) -> list[Any]:
        """Ask all of this at once; return the answers, or the errors."""

    def transaction(self, *writes: Any) -> Any:
        """Make a transaction that only writes."""

    def now(self) -> int:
        """Return the time of the store."""

    def advance(self, seconds: float) -> None:
        """Let a time pass."""

    def jump(self, seconds: float) -> None:
        """Let a time pass, and no turn be taken before the next request."""

    def disturb(self) -> None:
        """Begin anew, or have another node lead."""

    def check(self) -> None:
        """Look at what is kept in memory."""


def everything(system: System) -> list[StoredQueueMessage]:
    """Return all messages of the queue that are not gone."""
    found: list[StoredQueueMessage] = []
    for state in ("", "dead", "done"):
        after = b""
        while True:
            (page,) = system.send(ListQueueMessages(Q, state, after))
            if isinstance(page, Exception):
                raise page
            found += page.messages
            after = page.next
            if not after:
                break
    return found


def check_memory(queues: RangeQueues) -> None:
    """Raise ``AssertionError`` unless the leaseholder's memory of queues follows from itself."""
    for manager in queues._by_name.values():
        check_cache(manager.ready)
        check_leases(manager)
    check_holders(queues)


class Embedded:
    """A store that is driven by hand."""

    is_lenient = False

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._is_disturbed = chance.random() < 0.3
        # A store that is opened anew has timestamps that are ahead of its clock for a while.
        self.slack = from_seconds(4.0 if self._is_disturbed else 0.003)
        self._queues = Queues()
        self._driver = self._queues.store.driver
        self.consumer = self._driver.next_id()[:8]

    def send(self, *requests: Any) -> list[Any]:
        answers: list[Any] = [None] * len(requests)

        async def ask(number: int, call: Any) -> None:
            try:
                answers[number] = await call
            except Exception as error:
                answers[number] = error

        async def ask_all() -> None:
            calls = [self._driver.send(each) for each in requests]
            for number, call in enumerate(calls):
                await ask(number, call)

        self._driver.run(ask_all())
        return answers

    def transaction(self, *writes: Any) -> Any:
        return self._queues.transaction(*writes)

    def now(self) -> int:
        return int(self._driver.now())

    def advance(self, seconds: float) -> None:
        self._driver.advance(seconds)

    def jump(self, seconds: float) -> None:
        self._queues.store.clock.seconds += seconds

    def disturb(self) -> None:
        if not self._is_disturbed:
            return
        if self._chance.random() < 0.5:
            self._queues.store.kill()
        else:
            self._queues.store.restart()

    def check(self) -> None:
        check_memory(self._queues.range_queues)
        for manager in self._queues.range_queues._by_name.values():
            assert not manager.speculation.is_under_way


class ThreeNodes:
    """A simulated cluster, of which the leader dies now and then."""

    slack = from_seconds(4.0)
    is_lenient = True

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._db: Any = cluster.database("client")
        cluster.run(self._db._sender.connect(), "somebody answers")
        self._sender = self._db._sender
        self.consumer = self._sender.next_id()[:8]

    def send(self, *requests: Any) -> list[Any]:
        return [self._ask(each) for each in requests]

    def _ask(self, request: Any) -> Any:
        try:
            return self._cluster.run(self._sender.send(request), "a request", 120.0)
        except Exception as error:
            return error

    def transaction(self, *writes: Any) -> Any:
        now = self.now()
        id_ = self._sender.next_id()
        return CommitTransaction(id_, now, 60.0, 0, b"anchor", [], [], list(writes))

    def now(self) -> int:
        return int(self._cluster.run(self._sender.send(Now()), "the time", 120.0))

    def advance(self, seconds: float) -> None:
        self._cluster.agenda.run(seconds)

    def jump(self, seconds: float) -> None:
        self.advance(seconds)

    def disturb(self) -> None:
        machines = self._cluster.machines
        down = [each for each in machines if each.node is None]
        if down:
            for each in down:
                assert each.open()
            return
        victim = self._cluster.leader() or machines[0]
        victim.crash(power=self._chance.random() < 0.5)

    def check(self) -> None:
        leader = self._cluster.leader()
        if leader is not None and leader.node is not None and leader.node.root.replica.serves:
            check_memory(queues_of(leader.node))


@contextmanager
def three_nodes(seed: int) -> Iterator[ThreeNodes]:
    """Run a cluster for a while."""
    options = NodeOptions(disk_reserve_bytes=0, lease_seconds=1.0)
    cluster = Cluster(seed, [options] * 3, [(1.0, 0.0, 0.0)] * 3)
    with closed_quietly():
        try:
            for machine in cluster.machines:
                assert machine.open()
            yield ThreeNodes(cluster, Random(f"kills {seed}"))
        finally:
            cluster.abandon()
