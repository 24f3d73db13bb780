"""The assembly of a node: the abilities of its range, and the services that run for it.

Only this module knows all of them. The node itself (:mod:`.node`) drives the parts made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postroom.kv.clock import from_seconds
from postroom.kv.engine import Engine
from postroom.messaging.images import Images
from postroom.messaging.ingest.restores import Restoring
from postroom.messaging.queues.service import Advancer
from postroom.messaging.queues.surroundings import Surroundings
from postroom.messaging.services import dispatcher, executor
from postroom.messaging.setup import Messaging
from postroom.ranges import evaluators
from postroom.ranges.evaluators import Reads
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import Collector, GarbageLists
from postroom.ranges.host import Host
from postroom.ranges.node_records import NodeRecords
from postroom.ranges.nodes import nodes_key
from postroom.ranges.partitions import Partitions
from postroom.ranges.position_records import Positions
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry
from postroom.ranges.replica import Replica
from postroom.ranges.transactions import Committer
from postroom.server.membership import MembershipService
from postroom.server.resting import Rest
from postroom.server.services import Services
from postroom.server.tasks import Signal

if TYPE_CHECKING:
    from postroom.server.node import Node

RANGE_ID: Final = 1


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a node drives.

    Attributes:
        replica: the replica of the range.
        feed: the source of changes for watchers.
        rest: lets an embedded store write nothing while there is nothing to write.
        services: the services of the range.
        nodes_changed: set whenever the record of the nodes has changed.
    """

    replica: Replica
    feed: ChangeFeed
    rest: Rest
    services: Services
    nodes_changed: Signal


@dataclass(frozen=True, slots=True)
class RangeParts:
    """The parts of a range: its replica, with all of its abilities registered.

    Attributes:
        deliveries, executions, advances: set when a service of that name has work.
    """

    replica: Replica
    registry: Registry
    feed: ChangeFeed
    messaging: Messaging
    deliveries: Signal
    executions: Signal
    advances: Signal


def assemble_range(range_id: int, node: Node, host: Host, stored: Engine) -> RangeParts:
    """Assemble a range of ``node`` that has no consensus group yet, and no services.

    Args:
        range_id: the id of the range.
        node: the node, which has its engine, clock and tasks already.
        host: the node, as the replica sees it.
        stored: the engine that the range reads: all of it is in the state.
    """
    tasks, options = node.tasks, node.options
    registry, protections = Registry(), Protections(stored.snapshot)
    replica = Replica(range_id, options.node_id, stored, node.clock, registry, host)
    evaluators.register(registry)
    waits = replica.commit_waits
    reads = Reads(waits.locks, protections, replica.holders, waits.wound)
    reads.register(registry)
    Partitions(range_id, stored, protections).register(registry)
    Committer(registry, node.clock.reading, waits).register(registry)
    waits.register(registry)
    positions = Positions(range_id, protections)
    positions.register(registry)
    feed = ChangeFeed(lambda: replica.last_commit, protections, replica.waiting, Signal(tasks))
    feed.register(registry)
    deliveries, executions = Signal(tasks), Signal(tasks)
    advances, notes = Signal(tasks), Signal(tasks)
    around = Surroundings(
        monotonic=node.monotonic, reading=node.clock.reading, by_wall=node.clock.by_wall,
        chance=node.chance, check_age=reads.check_age, wake_tokens=replica.wake,
        holders=replica.holders,
        reader=protections.reader, may_purge=positions.limit,
        kept=from_seconds(options.gc_ttl_seconds), signal=advances,
        forgets_strangers=options.rests_alone,
        rouse=lambda: replica.wake_up() if replica.rests else None,
    )  # fmt: skip
    messaging = Messaging(
        range_id, reads.check_age, replica.wake, replica.holders, deliveries, executions, notes,
        around,
    )  # fmt: skip
    messaging.register(registry)
    GarbageLists(range_id, protections, positions).register(registry)
    Images(range_id, protections.reader).register(registry)
    Restoring(
        range_id, protections, node.clock.pass_over,
        lambda: replica.memory.refresh(replica.wake, replica.waiting_for),
    ).register(registry)  # fmt: skip
    return RangeParts(replica, registry, feed, messaging, deliveries, executions, advances)


def assemble(node: Node, stored: Engine) -> Parts:
    """Assemble the parts of ``node``.

    Args:
        node: the node, which has its engine, clock, tasks and consensus already.
        stored: the engine that the range reads: all of it is in the state.
    """
    tasks, options = node.tasks, node.options
    nodes_changed = Signal(tasks)
    made = assemble_range(RANGE_ID, node, node, stored)
    replica, feed, messaging = made.replica, made.feed, made.messaging
    NodeRecords(RANGE_ID).register(made.registry)
    made.registry.observers[nodes_key(RANGE_ID)] = node.observe_nodes
    rest = Rest(lambda: messaging.first_due(node.engine), node.clock, tasks, options.poll_seconds)
    replica.group = node.consensus.create(RANGE_ID, options.members, replica.state)
    replica.group.on_leadership = node.on_leadership
    if node.damage.found:
        replica.group.step_aside()

    def last_commit() -> int:
        return replica.last_commit

    moving = (node.clock.now, last_commit, options.poll_seconds)
    collector = Collector(
        node.upkeep, tasks.sleep, node.clock.now, last_commit,
        options.gc_ttl_seconds, options.gc_interval_seconds,
    )  # fmt: skip
    queues = messaging.queues
    services = Services(tasks, {
        "dispatcher": dispatcher(node.upkeep, made.deliveries, *moving).run,
        "executor": executor(node.upkeep, made.executions, *moving).run,
        "attempts": lambda: messaging.attempts.run(node.upkeep, options.poll_seconds),
        "queues": Advancer(queues, node.upkeep, made.advances, options.poll_seconds).run,
        "collector": collector.run,
        "feed": lambda: feed.forget_when_idle(tasks.sleep),
        "membership": MembershipService(node, replica.group, nodes_changed).run,
    }, {"queues": queues.trouble}, {"queues": queues.note})  # fmt: skip
    return Parts(replica, feed, rest, services, nodes_changed)
