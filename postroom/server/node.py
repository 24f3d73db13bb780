"""A node: one engine, one clock, its replicas, and the turn that drives them all.

::

    prepare   services go on · requests are evaluated · proposals are staged        one at a time
              · what may leave early leaves (entries that a leader replicates)
    write     everything staged: the log, with one sync if needed, and the state    no lock needed
    finish    messages leave · callers get their answers · services go on           one at a time

A node is plain synchronous code without threads, tasks or sleeps of its own. A *driver*
(:mod:`.asyncio_driver`, :mod:`.thread_driver`) calls it: on an event loop, from many threads, or in
a simulation. It says through ``on_wake`` when it wants a turn, and through ``next_deadline`` by
when at the latest.

:mod:`.assembly` puts its parts together, :mod:`.turn_writer` makes a turn durable,
:mod:`.disk_guard` guards its disk, :mod:`.handing_over` has another node serve in its place.

In a cluster the services run where the lease is (:mod:`.services`). An entry counts once a majority
has it in a synced log; what it does to the state needs no sync of its own, as it can be applied
again.
"""

from __future__ import annotations

import logging
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from postroom.errors import Error, StoreCorrupted, Unavailable
from postroom.kv.clock import Clock, HybridLogicalClock
from postroom.kv.engine import BlockDamaged, Engine, EngineFailed, WriteSet
from postroom.limits import DISK_RESERVE_BYTES, GC_TTL_SECONDS
from postroom.raft.consensus import Consensus
from postroom.raft.group import Group
from postroom.raft.membership import Change
from postroom.raft.options import RaftOptions
from postroom.raft.outcome import Outcome
from postroom.raft.state_machine import NodeId
from postroom.raft.transport import Transport
from postroom.ranges.calls import Call
from postroom.ranges.lease import LEASE_SECONDS
from postroom.ranges.nodes import NodeStatus, nodes_key
from postroom.ranges.nodes import decode as decode_nodes
from postroom.ranges.replica import Replica
from postroom.server.assembly import RANGE_ID, assemble
from postroom.server.damage import Damage
from postroom.server.describe import describe
from postroom.server.disk_guard import DiskGuard
from postroom.server.handing_over import HandingOver
from postroom.server.peer_clocks import PeerClocks
from postroom.server.replay import bring_up_to_date
from postroom.server.replicas import Replicas
from postroom.server.store import FORMAT_VERSION, StoreRecord, interrupted, open_store, stopped_by
from postroom.server.tasks import Pending, Tasks
from postroom.server.turn_writer import TurnWriter

T = TypeVar("T")

UPKEEP_SECONDS: Final = 0.001
"""How long upkeep waits for a client's request to share a write with."""


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
        self.options = options
        self.failed: Error | None = None
        self.on_wake: Callable[[bool], None] = lambda _: None
        self.on_nodes: Callable[[], None] = lambda: None
        self.on_malformed: Callable[[NodeId], None] = lambda _: None
        self.monotonic = clock.monotonic
        self.lease_seconds = options.lease_seconds
        self.chance = randomness.random
        self.store = open_store(engine, randomness, options.node_id)
        self._writer = TurnWriter(
            engine, sync=options.sync, sync_interval_seconds=options.sync_interval_seconds,
            monotonic=clock.monotonic, on_failing=lambda: self.wake(urgent=False),
        )  # fmt: skip
        self.clock = HybridLogicalClock(
            clock.wall_milliseconds, self._writer.stored_ceiling(), self._store_ceiling
        )
        self.tasks = Tasks(clock.monotonic, lambda: self.wake(urgent=False))
        self.consensus = Consensus(
            engine, transport, node_id=options.node_id, monotonic=clock.monotonic,
            random=randomness, options=options.raft,
            wall_milliseconds=clock.wall_milliseconds, on_peer_clock=self._on_peer_clock,
            on_malformed=self._on_malformed,
        )  # fmt: skip
        self._wall_milliseconds = clock.wall_milliseconds
        self._peer_clocks = PeerClocks()
        self._look_at_clocks_at = 0.0
        self.nodes = decode_nodes(engine.get(nodes_key(RANGE_ID)))
        self.damage = Damage(engine)
        storage = self._writer.storage
        parts = assemble(self, engine if storage is None else storage.applied)
        self.feed, self.services, self._rest = parts.feed, parts.services, parts.rest
        self._nodes_changed = parts.nodes_changed
        self.replicas = Replicas()
        self.replicas.add(parts.replica)
        self._guard = DiskGuard(self, self.damage, self._writer, options.disk_reserve_bytes)
        self._handing_over = HandingOver(parts.replica, self.tasks, self.damage)
        if storage is not None:
            bring_up_to_date(storage, self.consensus)

    @property
    def replica(self) -> Replica:
        """The range's, for who looks into a node: tests, and the rules of simulations."""
        return self.replicas.by_id(RANGE_ID)

    @property
    def group(self) -> Group:
        """The consensus group that this node is, or is to be, a member of."""
        return self.replicas.by_id(RANGE_ID).group

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
        self.replicas.submit(call)

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; false if it is too late for that."""
        return self.replicas.cancel(call)

    def upkeep(self, request: Any) -> Pending:
        """A request of a service: evaluated with the next turn, which is not hurried for it."""
        call = _Upkeep(request)
        self.replicas.submit(call)
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
        return {**self.replicas.sizes(), "timers": self.tasks.timers}

    # --- what a cluster needs

    @property
    def node_id(self) -> int:
        """Which node this is."""
        return self.options.node_id

    def leader(self) -> NodeId | None:
        """Who leads, as far as this node knows."""
        return self.group.leader

    @property
    def serves(self) -> bool:
        """Whether it holds the lease, and answers clients."""
        return self.replica.serves

    def applied_index(self) -> int:
        """How many entries of the log are in its data."""
        return self.replica.state.applied_index()

    def describe(self) -> NodeStatus:
        """What this node can say of itself without asking anybody."""
        return describe(self)

    async def change_members(self, change: Change) -> Outcome:
        """Have the range's group change by one member; answers how that ended."""
        ended = Pending()
        self.group.change_members(change, ended.complete)
        self.wake(urgent=True)
        outcome: Outcome = await ended
        return outcome

    def hand_over(self, to: NodeId | None = None) -> Pending:
        """Give lease and lead away, if they are here; completed when that is done, or hopeless.

        Args:
            to: who is to have the lead; ``None``: whoever has come farthest.
        """
        return self._handing_over.begin(to)

    def on_damage(self, error: BlockDamaged) -> bool:
        """Some of the data cannot be read; whether another node is to serve instead."""
        return self._guard.on_damage(error)

    def clock_offset_seconds(self) -> float:
        """How far this node's wall clock is ahead of those of most others."""
        return self._peer_clocks.offset_seconds(self.monotonic())

    def _on_peer_clock(self, peer: NodeId, wall_milliseconds: int) -> None:
        now = self.monotonic()
        ahead = (wall_milliseconds - self._wall_milliseconds()) / 1000
        self._peer_clocks.heard(peer, ahead, now)
        if now >= self._look_at_clocks_at:
            self._look_at_clocks_at = now + CLOCK_CHECK_SECONDS
            if self.group.is_leader and self._peer_clocks.is_alone(now):
                _log.error(
                    "this clock is %+.1f s away from those of all other nodes: it hands over",
                    self.clock_offset_seconds(),
                )
                self.hand_over()

    def _on_malformed(self, peer: NodeId) -> None:
        self.on_malformed(peer)

    def on_leadership(self, leads: bool, term: int) -> None:
        """This node has begun or ceased to lead."""
        _log.info("node %d %s in term %d", self.node_id, "leads" if leads else "follows", term)
        self.replica.on_leadership(leads, term)
        if not leads:
            self._handing_over.lost_lead()

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

    def observe_nodes(self, stored: bytes | None) -> None:
        """The record of the nodes is another one."""
        self.nodes = decode_nodes(stored)
        self._nodes_changed.set()
        self.on_nodes()

    # --- turns

    def hurries(self) -> bool:
        """Whether somebody waits for what upkeep will bring: it must not wait for company then."""
        return self.replicas.hurries()

    def wants_turn(self) -> bool:
        """Whether requests wait to be evaluated."""
        return self.failed is None and self.replicas.wants_turn()

    def prepare(self) -> WriteSet:
        """The first part of a turn: everything up to what must be written."""
        if self.failed is not None or self._writer.failing is not None:
            return {}
        self.tasks.run()
        self.replicas.release_expired()
        self._guard.look()
        self.replicas.evaluate()
        staged = self.consensus.stage()
        if staged:
            self._writer.stage_ceiling(self.clock, staged)
            self.consensus.send_early()
        return staged

    def write(self, staged: WriteSet) -> Error | None:
        """The second part: makes it durable. May run without the lock; returns what went wrong."""
        return self._writer.write(staged, needs_sync=self.consensus.needs_sync)

    def finish(self, error: Error | None) -> None:
        """The last part: what was prepared is durable, or the node has failed."""
        if self.failed is not None:
            return
        if error is not None:
            self._fail(error)
            return
        self._writer.turn_is_durable(self.clock)
        self.consensus.release()
        self.tasks.run()

    def turn(self) -> None:
        """All of it, for drivers without threads."""
        self.finish(self.write(self.prepare()))

    def next_deadline(self) -> float | None:
        """When a turn is due at the latest, on the monotonic clock; ``None``: when woken."""
        first = self.tasks.next_deadline()
        for deadline in (
            self.consensus.next_deadline(), self._writer.sync_due(), self.replicas.next_deadline()
        ):  # fmt: skip
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first

    def close(self) -> None:
        """Let go of everything. What has not been answered by now gets an error."""
        self.services.stop()
        self.tasks.stop()
        error = self.failed
        if error is None and not (self.clock.rests and self._writer.is_synced):
            error = self._writer.write_ceiling(self.clock.last())
        self.replicas.fail_all(Unavailable("the store was closed; nothing was changed"))
        try:
            self.engine.close()
        except EngineFailed as failure:
            _log.warning("the store could not be closed in good order: %s", failure)
            error = error or stopped_by(failure)
        if error is not None and self.failed is None and not self.options.sync:
            raise error  # what was not synced yet may be lost

    # --- failing

    @property
    def is_half_way(self) -> bool:
        """Whether a turn has been staged and not finished: no other one can be begun."""
        return self.consensus.is_half_way

    def break_off(self) -> Error:
        """A turn was left half-way, by an exception that belongs to its caller (an interrupt), or
        that must not happen. What it has done is unknown, so this node stops, and writes nothing
        more; answers what to tell.
        """
        error = interrupted()
        if self._writer.storage is not None:
            self._writer.storage.give_up(str(error))
        if self.failed is None:
            self._fail(error)
        return self.failed or error

    def _fail(self, error: Error) -> None:
        self.failed = error
        self.services.stop()
        self.consensus.fail(error)
        self.replicas.fail_all(error)
        self.tasks.stop()

    def _store_ceiling(self, ceiling: int) -> bool:
        """Called by the clock, wherever somebody reads it."""
        return self.failed is None and self._writer.store_ceiling(ceiling)


__all__ = ["FORMAT_VERSION", "RANGE_ID", "Node", "NodeOptions", "StoreRecord"]
