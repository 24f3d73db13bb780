"""A node: one engine, one clock, its replicas, and the turn that drives them all.

::

    prepare   services go on · requests are evaluated · proposals are staged        one at a time
              · what may leave early leaves (entries that a leader replicates)
    write     everything staged: the log, with one sync if needed, and the state    no lock needed
    finish    messages leave · callers get their answers · services go on           one at a time

A node is plain synchronous code without threads, tasks or sleeps of its own. A *driver*
(:mod:`postroom.server.drivers`) calls it: on an event loop, from many threads, or in a simulation.
It says through ``on_wake`` when it wants a turn, and through ``next_deadline`` by when at the
latest.

This module is the only place that knows all parts; here they are put together.

In a cluster the services run where the lease is (:mod:`.services`). An entry counts once a majority
has it in a synced log; what it does to the state needs no sync of its own, as it can be applied
again.
"""

from __future__ import annotations

import logging
import random  # noqa: TID251 - passed in, as an instance
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from postroom.errors import Error, StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.kv.clock import Clock, HybridLogicalClock, from_seconds
from postroom.kv.engine import BlockDamaged, Engine, EngineFailed, WriteSet
from postroom.kv.storage import Storage
from postroom.limits import DISK_RESERVE_BYTES, GC_TTL_SECONDS
from postroom.messaging.queues.service import Advancer
from postroom.messaging.queues.surroundings import Surroundings
from postroom.messaging.services import dispatcher, executor
from postroom.messaging.setup import Messaging
from postroom.raft.consensus import Consensus
from postroom.raft.membership import Change
from postroom.raft.options import RaftOptions
from postroom.raft.outcome import Outcome
from postroom.raft.state_machine import NodeId
from postroom.raft.transport import Transport
from postroom.ranges import evaluators
from postroom.ranges.calls import Call
from postroom.ranges.evaluators import Reads
from postroom.ranges.feed import TOKEN, ChangeFeed
from postroom.ranges.garbage import Collector, GarbageLists
from postroom.ranges.lease import LEASE_SECONDS
from postroom.ranges.locks import LockTable
from postroom.ranges.node_records import NodeRecords
from postroom.ranges.nodes import NodeStatus, nodes_key
from postroom.ranges.nodes import decode as decode_nodes
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry
from postroom.ranges.replica import Replica
from postroom.ranges.transactions import Committer
from postroom.server.damage import Damage
from postroom.server.describe import describe
from postroom.server.disk_reserve import DiskReserve
from postroom.server.membership import MembershipService
from postroom.server.peer_clocks import PeerClocks
from postroom.server.replay import bring_up_to_date
from postroom.server.resting import Rest
from postroom.server.services import Services
from postroom.server.store import FORMAT_VERSION, StoreRecord, open_store, stopped_by
from postroom.server.tasks import Pending, Signal, Tasks

T = TypeVar("T")

RANGE_ID: Final = 1
UPKEEP_SECONDS: Final = 0.001
"""How long upkeep waits for a client's request to share a write with."""


ROOM_CHECK_SECONDS: Final = 0.05
"""How often the device's free room is looked at: far less than the reserve is written meanwhile."""


HAND_OVER_SECONDS: Final = 2.0
"""How long a node that is to stop waits for a successor."""


CLOCK_CHECK_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set when a node starts.

    Attributes:
        members: of a new group; none if this node is to be added to one.
        sync: whether writes are synced before they count.
        lease_seconds: how long the others wait for a leaseholder that has gone.
        rests_alone: whether a node that is alone writes nothing, its lease included, until there is
            something to write.
    """

    node_id: int = 1
    members: tuple[int, ...] = (1,)
    sync: bool = True
    lease_seconds: float = LEASE_SECONDS
    raft: RaftOptions | None = None
    sync_interval_seconds: float | None = None
    gc_ttl_seconds: float = GC_TTL_SECONDS
    gc_interval_seconds: float = 5.0
    poll_seconds: float = 5.0
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    rests_alone: bool = False


_CEILING_KEY: Final = keys.store_key("clock ceiling")


class _Upkeep(Call):
    """A request of a service, which waits for it as a task does."""

    __slots__ = ("pending",)

    def __init__(self, request: Any) -> None:
        super().__init__(request, urgent=False)
        self.pending = Pending()

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.pending.complete(result, error)


class Node:
    """See the module.

    Attributes:
        failed: why it does nothing any more.
        feed: what those who watch are told from.
        nodes: who is in the cluster, as applied here; ``None``: this store is not part of one.
        on_wake: called when a turn is wanted; with whether it is urgent.
        on_nodes: called when ``nodes`` is another one.
        on_malformed: called with the sender of a frame that was dropped because it is malformed.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        randomness: random.Random,
        transport: Transport,
        options: NodeOptions,
    ) -> None:
        self.engine = engine
        self._storage = engine if isinstance(engine, Storage) else None
        self.options = options
        self.failed: Error | None = None
        self.on_wake: Callable[[bool], None] = lambda _: None
        self.monotonic = clock.monotonic
        self.lease_seconds = options.lease_seconds
        self.store = open_store(engine, randomness, options.node_id)
        ceiling = int.from_bytes(engine.get(_CEILING_KEY) or b"", "big")
        self.clock = HybridLogicalClock(clock.wall_milliseconds, ceiling, self._store_ceiling)
        self.tasks = Tasks(clock.monotonic, lambda: self.wake(urgent=False))
        self.consensus = Consensus(
            engine, transport, node_id=options.node_id, monotonic=clock.monotonic,
            random=randomness, options=options.raft,
            wall_milliseconds=clock.wall_milliseconds, on_peer_clock=self._on_peer_clock,
            on_malformed=self._on_malformed,
        )  # fmt: skip
        self._chance = randomness.random
        self._one_write_at_a_time = threading.Lock()
        self._unsynced_since: float | None = None
        self._storing_ceiling: int | None = None
        self._failing: Error | None = None
        self._disk_reserve = DiskReserve(options.disk_reserve_bytes)
        self._look_for_room_at = clock.monotonic()
        self._handing_over: Pending | None = None
        self._hand_over_time_out = Pending()
        self._wall_milliseconds = clock.wall_milliseconds
        self._peer_clocks = PeerClocks()
        self._look_at_clocks_at = 0.0
        self.on_nodes: Callable[[], None] = lambda: None
        self.on_malformed: Callable[[NodeId], None] = lambda _: None
        self.nodes = decode_nodes(engine.get(nodes_key(RANGE_ID)))
        self.damage = Damage(engine)
        self._nodes_changed = Signal(self.tasks)
        self.replica = self._create_replica()
        if self._storage is not None:
            bring_up_to_date(self._storage, self.consensus)

    # --- putting together

    def _create_replica(self) -> Replica:
        registry, locks, protections = Registry(), LockTable(), Protections()
        # What a range reads is all in the state.
        stored = self.engine if self._storage is None else self._storage.state
        replica = Replica(RANGE_ID, self.options.node_id, stored, self.clock, registry, self)
        evaluators.register(registry)
        reads = Reads(locks, protections, replica.holders)
        reads.register(registry)
        Committer(registry, self.clock.reading).register(registry)
        NodeRecords(RANGE_ID).register(registry)
        registry.observers[nodes_key(RANGE_ID)] = self._observe_nodes
        self.feed = feed = ChangeFeed(
            lambda: replica.last_commit, protections,
            lambda: bool(replica.waiting_for.get(TOKEN)), Signal(self.tasks),
        )  # fmt: skip
        feed.register(registry)
        deliveries, executions = Signal(self.tasks), Signal(self.tasks)
        advances = Signal(self.tasks)
        around = Surroundings(
            monotonic=self.monotonic, reading=self.clock.reading, chance=self._chance,
            check_age=reads.check_age, wake_tokens=replica.wake, holders=replica.holders,
            protections=protections, kept=from_seconds(self.options.gc_ttl_seconds),
            signal=advances, forgets_strangers=self.options.rests_alone,
            rouse=lambda: replica.wake_up() if replica.rests else None,
        )  # fmt: skip
        messaging = Messaging(
            RANGE_ID, reads.check_age, replica.wake, replica.holders, deliveries, executions, around
        )
        messaging.register(registry)
        advancer = Advancer(messaging.queues, self.upkeep, advances, self.options.poll_seconds)
        self._rest = Rest(
            lambda: messaging.first_due(self.engine),
            self.clock,
            self.tasks,
            self.options.poll_seconds,
        )
        GarbageLists(RANGE_ID, protections).register(registry)
        replica.group = self.consensus.create(RANGE_ID, self.options.members, replica.state)
        replica.group.on_leadership = self._on_leadership
        if self.damage.found:
            replica.group.step_aside()
        self.services = self._create_services(replica, deliveries, executions, advancer)
        return replica

    def _create_services(
        self, replica: Replica, deliveries: Signal, executions: Signal, advancer: Advancer
    ) -> Services:
        options, now = self.options, self.clock.now

        def last_commit() -> int:
            return replica.last_commit

        moving = (now, last_commit, options.poll_seconds)
        collector = Collector(
            self.upkeep, self.tasks.sleep, now, last_commit,
            options.gc_ttl_seconds, options.gc_interval_seconds,
        )  # fmt: skip
        begin = {
            "dispatcher": dispatcher(self.upkeep, deliveries, *moving).run,
            "executor": executor(self.upkeep, executions, *moving).run,
            "queues": advancer.run,
            "collector": collector.run,
            "feed": lambda: self.feed.forget_when_idle(self.tasks.sleep),
            "membership": MembershipService(self, replica.group, self._nodes_changed).run,
        }
        return Services(self.tasks, begin)

    # --- what drivers call

    def start(self) -> None:
        """The first turns: a group of one elects itself, takes the lease, and its services begin.

        Raises:
            Unavailable: a write failed. The node is closed again.
            StoreCorrupted: what it must know cannot be read. Likewise.
        """
        try:
            error = self.write(self.consensus.stage())
            self.finish(error)
            self.turn()
        except StoreCorrupted:
            self.close()
            raise
        if self.failed is not None:
            self.close()
            raise self.failed

    def submit(self, call: Call) -> None:
        """Take a request; ``call.complete`` is called once, perhaps before this returns."""
        self.replica.submit(call)

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; false if it is too late for that."""
        return self.replica.cancel(call)

    def upkeep(self, request: Any) -> Pending:
        """A request of a service: evaluated with the next turn, which is not hurried for it."""
        call = _Upkeep(request)
        self.replica.submit(call)
        return call.pending

    def wake(self, *, urgent: bool) -> None:
        """A turn is wanted: now, or within ``UPKEEP_SECONDS``."""
        self.on_wake(urgent)

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """``act`` is called in a turn, after a time."""
        pending = Pending()
        pending.callback = act
        self.tasks.at(seconds, pending)
        self.on_wake(False)

    def sizes(self) -> dict[str, int]:
        """How much is kept in memory for clients, and how many timers there are, by name."""
        return {**self.replica.sizes(), "timers": self.tasks.timers}

    # --- what a cluster needs

    @property
    def node_id(self) -> int:
        """Which node this is."""
        return self.options.node_id

    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""
        return self.replica.group.leader

    def describe(self) -> NodeStatus:
        """What this node can say of itself without asking anybody."""
        return describe(self)

    async def change_members(self, change: Change) -> Outcome:
        """Have the range's group change by one member; answers how that ended."""
        ended = Pending()
        self.replica.group.change_members(change, ended.complete)
        self.wake(urgent=True)
        outcome: Outcome = await ended
        return outcome

    def hand_over(self, to: NodeId | None = None) -> Pending:
        """Give lease and lead away, if they are here; completed when that is done, or hopeless.

        Args:
            to: who is to have the lead; ``None``: whoever has come farthest.
        """
        if self._handing_over is None or self._handing_over.done:
            self._handing_over = Pending()
            self.tasks.cancel_timer(self._hand_over_time_out)
            self._hand_over_time_out = Pending()
            self._hand_over_time_out.callback = self._give_up_handing_over
            self.tasks.at(HAND_OVER_SECONDS, self._hand_over_time_out)
            self.replica.hand_over(lambda: self._transfer(to))
        return self._handing_over

    def _give_up_handing_over(self) -> None:
        """Nobody has taken over in time: go on, or let the others elect somebody."""
        if self._handing_over is None or self._handing_over.done:
            return
        self._handing_over.complete(None)
        if self.damage.found and len(self.replica.group.members) > 1:
            self.replica.group.step_down()
        else:
            self.replica.resume()

    def on_damage(self, error: BlockDamaged) -> bool:
        """Some of the data cannot be read; whether another node is to serve instead."""
        if len(self.replica.group.members) < 2:
            return False
        try:
            with self._one_write_at_a_time:
                is_new = self.damage.note(error)
        except EngineFailed as failure:
            self._failing = stopped_by(failure)
            self.wake(urgent=False)
            return True
        if is_new:
            self.replica.group.step_aside()
            self.hand_over()
        return True

    def clock_offset_seconds(self) -> float:
        """How far this node's wall clock is ahead of those of most others."""
        return self._peer_clocks.offset_seconds(self.monotonic())

    def _on_peer_clock(self, peer: NodeId, wall_milliseconds: int) -> None:
        now = self.monotonic()
        ahead = (wall_milliseconds - self._wall_milliseconds()) / 1000
        self._peer_clocks.heard(peer, ahead, now)
        if now >= self._look_at_clocks_at:
            self._look_at_clocks_at = now + CLOCK_CHECK_SECONDS
            if self.replica.group.is_leader and self._peer_clocks.is_alone(now):
                _log.error(
                    "this clock is %+.1f s away from those of all other nodes: it hands over",
                    self.clock_offset_seconds(),
                )
                self.hand_over()

    def _on_malformed(self, peer: NodeId) -> None:
        self.on_malformed(peer)

    def _transfer(self, to: NodeId | None) -> None:
        """The lease is given back, or was not here; now the lead."""
        group = self.replica.group
        if group.is_leader and len(group.members) > 1:
            group.transfer_leadership(to)
        else:
            self._give_up_handing_over()

    def _on_leadership(self, leads: bool, term: int) -> None:
        _log.info("node %d %s in term %d", self.node_id, "leads" if leads else "follows", term)
        self.replica.on_leadership(leads, term)
        if not leads and self._handing_over is not None:
            self._handing_over.complete(None)

    def on_serving(self, serves: bool) -> None:
        """The lease has come here, or is not used any more."""
        _log.info("node %d %s", self.node_id, "serves" if serves else "serves no longer")
        if not serves:
            self.services.stop()
        elif self.replica.rests:
            self._rest.watch_over(self.replica)
        else:
            self.services.start()

    def may_rest(self) -> bool:
        """Whether a replica that is alone may only read, and write nothing before it must."""
        return self.options.rests_alone and self._rest.is_possible()

    def _observe_nodes(self, stored: bytes | None) -> None:
        self.nodes = decode_nodes(stored)
        self._nodes_changed.set()
        self.on_nodes()

    # --- turns

    def hurries(self) -> bool:
        """Whether somebody waits for what upkeep will bring: it must not wait for company then."""
        return bool(self.replica.waiting_for)

    def wants_turn(self) -> bool:
        """Whether requests wait to be evaluated."""
        return self.failed is None and self.replica.wants_turn()

    def prepare(self) -> WriteSet:
        """The first part of a turn: everything up to what must be written."""
        if self.failed is not None or self._failing is not None:
            return {}
        self.tasks.run()
        self.replica.release_expired()
        self._mind_the_room()
        self.replica.evaluate()
        staged = self.consensus.stage()
        if staged:
            self._stage_ceiling(staged)
            self.consensus.send_early()
        return staged

    def write(self, staged: WriteSet) -> Error | None:
        """The second part: makes it durable. May run without the lock; returns what went wrong."""
        if self._failing is not None:
            return self._failing
        # A ceiling counts only once it is durable: it takes a sync along, whatever the durability.
        ceiling = self._storing_ceiling is not None
        sync = self.options.sync and self.consensus.needs_sync
        sync = sync or ceiling or self._sync_is_due()
        if not staged and not sync:
            return None
        if not staged and self._unsynced_since is None:
            return None
        try:
            self._write_turn(staged, sync=sync)
        except EngineFailed as failure:
            return stopped_by(failure)
        if sync:
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = self.monotonic()
        return None

    def _write_turn(self, writes: WriteSet, *, sync: bool) -> None:
        """A new ceiling may be written by another thread: after this."""
        with self._one_write_at_a_time:
            if self._storage is not None:
                self._storage.write_turn(writes, sync=sync)
            else:
                self.engine.write(writes, sync=sync)

    def finish(self, error: Error | None) -> None:
        """The last part: what was prepared is durable, or the node has failed."""
        if self.failed is not None:
            return
        if error is not None:
            self._fail(error)
            return
        if self._storing_ceiling is not None:
            self.clock.ceiling_stored(self._storing_ceiling)
            self._storing_ceiling = None
        self.consensus.release()
        self.tasks.run()

    def turn(self) -> None:
        """All of it, for drivers without threads."""
        self.finish(self.write(self.prepare()))

    def next_deadline(self) -> float | None:
        """When a turn is due at the latest, on the monotonic clock; ``None``: when woken."""
        deadlines = [
            self.tasks.next_deadline(), self.consensus.next_deadline(), self._sync_due(),
            self.replica.next_deadline(),
        ]  # fmt: skip
        return min((each for each in deadlines if each is not None), default=None)

    def close(self) -> None:
        """Let go of everything. What has not been answered by now gets an error."""
        self.services.stop()
        self.tasks.stop()
        error = self.failed
        if error is None and not (self.clock.rests and self._unsynced_since is None):
            error = self._write_ceiling(self.clock.last())
        self.replica.fail_all(Unavailable("the store was closed; nothing was changed"))
        try:
            self.engine.close()
        except EngineFailed as failure:
            _log.warning("the store could not be closed in good order: %s", failure)
            error = error or stopped_by(failure)
        if error is not None and self.failed is None and not self.options.sync:
            raise error  # what was not synced yet may be lost

    # --- failing, filling up

    def _fail(self, error: Error) -> None:
        self.failed = error
        self.services.stop()
        self.consensus.fail(error)
        self.replica.fail_all(error)
        self.tasks.stop()

    def _mind_the_room(self) -> None:
        """Refuse writes in time: a device that fills up in the middle of one stops the store."""
        now = self.monotonic()
        if now < self._look_for_room_at:
            return
        self._look_for_room_at = now + ROOM_CHECK_SECONDS
        free = self.engine.free_bytes()
        refusal = self._disk_reserve.refusal(free)
        self.replica.refuse(refusal)
        if self.nodes is not None:  # of an embedded store, the callers are told
            self._disk_reserve.tell(free, now)
        if refusal is not None and len(self.replica.group.members) > 1:
            self.hand_over()

    # --- the clock's ceiling, and syncing at intervals

    def _store_ceiling(self, ceiling: int) -> bool:
        """Called by the clock, wherever somebody reads it: if it fails, the next turn tells."""
        error = self.failed or self._write_ceiling(ceiling)
        if error is not None and self.failed is None and self._failing is None:
            self._failing = error
            self.wake(urgent=False)
        return error is None

    def _write_ceiling(self, ceiling: int) -> Error | None:
        try:
            with self._one_write_at_a_time:
                self.engine.write({_CEILING_KEY: keys.u64(ceiling)}, sync=True)
        except EngineFailed as failure:
            return stopped_by(failure)
        return None

    def _stage_ceiling(self, staged: WriteSet) -> None:
        ceiling = self.clock.wanted_ceiling()
        if ceiling is not None:
            staged[_CEILING_KEY] = keys.u64(ceiling)
            self._storing_ceiling = ceiling

    def _sync_due(self) -> float | None:
        interval = self.options.sync_interval_seconds
        if interval is None or self._unsynced_since is None:
            return None
        return self._unsynced_since + interval

    def _sync_is_due(self) -> bool:
        due = self._sync_due()
        return due is not None and self.monotonic() >= due


__all__ = ["FORMAT_VERSION", "Node", "NodeOptions", "StoreRecord"]
