"""A node: one engine, one clock, its ranges, and the turn that drives them all.

::

    prepare   services go on · requests are evaluated · proposals are staged        one at a time
              · what may leave early leaves (entries that a leader replicates)
    write     everything staged: the log, with one sync if needed, and the state    no lock needed
    finish    messages leave · callers get their answers · services go on           one at a time

A node is plain synchronous code without threads, tasks or sleeps of its own. A *driver*
(:mod:`.asyncio_driver`, :mod:`.thread_driver`) calls it: on an event loop, from many threads, or in
a simulation. Through ``on_wake`` the node says that it wants a turn, and through ``next_deadline``
when it needs one at the latest.

:mod:`.assembly` makes its ranges (:mod:`.hosted_range`), :mod:`.replicas` sends requests to them,
:mod:`.turn_writer` makes a turn durable, :mod:`.disk_guard` guards its disk. The first range is the
*root*: it contains the records of which the store has one each, such as that of the nodes.

In a cluster the services of a range run where its lease is (:mod:`.services`). An entry counts once
a majority has it in a synced log. Its effects on the state need no sync of their own, because it
can be applied again.
"""

from __future__ import annotations

import logging
import math
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from postroom.collector import without_collections
from postroom.errors import Error, Invalid, StoreCorrupted, Unavailable
from postroom.histogram import Histogram
from postroom.kv import keys
from postroom.kv.background import Compaction
from postroom.kv.clock import HybridLogicalClock, TimeSource
from postroom.kv.engine import BlockDamaged, Budget, Engine, EngineFailed, WriteSet
from postroom.messaging.queues.news import DefinitionNews
from postroom.raft.consensus import Consensus
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NodeId, Transport
from postroom.raft.messages import Clocks, Message
from postroom.ranges.access import ACCESS_KEY, Grants
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.nodes import NodeStatus, nodes_key
from postroom.ranges.nodes import decode as decode_nodes
from postroom.ranges.ports import Onlooker
from postroom.ranges.settings import (
    DISK_RESERVE,
    POLL,
    SETTINGS_KEY,
    SLOW,
    SPLIT_LOAD,
    SettingsInForce,
)
from postroom.ranges.slow_log import SlowLog
from postroom.ranges.split.records import last_range_id
from postroom.ranges.waiting import earlier
from postroom.server.assembly import NodeOptions, Observer, held_ranges, host_range
from postroom.server.departing_ranges import DepartingRanges
from postroom.server.describe import describe
from postroom.server.disk_guard import Damage, DiskGuard
from postroom.server.hosted_range import HostedRange
from postroom.server.incoming_ranges import NONE_SHORTER, IncomingRanges
from postroom.server.lease_spreading import LeaseSpreading
from postroom.server.load_splitting import LoadSplitting
from postroom.server.opening import (
    bring_up_to_date,
    interrupted,
    open_store,
    stopped_by,
)
from postroom.server.peer_clocks import PeerClocks
from postroom.server.range_calls import RangeCalls
from postroom.server.replicas import Replicas
from postroom.server.service_rounds import ServiceRounds
from postroom.server.services import NodeTasks, Pending, Services, all_of
from postroom.server.turn_writer import TurnWriter

UPKEEP_SECONDS: Final = 0.001
"""The time for which upkeep waits for a client's request to share a write with."""


CLOCK_CHECK_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Node:
    """A node; see the module.

    Attributes:
        failed: why it does nothing any more.
        replicas: its ranges, and the door for requests to them.
        calls: the calls from its ranges to others, and from others to them.
        departing: the ranges that leave this node.
        nodes: the nodes of the cluster, as applied here; ``None``: this store is not part of one.
        on_wake: called when a turn is wanted; with whether it is urgent.
        on_nodes: called when ``nodes`` has changed.
        grants: the rights that are granted to clients, as applied here.
        on_grants: called when ``grants`` has changed.
        on_lead_lost: called when the node leads a range no more.
        settings: the settings that are in force.
        onlookers: the functions that see the requests to its ranges first.
        slow_log: the log of slow calls in its ranges.
        load_splitting: the service that measures the loads of its ranges.
        certificate: the fault of its certificates; empty: none.
        link_error: returns why there is no connection to a node, for people; empty: there is one.
        on_malformed: called with the sender of a frame that was dropped because it is malformed.
        turns: the number of turns that were taken.
        turn_seconds: the time from their beginnings to their ends.
        evaluation_seconds: the part of it until all that waited was evaluated.
    """

    turns = 0
    turn_seconds = evaluation_seconds = _turn_began = 0.0

    def __init__(
        self,
        engine: Engine,
        clock: TimeSource,
        randomness: random.Random,
        transport: Transport,
        options: NodeOptions,
    ) -> None:
        self.engine = engine
        self.options = options
        self.failed: Error | None = None
        self.on_wake: Callable[[bool], None] = lambda _: None
        self.on_nodes: Callable[[], None] = lambda: None
        self.on_grants: Callable[[], None] = lambda: None
        self.on_lead_lost: Callable[[], None] = lambda: None
        self.certificate = ""
        self.link_error: Callable[[NodeId], str] = lambda _: ""
        self.on_malformed: Callable[[NodeId], None] = lambda _: None
        self.monotonic = clock.monotonic
        self.lease_seconds = options.lease_seconds
        self.values_bytes = Budget(options.memory_bytes).values_bytes
        self.chance = randomness.random
        self.store = open_store(engine, randomness, options.node_id)
        self._writer = TurnWriter(
            engine, sync=options.sync, sync_interval_seconds=options.sync_interval_seconds,
            monotonic=clock.monotonic, on_failing=lambda: self.wake(urgent=False),
        )  # fmt: skip
        self.clock = HybridLogicalClock(
            clock.wall_milliseconds, clock.monotonic, self._writer.stored_ceiling(),
            self._store_ceiling, clock.since_millisecond,
        )  # fmt: skip
        self._peer_clocks = PeerClocks(clock)
        self._prepares = self._is_woken = False
        self.tasks = NodeTasks(clock.monotonic, lambda urgent: self.wake(urgent=urgent))
        self.calls = RangeCalls(self, transport)
        self.consensus = Consensus(
            engine, self.calls.transport, node_id=options.node_id, monotonic=clock.monotonic,
            random=randomness, options=options.raft,
            clocks_for=self._peer_clocks.clocks_for, on_peer_clocks=self._on_peer_clocks,
            on_malformed=self._on_malformed, on_unknown=self._on_unknown,
        )  # fmt: skip
        self.clock.judge = self._peer_clocks.judge
        self._look_at_clocks_at = 0.0
        self._read_records()
        self.damage = Damage(engine)
        storage = self._writer.storage
        self._compaction = None if storage is None else storage.applied.compaction(clock.monotonic)
        self._stored = engine if storage is None else storage.applied
        self.definitions, self.handed_leases, self.seen_clients = (
            DefinitionNews(self._stored, self._has_whole_root),
            dict[int, dict[bytes, float]](),
            dict[bytes, None](),
        )
        self.replicas = Replicas(clock.monotonic)
        self._make_services()
        self.departing = DepartingRanges(self, engine, self._stored)
        self._incoming = IncomingRanges(self)
        self._host_held_ranges()
        self._guard = DiskGuard(self, self.damage, self._writer, int(self.settings[DISK_RESERVE]))
        if storage is not None:
            self._incoming.is_applying = True
            bring_up_to_date(storage, self.consensus, self._incoming.written)
            self._incoming.is_applying = False

    def _make_services(self) -> None:
        """Make the services of the node itself."""
        spreading = LeaseSpreading(self, self.options.spread_seconds)
        self.rounds = ServiceRounds(self, self.settings.reader(POLL))
        self._spreading = Services(self.tasks, {"lease spreading": spreading.run})
        self.load_splitting = LoadSplitting(self)
        self._load_splitting = Services(self.tasks, {"split by load": self.load_splitting.run})
        self._split_by_load()

    def _split_by_load(self) -> None:
        """Have ranges split by their loads if the setting says so; an embedded store has none."""
        if self._load_splitting.running:
            self.load_splitting.wake_up.set()
        elif self.settings[SPLIT_LOAD] and not self.options.rests_alone:
            self._load_splitting.start()

    def _has_whole_root(self) -> bool:
        """Return whether no snapshot of the root is being put in place."""
        return not self.root.group.is_installing

    def _read_records(self) -> None:
        """Read the records of the root that the node keeps in memory."""
        get = self.engine.get
        self.nodes = decode_nodes(get(nodes_key(ROOT_ID)))
        self.grants = Grants(get(ACCESS_KEY))
        self.settings = SettingsInForce(
            self.options.live_settings(), get(SETTINGS_KEY), self.options.founding
        )
        self.onlookers: list[Onlooker] = []
        self.slow_log = SlowLog(self.monotonic, self.onlookers)
        self.slow_log.change(self.settings[SLOW])

    @without_collections()
    def _host_held_ranges(self) -> None:
        for range_id in held_ranges(self.engine, self._stored):
            hosted = self.host_range(range_id, self.options.members if range_id == ROOT_ID else ())
            if hosted.group.holds_nothing and not hosted.is_root:
                self._incoming.expect(range_id)

    def host_range(
        self,
        range_id: int,
        members: Sequence[NodeId],
        shorter: Mapping[int, RangeDescriptor] = NONE_SHORTER,
    ) -> HostedRange:
        """Begin to have a range, between two turns; its group goes on with the next one.

        Args:
            range_id: the id of the range.
            members: the first voters, if the group is new; none if this node is to be added to it.
            shorter: the descriptors of ranges that have given up the keys of this one.
        """
        hosted = host_range(range_id, self, self._stored, members)
        self.replicas.add(hosted, shorter)
        self._spread_leases()
        self.wake(urgent=False)
        return hosted

    # --- ranges that come and go

    def has_range(self, range_id: int) -> bool:
        """Return whether this node has anything of a range."""
        prefixes = keys.range_prefix(range_id), keys.raft_log_prefix(range_id)
        spans = [(prefix, keys.after_prefix(prefix)) for prefix in prefixes]
        return any(next(self.engine.iterate(*span), None) is not None for span in spans)

    def check_new_range(self, range_id: int) -> None:
        """Check that a range with this id may begin.

        Raises:
            Invalid: there is such a range.
            Unavailable: this node does not know yet that the id was given out.
        """
        if self.has_range(range_id):
            raise Invalid(f"there is a range {range_id}; nothing was changed: ask for a new id")
        if not self.is_given_out(range_id):
            raise Unavailable(
                f"this node does not know yet of the range id {range_id}; nothing was changed: try "
                "again",
                retry_after=0.05,
            )

    def is_given_out(self, range_id: int) -> bool:
        """Return whether this node knows that the id of a range was given out."""
        return range_id <= last_range_id(self.engine, ROOT_ID)

    def begin_range(
        self,
        left_id: int,
        descriptor: RangeDescriptor,
        members: tuple[NodeId, ...],
        staged: WriteSet,
    ) -> None:
        """Have a range, once the write set that joins its first records is written.

        If an earlier replica of it was destroyed here, its state goes in the turns that follow.

        Args:
            left_id: the range that is split.
            descriptor: the right half of the split, whose state is in the write set.
            members: the first voters of its group, equal on all nodes.
            staged: the write set in which it begins.
        """
        if not self._incoming.begin(left_id, descriptor, members, staged):
            self.departing.refuse(descriptor, staged)

    def change_bounds(self, range_id: int, stored: bytes | None, observe: Observer) -> None:
        """Have a range take the bounds of a descriptor, once that is written."""
        self._incoming.change_bounds(range_id, stored, observe)

    def may_take(self, range_id: int, descriptor: RangeDescriptor) -> bool:
        """Return whether a snapshot may come: no key of it is another range's, or is cleared."""
        return self.replicas.may_take(range_id, descriptor) and not self.departing.overlaps(
            descriptor
        )

    def is_in_cluster(self, node_id: NodeId) -> bool:
        """Return whether a node is one of the cluster, as far as this one knows."""
        if self.nodes is None:
            return node_id in self.options.members
        return any(node.node_id == node_id for node in self.nodes.nodes)

    def share_values(self, changed: HostedRange) -> None:
        """Divide the memory for values anew, since a range is served, or is not any more."""
        self.replicas.share_values(self.values_bytes, changed)

    def _spread_leases(self) -> None:
        """Begin to spread the leases of several ranges, unless no other node could have them."""
        has_several = len(self.replicas.hosted) > 1
        if has_several and not (self.options.rests_alone or self._spreading.running):
            self._spreading.start()

    @property
    def root(self) -> HostedRange:
        """Return the range with the records of which the store has one each."""
        return self.replicas.hosted[ROOT_ID]

    def _hosted(self) -> Iterable[HostedRange]:
        return self.replicas.hosted.values()

    def groups(self) -> Iterable[RaftGroup]:
        """Return the consensus groups of its ranges."""
        return [hosted.group for hosted in self._hosted()]

    # --- calls of drivers

    def start(self) -> None:
        """Take the first turns: a group of one elects itself and takes the lease; services start.

        Raises:
            Unavailable: a write failed. The node is closed again.
            StoreCorrupted: a record that it needs cannot be read. The node is closed again.
        """
        self._turn_began = self.monotonic()
        try:
            error = self.write(self._stage())
            self.finish(error)
            self.turn()
        except StoreCorrupted:
            self.close()
            raise
        if self.failed is not None:
            self.close()
            raise self.failed

    def wake(self, *, urgent: bool) -> None:
        """Ask for a turn: now, or within ``UPKEEP_SECONDS``.

        A request that is submitted while a turn is prepared is evaluated in that turn.
        """
        if self._prepares:
            self._is_woken |= urgent
        else:
            self.on_wake(urgent)

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` in a turn, after a time."""
        pending = Pending()
        pending.callback = act
        self.tasks.at(seconds, pending)
        self.on_wake(False)

    def sizes(self) -> dict[str, int]:
        """Return how much is kept in memory for clients, and how many timers there are, by name."""
        return {**self.replicas.sizes(), "timers": self.tasks.timers}

    # --- calls of a cluster

    @property
    def node_id(self) -> int:
        """Return this node's id."""
        return self.options.node_id

    def leader(self) -> NodeId | None:
        """Return the leader of the root, as far as this node knows."""
        return self.root.group.leader

    @property
    def serves(self) -> bool:
        """Return whether it holds the lease of the root, and answers clients."""
        return self.root.replica.serves

    def applied_index(self) -> int:
        """Return the index of the last log entry that is applied to the root."""
        return self.root.replica.state.applied_index()

    def has_member(self, node_id: NodeId) -> bool:
        """Return whether a node is a member of a range's group, as far as this node knows."""
        return any(node_id in (*group.members, *group.learners) for group in self.groups())

    def may_have_member(self, node_id: NodeId, *, besides: int | None = None) -> bool:
        """Return whether a node may be a member of some range's group.

        If this node lacks a range, or one of its groups hears no leader, it cannot tell.

        Args:
            node_id: the node.
            besides: a range that does not count.
        """
        groups = [group for group in self.groups() if group.group_id != besides]
        return not self.replicas.have_every_key or any(
            group.leader is None or node_id in (*group.members, *group.learners) for group in groups
        )

    def may_have_member_behind(self, node_id: NodeId, range_id: int) -> bool:
        """Return whether a node may be a member of the younger range that follows a range.

        Its right half follows a range that was split; later ones lie behind that, or between.
        """
        end = self.replicas.hosted[range_id].replica.bounds.end
        right = None if end is None else self.replicas.by_key(end)
        if right is None:
            return end is not None
        group = right.group
        members = (*group.members, *group.learners)
        return right.range_id > range_id and (group.leader is None or node_id in members)

    def describe(self) -> NodeStatus:
        """Return the node's description of itself, without asking others."""
        return describe(self)

    def hand_over(self, to: NodeId | None = None) -> Pending:
        """Give all leases and leads away that are here; the result completes when that has ended.

        Args:
            to: the node that is to lead; ``None``: of each range the one that has most of the log.
        """
        return all_of([hosted.hand_over(to) for hosted in self._hosted()])

    def on_damage(self, error: BlockDamaged, group: RaftGroup) -> bool:
        """Note that data of a range is unreadable; return whether another node is to serve it."""
        return self._guard.on_damage(error, group)

    @property
    def refused(self) -> str:
        """Return why writes are refused (the device has hardly any room), or an empty text."""
        return self._guard.refused

    def clock_offset_seconds(self) -> float:
        """Return how far this node's wall clock is ahead of those of most others."""
        return self._peer_clocks.offset_seconds()

    def clock_offsets(self) -> dict[NodeId, float]:
        """Return how many seconds this node's clock is ahead of that of each peer heard lately."""
        return self._peer_clocks.offsets_by_peer()

    @property
    def syncs(self) -> Histogram:
        """Return the times that the writing of synced turns took, in microseconds."""
        return self._writer.syncs

    @property
    def compaction(self) -> Compaction | None:
        """Return the compaction of deleted data; ``None``: the store is in memory."""
        return self._compaction

    def _on_peer_clocks(self, peer: NodeId, clocks: Clocks) -> None:
        if self._peer_clocks.heard(peer, clocks):
            self.clock.look_again()
        now = self.monotonic()
        if now >= self._look_at_clocks_at:
            self._look_at_clocks_at = now + CLOCK_CHECK_SECONDS
            if any(group.is_leader for group in self.groups()) and self._peer_clocks.is_alone():
                _log.error(
                    "this clock is %+.1f s away from those of all other nodes: it hands over",
                    self.clock_offset_seconds(),
                )
                self.hand_over()

    def on_frame(self, sender: NodeId, frame: bytes) -> None:
        """Ask for a turn, since a frame has come, unless it may wait for the next one."""
        if not self.consensus.may_wait(sender, frame):
            self.wake(urgent=True)

    def _on_malformed(self, peer: NodeId) -> None:
        self.on_malformed(peer)

    def _on_unknown(self, range_id: int, sender: NodeId, message: Message) -> None:
        self._incoming.hear(range_id, sender, message)

    def observe_nodes(self, stored: bytes | None) -> None:
        """Take the new record of the nodes."""
        self.nodes = decode_nodes(stored)
        for hosted in self._hosted():
            hosted.nodes_changed.set()
        self.on_nodes()

    def observe_grants(self, stored: bytes | None) -> None:
        """Take the new record of the grants."""
        self.grants = Grants(stored)
        self.on_grants()

    def observe_settings(self, stored: bytes | None) -> None:
        """Take the new record of the settings."""
        self.settings.take(stored)
        self.slow_log.change(self.settings[SLOW])
        self._guard.change_reserve(int(self.settings[DISK_RESERVE]))
        self._split_by_load()
        self.rounds.wake_all()

    # --- turns

    def hurries(self) -> bool:
        """Return whether a request waits for the result of upkeep, which must hurry then."""
        return self.replicas.hurries()

    def wants_turn(self) -> bool:
        """Return whether requests wait to be evaluated, or a task for which a client waits."""
        return self.failed is None and (self.tasks.is_urgent or self.replicas.wants_turn())

    def prepare(self) -> WriteSet:
        """Do the first part of a turn, and return the writes that it has staged."""
        if self.failed is not None or self._writer.failing is not None:
            return {}
        self._turn_began = now = self.monotonic()
        has_peers = self.calls.has_peers
        if now >= self._guard.look_at:
            self._look_around()
        if has_peers or now >= self.tasks.next_at:
            self._prepares = True
            try:
                if has_peers:
                    self.calls.begin_turn()
                self.tasks.run()
            finally:
                self._prepares = False
        self.replicas.evaluate()
        self.evaluation_seconds += self.monotonic() - now
        if self._is_woken:
            self._is_woken = False
            if self.wants_turn():
                self.on_wake(True)
        staged = self._stage()
        if staged:
            self._writer.stage_ceiling(self.clock, staged)
            self.consensus.send_early()
        if has_peers:
            self.calls.leave()
        return staged

    def _stage(self) -> WriteSet:
        """Return the writes of all groups; bounds that they change are taken when it is written."""
        self._incoming.is_applying = True
        staged = self.consensus.stage()
        if self.departing.has_work:
            self.departing.stage(staged)
        return staged

    def _look_around(self) -> None:
        """Check clock, disk, compaction, ranges: each turn near the reserve, else each 50 ms."""
        self._incoming.look()
        self.clock.look_now_and_then()
        self._guard.look()
        if self._compaction is not None:
            self._compaction.look()

    def write(self, staged: WriteSet) -> Error | None:
        """Make the turn durable, its second part, and return the error if that failed.

        This may run without the lock.
        """
        return self._writer.write(staged, needs_sync=self.consensus.needs_sync)

    def finish(self, error: Error | None) -> None:
        """Do the last part of a turn: release it if it is durable, or fail with ``error``."""
        if self.failed is not None:
            return
        if error is not None:
            self._fail(error)
            return
        self._writer.turn_is_durable(self.clock)
        if self.slow_log.proposed:
            self.slow_log.is_durable()
        if self._incoming.has_news:
            self._incoming.written()
        if self.definitions.has_news:
            self.definitions.written()
        self._incoming.is_applying = False
        self.consensus.release()
        now = self.monotonic()
        self.turns += 1
        self.turn_seconds += now - self._turn_began
        if now >= self.tasks.next_at:
            self.tasks.run()
        if self.calls.has_peers:
            self.calls.end_turn()

    def turn(self) -> None:
        """Take a whole turn, for drivers without threads."""
        self.finish(self.write(self.prepare()))

    def next_deadline(self, before: float = math.inf) -> float | None:
        """Return when a turn is due at the latest, on the monotonic clock; ``None``: when woken.

        Args:
            before: a time at which a turn comes anyway: later deadlines need not be told.
        """
        first = self.replicas.next_deadline()
        if self.tasks.next_at < before:
            first = earlier(first, self.tasks.next_deadline())
        deadline = self.consensus.next_deadline()
        if deadline is not None:
            first = earlier(first, deadline)
        return first if self._writer.is_synced else earlier(first, self._writer.sync_due())

    def close(self, why: Error | None = None) -> None:
        """Release everything. Requests without an answer get an error.

        Args:
            why: the error; ``None``: that this node cannot be reached any more.
        """
        self._stop_services()
        self.tasks.stop()
        if self._compaction is not None:
            self._compaction.stop()
        error = self.failed
        if error is None and not (self.clock.rests and self._writer.is_synced):
            error = self._writer.write_ceiling(self.clock.last())
        self.replicas.fail_all(why or Unavailable("the store was closed; nothing was changed"))
        try:
            self.engine.close()
        except EngineFailed as failure:
            _log.warning("the store could not be closed in good order: %s", failure)
            error = error or stopped_by(failure)
        if error is not None and self.failed is None and not self.options.sync:
            raise error  # writes that were not synced yet may be lost

    # --- failing

    @property
    def is_half_way(self) -> bool:
        """Return whether a turn has been staged and not finished: no other one can be begun."""
        return self.consensus.is_half_way

    def break_off(self) -> Error:
        """Stop the node after a turn that an exception has left half-way.

        The exception belongs to the caller (an interrupt), or must not happen. The effect of the
        turn is unknown: this node stops, and writes nothing more.

        Returns:
            The error for callers.
        """
        error = interrupted()
        if self._writer.storage is not None:
            self._writer.storage.give_up(str(error))
        if self.failed is None:
            self._fail(error)
        return self.failed or error

    def _fail(self, error: Error) -> None:
        self.failed = error
        self._stop_services()
        self.consensus.fail(error)
        self.replicas.fail_all(error)
        self.tasks.stop()

    def _stop_services(self) -> None:
        for hosted in self._hosted():
            hosted.services.stop()

    def _store_ceiling(self, ceiling: int) -> bool:
        """Store the clock's ceiling. The clock calls this, wherever it is read."""
        return self.failed is None and self._writer.store_ceiling(ceiling)
