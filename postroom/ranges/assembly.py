"""The assembly of a replica: the components of which it consists, and how they are connected.

Each stage, each part of the leaseholder's memory and each evaluator knows only the objects that it
is given here. :mod:`.replica` is what a replica does with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from postroom.errors import Error
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Engine
from postroom.raft.group import RaftGroup
from postroom.ranges import evaluators
from postroom.ranges import lease as leases
from postroom.ranges.admission import CommandAdmission, taken
from postroom.ranges.answers import Answering
from postroom.ranges.batch import BatchEvaluator, TimeShare
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call, Freeing, Proposal
from postroom.ranges.commit_waits import CommitWaits
from postroom.ranges.descriptor import descriptor_key, read_descriptor
from postroom.ranges.evaluators import RangeReads
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import GarbageLists
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.listing import RangeListing
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.memory import LeaseMemory
from postroom.ranges.partitions import Partitions
from postroom.ranges.ports import (
    Companion,
    Host,
    MemoryKeeper,
    Registry,
    ServiceWakeUp,
    SpanningTransactions,
)
from postroom.ranges.proposer import Proposer
from postroom.ranges.protections import PositionRecords, Protections
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.serving import Serving
from postroom.ranges.state import RangeState
from postroom.ranges.transactions.halves import TransactionHalves
from postroom.ranges.transactions.intents import IntentTable
from postroom.ranges.transactions.one_range import Committer, checks_first
from postroom.ranges.transactions.prepared import Participation
from postroom.ranges.transactions.push import Pushes
from postroom.ranges.transactions.refresh import Refreshes
from postroom.ranges.transactions.requests import Prepare
from postroom.ranges.transactions.resolver import ForgottenCommits
from postroom.ranges.usual import UsualParts, UsualWay
from postroom.ranges.whole_protections import WholeProtections


class AssembledReplica(ABC):
    """A replica, as far as it is made of components; see the module.

    Args:
        range_id: the id of the range.
        node_id: the id of the node, the holder of its leases.
        stored: the node's engine.
        clock: the node's clock.
        host: the node.
        watched: a wake-up, set when the change feed begins to keep changes.

    Attributes:
        group: the member of the consensus group, set when that is made.
        failed: the error for every caller once the node has stopped.
        registry: the evaluators.
        bounds: the bounds of the range, as its descriptor that is applied here tells them.
        cache: the cache of values.
        lease_holder: the lease.
        serving: the beginnings and ends of serving; ``acquisition``: of the lease.
        state: the state machine of the group.
        admission: the commands that wait: those of ``clients``, and ``upkeep``.
        reads: the reads, and the lines of calls that wait.
        protections: the protected timestamps.
        positions: the positions of readers.
        feed: the change feed.
        intents: the transactions over several ranges that are prepared here.
        memory: the memory of a leaseholder; ``holders``: the transactions that hold
            something in it.
        waiting: the lines of calls that wait.
        commit_waits: the locks, and the commits that wait for them.
        transactions: the transactions over several ranges; ``None``: there is one range.
        pushes: tells other ranges how transactions have ended whose anchors lie here.
        evaluator, proposer, answers: the stages after the admission.
        time_share: the share of time that long requests have.
        freeing: the write sets to free.
        proposal: the proposal under way.
        usual_way: makes usual proposals; ``None``: the general way makes all of them.
        usual_parts: the parts that it is made from.
        try_get, is_used_up, charge: see :class:`.LocalReads`.
        wake, release_*, holds_for, clients_that_hold: see :class:`.LeaseMemory`.
    """

    # Too many for instances to share their layout: as slots they are found at once.
    __slots__ = (
        "__weakref__", "acquisition", "admission", "answers", "bounds", "cache", "charge",
        "check_age", "clients", "clients_that_hold", "clock", "commit_waits", "evaluator", "failed",
        "feed", "freeing", "group", "holders", "holds_for", "host", "intents", "is_used_up",
        "lease_holder", "listing", "memory", "node_id", "positions", "proposal", "proposer",
        "protections", "pushes", "range_id", "reads", "registry", "release_client",
        "release_expired", "release_locks", "serving", "state", "stored", "time_share",
        "transactions", "try_get", "upkeep", "usual_parts", "usual_way", "waiting", "wake",
    )  # fmt: skip

    def __init__(
        self,
        range_id: int,
        node_id: int,
        stored: Engine,
        clock: HybridLogicalClock,
        host: Host,
        watched: ServiceWakeUp,
    ) -> None:
        self.range_id = range_id
        self.node_id = node_id
        self.stored = stored
        self.clock = clock
        self.host = host
        self.group: RaftGroup
        self.failed: Error | None = None
        self.proposal: Proposal | None = None
        self.transactions: SpanningTransactions | None = None
        self.bounds = Bounds(read_descriptor(stored, range_id))
        self.registry = Registry()
        self.cache = Cache(stored, host.values_bytes)
        lease_key = keys.record_key(range_id, leases.LEASE_RECORD)
        lease = leases.decode(stored.get(lease_key))
        self.lease_holder = LeaseHolder(node_id, lease, clock, host.monotonic, host.lease_seconds)
        self.serving = serving = Serving(self, lease_key)
        self.acquisition = serving.acquisition
        self.state = RangeState(
            range_id, stored, self.cache, self.registry, self.lease_holder, serving
        )
        self.registry.observers[lease_key] = serving.observe_lease
        self.registry.observers[descriptor_key(range_id)] = serving.observe_descriptor
        self.admission = CommandAdmission()
        self.clients, self.upkeep = self.admission.clients, self.admission.upkeep
        self._begin_reads()
        self._begin_memory(watched)
        self._begin_evaluators()

    def _begin_reads(self) -> None:
        """Make the reads, and the lines of calls that wait."""
        self.intents = IntentTable(self.range_id, self.host.monotonic)
        self.intents.resume, self.intents.resume_at = self.submit_again, self.read_at
        self.reads = reads = LocalReads(
            self.stored, self.cache, self.clock, self.registry, self.lease_holder, self.host
        )
        reads.bounds, reads.intents = self.bounds, self.intents
        self.waiting = reads.waiting
        self.try_get, self.is_used_up, self.charge = reads.try_get, reads.is_used_up, reads.charge

    def _begin_memory(self, watched: ServiceWakeUp) -> None:
        """Make the components that keep something in the leaseholder's memory."""
        reads, host = self.reads, self.host
        self.memory = memory = LeaseMemory(
            self.stored, self.cache, self.waiting, host, self.committing
        )
        self.holders = memory.holders
        self.commit_waits = CommitWaits(
            reads, self.holders, host, self.clients, memory.release_locks
        )
        self.protections = Protections(self.stored.snapshot, self.range_id)
        self.positions = PositionRecords(self.range_id, self.protections)
        self.feed = ChangeFeed(
            lambda: reads.last_commit, self.intents, self.protections, self.waiting, watched
        )
        self.freeing = Freeing()
        self.wake = memory.wake
        self.release_locks = memory.release_locks
        self.release_expired = memory.release_expired
        self.release_client = memory.release_client
        self.holds_for = memory.holds_for
        self.clients_that_hold = memory.clients_that_hold

    def _begin_evaluators(self) -> None:
        """Make the evaluators, and with them the stages that the data of commands passes."""
        registry, clock, memory, waits = self.registry, self.clock, self.memory, self.commit_waits
        evaluators.register(registry, self.bounds)
        reads = RangeReads(
            self.bounds, waits.locks, self.protections, self.positions, self.holders, waits.wound
        )
        self.check_age = reads.check_age
        committer = Committer(registry, clock.reading, waits, self.bounds, self.intents)
        participation = Participation(
            registry, self.intents, waits.locks, self.bounds, clock, memory.release_locks
        )
        garbage = GarbageLists(self.range_id, self.protections, self.positions, self.bounds)
        partitions = Partitions(self.stored, self.positions, self.bounds)
        self.listing = RangeListing(self.bounds, self.node_id, self.stored, lambda: self.group)
        bulk = (garbage, partitions, self.listing)
        self.pushes = Pushes(clock.pass_over, self.host.monotonic)
        registry.divisible.append(TransactionHalves(self.range_id, self.intents, waits.locks))
        refreshes = Refreshes(reads.check_age, self.reads.follow)
        spanning = (participation, self.pushes, refreshes, ForgottenCommits(self.range_id))
        whole = WholeProtections(
            self.range_id, self.reads, self.protections, clock, self.host.monotonic,
            lambda: self.transactions is not None and self.transactions.is_committing(),
            lambda: self.submit_again(taken(self.reads.blocked)),
        )  # fmt: skip
        own = (reads, committer, waits, self.positions, self.feed, whole)
        for each in (*own, *spanning, *bulk):
            each.register(registry)
        memory.reads, memory.committer, memory.commit_waits = reads, committer, waits
        memory.feed, memory.garbage, memory.intents = self.feed, garbage, self.intents
        self._begin_stages(committer, participation, garbage)

    def _begin_stages(
        self, committer: Committer, participation: Participation, garbage: GarbageLists
    ) -> None:
        self.evaluator = BatchEvaluator(
            self.range_id, self.registry, self.cache, self.clock, self.admission,
            checks_first({CommitTransaction: committer, Prepare: participation.prepare}),
        )  # fmt: skip
        self.evaluator.intents = self.intents
        self.time_share = self.evaluator.time_share = TimeShare(self.host.monotonic)
        self.evaluator.waiting_commits = self.commit_waits.calls
        self.proposer = Proposer(self.range_id, self.clock, self.lease_holder, self.feed, garbage)
        self.answers = Answering(
            self.node_id, lambda: self.group.leader, self.host, self.memory, self.commit_waits,
            self.feed,
        )  # fmt: skip
        self.usual_parts = UsualParts(
            self.cache, self.clock, self.registry, committer, self.feed, garbage,
            self.lease_holder,
        )  # fmt: skip
        self.usual_way: UsualWay | None = None
        self.reads.look_at_commit = self.commit_waits.look
        self.reads.given_up = self.memory.given_up
        self.reads.translate = self.answers.elsewhere_if_damaged

    def span(self, transactions: SpanningTransactions) -> None:
        """Let transactions commit here that concern other ranges, too."""
        self.transactions = self.memory.transactions = transactions

    def join(self, companion: Companion, keeper: MemoryKeeper) -> None:
        """Let the rest of the program take part in proposals, and in the leaseholder's memory."""
        self.proposer.companion = self.answers.companion = companion
        self.memory.keeper = keeper

    # --- acts that its components ask for

    @abstractmethod
    def submit_again(self, calls: list[Call]) -> None:
        """Take requests again that have waited."""

    @abstractmethod
    def read_at(self, call: Call, at: int) -> None:
        """Read at a timestamp."""

    @abstractmethod
    def committing(self) -> set[bytes]:
        """Return the transactions whose commits are under way."""

    @abstractmethod
    def start(self, proposal: Proposal) -> None:
        """Offer a proposal to the group."""

    @abstractmethod
    def has_work(self) -> bool:
        """Return whether something waits, whoever has the lease."""
