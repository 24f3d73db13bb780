"""The assembly of the ranges of a node: their abilities, and the services that run for them.

Only this module knows all of them. The node itself (:mod:`.node`) drives the parts made here.
:class:`NodeOptions` are what a node is started with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.kv.engine import Engine, WriteSet
from postroom.limits import (
    DISK_RESERVE_BYTES,
    GC_INTERVAL_SECONDS,
    GC_TTL_SECONDS,
    MEMORY_BYTES,
    POLL_SECONDS,
)
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.ingest.restores import Restoring
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.definitions import VERSION_KEY
from postroom.messaging.queues.dropping import DropTeller
from postroom.messaging.queues.news import DefinitionNews
from postroom.messaging.queues.slot_sharing import SlotAsker, SlotSharer
from postroom.messaging.services import DELIVER_DUE, EXECUTE_DUE, Advancer, Mover
from postroom.messaging.setup import Messaging
from postroom.raft.consensus import Consensus
from postroom.raft.interface import NodeId, RaftOptions
from postroom.ranges import access, audit, protection_news, settings
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key
from postroom.ranges.garbage import Collector
from postroom.ranges.lease import LEASE_SECONDS
from postroom.ranges.lease_moves import LeaseMoves
from postroom.ranges.nodes import NodeRecords, nodes_key
from postroom.ranges.ports import Host, Onlooker
from postroom.ranges.protection_news import (
    HEARD_SECONDS,
    ProtectionTeller,
    first_to_protect,
    limit_as_heard,
    read_news,
)
from postroom.ranges.replica import Replica
from postroom.ranges.settings import SETTINGS_KEY, SettingsInForce
from postroom.ranges.slow_log import SlowLog
from postroom.ranges.split.by_size import SizeSplits
from postroom.ranges.split.halving import Halving
from postroom.ranges.split.preparing import Preparing
from postroom.ranges.split.service import SplitService
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.ranges.transactions.records import has_under_way
from postroom.ranges.transactions.service import TransactionService
from postroom.server.departing_ranges import is_destroyed
from postroom.server.disk_guard import Damage
from postroom.server.hosted_range import HostedRange, HostingNode
from postroom.server.load_splitting import LoadSplitting
from postroom.server.membership import MembershipService
from postroom.server.range_calls import RangeCalls
from postroom.server.replicas import Replicas
from postroom.server.services import Rest, Services, WakeUp, WakeUps

Observer: TypeAlias = Callable[[bytes | None], None]
"""A function that hears what is applied to a record."""
GENERAL_ONLY: Final = "POSTROOM_GENERAL_ONLY"
"""The environment variable that turns off the usual way of proposals, to look for a fault."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node when it starts.

    Attributes:
        members: the members of a new group; none if this node is to be added to one.
        sync: whether writes are synced before they count.
        lease_seconds: how long the others wait for a leaseholder that has gone.
        memory_bytes: the budget of memory that its storage has too (:class:`.Budget`).
        rests_alone: whether a node that is alone writes nothing, its lease included, before the
            first write of a client or a service.
        spread_seconds: how often a node with several ranges looks whether it is to give a lease
            away (:mod:`.lease_spreading`).
        first_words: settings that the store gets from this node if it has none of their names yet.
        founding: settings that a reset gives the values with which a cluster begins.
        slow_seconds: the duration from which commits and locks are logged as slow, and with it all
            conflicts; ``None``: nothing of this is logged.
        is_general_only: whether all proposals are made in the general way
            (:mod:`postroom.messaging.usual`).
    """

    node_id: int = 1
    members: tuple[int, ...] = (1,)
    sync: bool = True
    lease_seconds: float = LEASE_SECONDS
    raft: RaftOptions | None = None
    sync_interval_seconds: float | None = None
    gc_ttl_seconds: float = GC_TTL_SECONDS
    gc_interval_seconds: float = GC_INTERVAL_SECONDS
    poll_seconds: float = POLL_SECONDS
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    memory_bytes: int = MEMORY_BYTES
    rests_alone: bool = False
    spread_seconds: float = 10.0
    first_words: dict[str, float] = msgspec.field(default_factory=dict)
    founding: dict[str, float] = msgspec.field(default_factory=dict)
    slow_seconds: float | None = None
    is_general_only: bool = msgspec.field(
        default_factory=lambda: os.environ.get(GENERAL_ONLY, "") not in ("", "0")
    )

    def live_settings(self) -> dict[str, float]:
        """Return the options that are in force until the store has such settings, by name."""
        return {
            settings.DISK_RESERVE: self.disk_reserve_bytes,
            settings.GC_INTERVAL: self.gc_interval_seconds,
            settings.GC_TTL: self.gc_ttl_seconds,
            settings.POLL: self.poll_seconds,
            settings.SLOW: settings.OFF if self.slow_seconds is None else self.slow_seconds,
        }


class AssembledNode(HostingNode, Protocol):
    """The node, as its ranges are made for it: it has an engine, a clock, tasks and consensus."""

    engine: Engine
    options: NodeOptions
    clock: HybridLogicalClock
    consensus: Consensus
    calls: RangeCalls
    damage: Damage
    settings: SettingsInForce
    onlookers: list[Onlooker]
    slow_log: SlowLog
    load_splitting: LoadSplitting
    definitions: DefinitionNews
    handed_leases: dict[int, dict[bytes, float]]
    seen_clients: dict[bytes, None]

    @property
    def chance(self) -> Callable[[], float]:
        """Return the source of random numbers from 0 to 1."""

    @property
    def replicas(self) -> Replicas:
        """Return its ranges."""

    def observe_nodes(self, stored: bytes | None) -> None:
        """Take the new record of the nodes."""

    def observe_grants(self, stored: bytes | None) -> None:
        """Take the new record of the grants."""

    def observe_settings(self, stored: bytes | None) -> None:
        """Take the new record of the settings."""

    def check_new_range(self, range_id: int) -> None:
        """Check that a range with this id may begin."""

    def has_range(self, range_id: int) -> bool:
        """Return whether this node has anything of a range."""

    def begin_range(
        self,
        left_id: int,
        descriptor: RangeDescriptor,
        members: tuple[NodeId, ...],
        staged: WriteSet,
    ) -> None:
        """Have a range, once the write set that joins its first records is written."""

    def change_bounds(self, range_id: int, stored: bytes | None, observe: Observer) -> None:
        """Have a range take the bounds of a descriptor, once that is written."""

    def may_take(self, range_id: int, descriptor: RangeDescriptor) -> bool:
        """Return whether a snapshot may come: no key of it is another range's, or is cleared."""


@dataclass(frozen=True, slots=True)
class RangeComponents:
    """The components of a range: its replica, with all of its abilities.

    Attributes:
        replica: the replica.
        messaging: the messaging of the range.
        deliveries, executions, departures, advances, splits, drops: the wake-ups that services have
            work.
        preparing: the split that the range prepares, if any.
    """

    replica: Replica
    messaging: Messaging
    deliveries: WakeUp
    executions: WakeUp
    departures: WakeUp
    advances: WakeUp
    splits: WakeUp
    drops: WakeUp
    preparing: Preparing


def assemble_range(
    range_id: int, node: AssembledNode, host: Host, stored: Engine, wake_ups: WakeUps
) -> RangeComponents:
    """Assemble a range of ``node`` that has no consensus group yet, and no services.

    Args:
        range_id: the id of the range.
        node: the node, which has its engine, clock and tasks already.
        host: the range on the node, as its replica sees it.
        stored: the engine that the range reads: all of it is in the state.
        wake_ups: the wake-ups of its services.
    """
    options = node.options
    replica = Replica(range_id, options.node_id, stored, node.clock, host, wake_ups.create())
    replica.onlookers, replica.slow_log = node.onlookers, node.slow_log
    replica.listing.load = node.load_splitting.cores_of
    protections, registry = replica.protections, replica.registry
    root = replica if range_id == ROOT_ID else node.replicas.by_id(ROOT_ID)
    replica.positions.first_to_protect = lambda now: first_to_protect(
        now, _age_max(node, root), _oldest_heard(root, stored)
    )
    if root is not replica:
        protections.share(root.protections)
        replica.positions.limit_as_heard = lambda threshold, now: limit_as_heard(
            threshold, now, read_news(stored), serves_root=_knows_protections(root)
        )
    deliveries, executions, departures, advances, notes, splits, drops = [
        wake_ups.create() for _ in range(7)
    ]
    environment = QueueEnvironment(
        bounds=replica.bounds,
        monotonic=node.monotonic, reading=node.clock.reading, by_wall=node.clock.by_wall,
        seconds_until=node.clock.seconds_until,
        chance=node.chance, check_age=replica.check_age, wake_tokens=replica.wake,
        holders=replica.holders,
        reader=protections.reader, may_purge=replica.positions.limit,
        kept=lambda: from_seconds(node.settings[settings.GC_TTL]), wake_up=advances,
        news=node.definitions, node_claims=node.replicas.claims, handed=node.handed_leases,
        seen_clients=node.seen_clients,
        forgets_strangers=options.rests_alone,
        rouse=replica.rouse, serves=lambda: replica.serves or options.rests_alone,
    )  # fmt: skip
    messaging = Messaging(
        replica, deliveries, executions, notes, environment,
        is_general_only=options.is_general_only,
    )  # fmt: skip
    restoring = Restoring(replica.bounds, protections, node.clock.pass_over, replica.begin_anew)
    restoring.register(registry)
    messaging.restoring = restoring
    messaging.departures = departures
    messaging.queues.drops = drops
    preparing = Preparing(replica, stored, node, splits)
    for each in (preparing, Halving(replica, node.begin_range)):
        each.register(registry)
    return RangeComponents(
        replica, messaging, deliveries, executions, departures, advances, splits, drops, preparing
    )


def held_ranges(engine: Engine, stored: Engine) -> list[int]:
    """Return the ids of the ranges that a node has when it opens.

    These are the root, and those of which there is a descriptor, or a snapshot that arrives. Both
    are looked for under one range id after the other, whatever the ranges contain.

    Args:
        engine: the node's engine.
        stored: the engine of the state, which has all that is looked for.
    """
    found = {ROOT_ID}
    for space, end in ((keys.RAFT_LOG, keys.RANGE), (keys.RANGE, keys.TRANSACTION)):
        lower = space + keys.u64(ROOT_ID + 1)
        while key := next((each for each, _ in stored.iterate(lower, end)), None):
            range_id = int.from_bytes(key[1:9], "big")
            if _is_held(engine, range_id):
                found.add(range_id)
            lower = space + keys.u64(range_id + 1)
    return sorted(found)


def _is_held(engine: Engine, range_id: int) -> bool:
    if engine.get(keys.raft_log_prefix(range_id) + b"s") is not None:
        return True
    return engine.get(descriptor_key(range_id)) is not None and not is_destroyed(engine, range_id)


def host_range(
    range_id: int, node: AssembledNode, stored: Engine, members: Sequence[NodeId]
) -> HostedRange:
    """Make a range of ``node``, with a consensus group and services.

    Args:
        range_id: the id of the range.
        node: the node, which has its engine, clock, tasks and consensus already.
        stored: the engine that the range reads: all of it is in the state.
        members: the first voters, if the group is new; none if this node is to be added to it.
    """
    tasks, options = node.tasks, node.options
    hosted = HostedRange(range_id, node, may_rest=options.rests_alone)
    made = assemble_range(range_id, node, hosted, stored, hosted.wake_ups)
    replica = made.replica
    if hosted.is_root:
        NodeRecords(ROOT_ID).register(replica.registry)
        replica.registry.observers[nodes_key(ROOT_ID)] = node.observe_nodes
        access.register(replica.registry)
        audit.register(replica.registry)
        replica.registry.observers[access.ACCESS_KEY] = node.observe_grants
        node.settings.register(replica.registry)
        replica.registry.observers[SETTINGS_KEY] = node.observe_settings
        protection_news.register(replica.registry, replica.protections)
        replica.registry.observers[VERSION_KEY] = node.definitions.observe
    LeaseMoves(replica.listing, hosted).register(replica.registry)
    _observe_bounds(hosted, replica, node)
    replica.state.may_take = partial(node.may_take, range_id)
    replica.group = node.consensus.create(
        range_id, members, replica.state, is_provisional=not hosted.is_root
    )
    if node.damage.found:
        replica.group.step_aside()
    poll = node.settings.reader(settings.POLL)
    rest = Rest(partial(_first_due, made, node.engine), node.clock, tasks, poll)
    services = _services(hosted, node, made, stored)
    hosted.equip(replica, made.messaging, services, rest, node.damage)
    return hosted


def _first_due(made: RangeComponents, engine: Engine) -> int:
    """Return when the services of a range have something to do, as a timestamp; 0: never."""
    is_split = made.preparing.record is not None or made.preparing.has_rest()
    if is_split or has_under_way(engine, made.replica.range_id):
        return made.replica.reading()
    return made.messaging.first_due(engine)


def _observe_bounds(hosted: HostedRange, replica: Replica, node: AssembledNode) -> None:
    """Have the node and the services follow the bounds of a range, along with its replica."""
    observers, range_id = replica.registry.observers, replica.range_id
    observe = observers[descriptor_key(range_id)]

    def take(stored: bytes | None) -> None:
        observe(stored)
        hosted.wake_ups.set()

    observers[descriptor_key(range_id)] = lambda stored: node.change_bounds(range_id, stored, take)


def _knows_protections(root: Replica) -> bool:
    """Return whether the node serves the root, or no other node ever will."""
    return root.serves or len(root.group.members) == 1


def _oldest_heard(root: Replica, stored: Engine) -> int:
    """Return the oldest protected timestamp of which the node has heard; 0: of none."""
    if _knows_protections(root):
        return root.protections.oldest
    news = read_news(stored)
    return 0 if news is None else news.oldest


def _has_listeners(node: AssembledNode, root: Replica) -> bool:
    """Return whether another node may lead another range."""
    return len(node.replicas.hosted) > 1 and len(root.group.members) > 1


def _age_max(node: AssembledNode, root: Replica) -> int:
    """Return the age of the oldest timestamp that can be protected; 0: any can."""
    if not _has_listeners(node, root):
        return 0
    return from_seconds(max(node.settings[settings.GC_TTL], RECORD_SECONDS) - HEARD_SECONDS)


def _teller(hosted: HostedRange, node: AssembledNode, root: Replica) -> ProtectionTeller:
    """Return the service that tells the protections of the root."""
    return ProtectionTeller(
        root.protections, hosted.upkeep, node.tasks.sleep, lambda: _has_listeners(node, root),
        is_alone=node.options.rests_alone,
        age_max=lambda: _age_max(node, root),
    )  # fmt: skip


def _services_of_root(
    hosted: HostedRange, node: AssembledNode, made: RangeComponents
) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
    untold = made.messaging.queues.untold
    drops = DropTeller(untold, node.calls, hosted.upkeep, made.drops)
    create, pools = hosted.wake_ups.create, made.messaging.queues.pools
    sharer = SlotSharer(
        pools, node.calls, node.tasks.monotonic, node.tasks.sleep, create(), create()
    )
    pools.on_asked = sharer.wake_up.set
    return {
        "protections": _teller(hosted, node, made.replica).run,
        "dropped queues": drops.run,
        "shares of slots": sharer.run,
    }


def _services(
    hosted: HostedRange, node: AssembledNode, made: RangeComponents, stored: Engine
) -> Services:
    """Return the services of a range, which reads ``stored``."""
    tasks, options = node.tasks, node.options
    replica, messaging = made.replica, made.messaging
    upkeep, queues = hosted.upkeep, messaging.queues

    def last_commit() -> int:
        return replica.last_commit

    create, moving = hosted.wake_ups.create, (node.clock.seconds_until, last_commit)
    sending = SendingService(
        hosted.range_id, messaging.outboxes, stored, node.calls, upkeep, made.departures,
        tasks.monotonic, node.settings.reader(settings.POLL), replica.memory.held,
    )  # fmt: skip
    queues.departures.has_sent = replica.answers.departs
    collector = Collector(
        upkeep, tasks.sleep, create(), node.clock, last_commit,
        node.settings.reader(settings.GC_TTL), node.settings.reader(settings.GC_INTERVAL),
    )  # fmt: skip
    transactions = TransactionService(replica, node.calls, tasks.monotonic, create())
    splits = SplitService(
        made.preparing,
        upkeep,
        tasks.sleep,
        tasks.monotonic,
        last_commit,
        replica.memory.pause_commits,
        made.splits,
    )
    growth = SizeSplits(
        stored, replica.bounds, made.preparing, upkeep, node.calls.new_range_id, tasks.sleep,
        create(), node.settings, options.first_words,
    )  # fmt: skip
    asker = SlotAsker(
        hosted.range_id, replica.bounds, queues.slots, queues.in_use, node.calls, tasks.monotonic,
        create(),
    )  # fmt: skip
    queues.slots.on_hungry = asker.wake_up.set
    return Services(tasks, {
        "dispatcher": Mover(DELIVER_DUE, upkeep, made.deliveries, *moving).run,
        "executor": Mover(EXECUTE_DUE, upkeep, made.executions, *moving).run,
        "outgoing": sending.run,
        "attempts": lambda: messaging.attempts.run(upkeep),
        "slots": asker.run,
        "queues": Advancer(queues.steps, upkeep, made.advances).run,
        "collector": collector.run,
        "feed": lambda: replica.feed.forget_when_idle(tasks.sleep),
        "membership": MembershipService(hosted, replica.group, hosted.nodes_changed).run,
        "split": splits.run,
        "transactions": transactions.run,
        "split by size": growth.run,
        **(_services_of_root(hosted, node, made) if hosted.is_root else {}),
    }, {"queues": queues.steps.trouble}, {"queues": queues.note, "split": splits.note},
    hosted.wake_ups)  # fmt: skip
