"""One node's replica of a range: the assembly of its stages, its lease, and its turns.

::

    submit ─┬─ read ────── local reads: the applied state, at once or after a wait
            └─ command ─┐
                        ▼                                         followers
          admit ─▶ evaluate ─▶ propose ─▶ group ─▶ apply ◀─────────── group
     (:mod:`.admission`,  │ (:mod:`.proposer`)    (:mod:`.state`)
                :mod:`.batch`)                        │
            ▲                                         ▼
            └── those that waited go on ◀── answer (:mod:`.answers`)

Data passes the five stages once, in one direction. Each stage is an object that knows none of the
others but through the data that it is given; this module hands the data on. The replica asks for
the lease and gives it back (:mod:`.lease`).

Everything is synchronous and called by the node, one call at a time: ``submit`` and ``cancel`` for
requests, a turn (``take_turn``), the ``state`` by the group. At most one proposal is under way.
Commands that arrive meanwhile go together into the next one. This is the whole concurrency control
inside a range: no latches, no threads. A call that must wait for something stands in line for it
(:mod:`.waiting`). Transactions hold locks and claims in memory until they end, their time is over,
or their client has gone (:mod:`.memory`).

A turn takes several replicas of a node through each stage together::

    begin    ─▶ begin    ─▶ ...   reads, the lease; may answer calls
    evaluate ─▶ evaluate          what is usual, in one pass        ┐ (:mod:`.usual`)
                                  other requests, into a batch      │
    complete ─▶ complete          the companion, records that sum up │ no call is answered
    propose  ─▶ propose           the command                       ┘
    conclude ─▶ ...               proposals that write nothing are answered

A node has one range until that splits (:mod:`postroom.ranges.split`). The ranges of a node do not
depend on each other, so each could take its turn after the other. But this is faster: a processor
goes a part of a proposal's long way sixty times in a row in less time than all of it sixty times.
With one transaction in each of 64 proposals, that takes a sixth less.

Invariants:

* An answer leaves only after the proposal that it speaks of is applied and durable.
* The applied index is written with the state that it describes.
* It serves only while it leads and the lease is its own (:mod:`.lease`), with fresh memory.
* A command evaluated under one lease has no effect under another one.
* A lease is asked for only when every entry of earlier leaders is applied: the last one is known.
* Between ``begin`` and ``conclude`` of a turn no call is answered. A caller that is answered may
  ask at once. It would read a range whose requests are evaluated, at a later timestamp than theirs,
  before it is known what they write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from postroom import limits
from postroom.errors import Error
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Engine
from postroom.raft.group import RaftGroup
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges import evaluators
from postroom.ranges import lease as leases
from postroom.ranges.admission import REQUESTS_AT_ONCE, CommandAdmission, RefusedCalls, taken
from postroom.ranges.answers import Answering
from postroom.ranges.batch import Batch, BatchEvaluator, TimeShare, commits
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call, Freeing, LeasedWrites, Proposal
from postroom.ranges.commit_waits import CommitWaits
from postroom.ranges.descriptor import (
    RangeDescriptor,
    decode_descriptor,
    descriptor_key,
    read_descriptor,
)
from postroom.ranges.evaluators import RangeReads
from postroom.ranges.feed import ChangeFeed, FeedWakeUp
from postroom.ranges.garbage import GarbageLists
from postroom.ranges.lease import LeaseAcquisition, LeaseHolder
from postroom.ranges.listing import RangeListing
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.memory import LeaseMemory
from postroom.ranges.partitions import Partitions
from postroom.ranges.ports import (
    Companion,
    Host,
    MemoryKeeper,
    Registry,
    SpanningTransactions,
)
from postroom.ranges.proposer import Proposer
from postroom.ranges.protections import PositionRecords, Protections
from postroom.ranges.requests import CommitTransaction, ReleaseLocks
from postroom.ranges.state import RangeState
from postroom.ranges.transactions.halves import TransactionHalves
from postroom.ranges.transactions.intents import IntentTable
from postroom.ranges.transactions.one_range import Committer, checks_first
from postroom.ranges.transactions.prepared import Participation
from postroom.ranges.transactions.push import Pushes
from postroom.ranges.transactions.refresh import Refreshes
from postroom.ranges.transactions.requests import Prepare
from postroom.ranges.transactions.resolver import ForgottenCommits
from postroom.ranges.usual import Share, UsualParts, UsualWay
from postroom.ranges.waiting import Line, earlier

_log: Final = logging.getLogger(__name__)


class Replica:
    """A replica of a range; see the module.

    Args:
        range_id: the id of the range.
        node_id: the id of the node, the holder of its leases.
        stored: the node's engine.
        clock: the node's clock.
        host: the node.
        watched: a wake-up, set when the change feed begins to keep changes.

    Attributes:
        registry: the evaluators.
        bounds: the bounds of the range, as its descriptor that is applied here tells them.
        group: the member of the consensus group, set when that is made.
        state: the state machine of the group.
        failed: the error for every caller once the node has stopped.
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
        on_room: called with each turn, when there is room for reads again.
        usual_way: makes usual proposals; ``None``: the general way makes all of them.
        usual_parts: the parts that it is made from.
        complete: a stage of a turn, see ``take_turn``.
        try_get, is_used_up, charge: see :class:`.LocalReads`.
        wake, release_*, holds_for, clients_that_hold: see :class:`.LeaseMemory`.
    """

    # Too many for instances to share their layout: as slots they are found at once.
    __slots__ = (
        "__weakref__", "_acquisition", "_admission", "_answers", "_cache", "_clients", "_clock",
        "_evaluator", "_evaluators", "_freeing", "_host", "_lease_holder", "_lease_key",
        "_proposal", "_proposer", "_stored", "_time_share", "_unwritten", "_upkeep", "bounds",
        "charge", "check_age", "clients_that_hold", "commit_waits", "complete", "failed", "feed",
        "group", "holders", "holds_for", "intents", "is_used_up", "listing", "memory", "node_id",
        "on_room", "positions", "protections", "pushes", "range_id", "reads", "registry",
        "release_client", "release_expired", "release_locks", "state", "transactions", "try_get",
        "usual_parts", "usual_way", "waiting", "wake",
    )  # fmt: skip

    def __init__(
        self,
        range_id: int,
        node_id: int,
        stored: Engine,
        clock: HybridLogicalClock,
        host: Host,
        watched: FeedWakeUp,
    ) -> None:
        self.range_id = range_id
        self.node_id = node_id
        self._stored = stored
        self._clock = clock
        self._host = host
        self.group: RaftGroup
        self.failed: Error | None = None
        self._proposal: Proposal | None = None
        self._unwritten: Proposal | None = None
        self._freeing = Freeing()
        self.on_room: Callable[[], None] | None = None
        self.transactions: SpanningTransactions | None = None
        self.bounds = Bounds(read_descriptor(stored, range_id))
        self.registry = registry = Registry()
        self._evaluators = registry.reads
        self._cache = Cache(stored, host.values_bytes)
        self._lease_key = keys.record_key(range_id, leases.LEASE_RECORD)
        lease = leases.decode(stored.get(self._lease_key))
        self._lease_holder = LeaseHolder(node_id, lease, clock, host.monotonic, host.lease_seconds)
        self._acquisition = LeaseAcquisition(self._lease_holder, host, self)
        registry.observers[self._lease_key] = self._observe_lease
        registry.observers[descriptor_key(range_id)] = self._observe_descriptor
        self.state = RangeState(range_id, stored, self._cache, registry, self._lease_holder, self)
        self._begin_memory(watched)
        self._begin_stages()

    def _begin_memory(self, watched: FeedWakeUp) -> None:
        """Make the reads, and the parts that keep something in the leaseholder's memory."""
        registry, cache, host = self.registry, self._cache, self._host
        self._admission = CommandAdmission()
        self.intents = IntentTable(self.range_id, host.monotonic)
        self.intents.resume, self.intents.resume_at = self._submit_again, self._read_at
        self._clients, self._upkeep = self._admission.clients, self._admission.upkeep
        self.reads = LocalReads(
            self._stored, cache, self._clock, registry, self._lease_holder, host
        )
        self.reads.bounds, self.reads.intents = self.bounds, self.intents
        self.waiting = self.reads.waiting
        self.memory = LeaseMemory(self._stored, cache, self.waiting, host, self._committing)
        self.holders = self.memory.holders
        self.commit_waits = CommitWaits(
            self.reads, self.holders, host, self._clients, self.memory.release_locks
        )
        self.protections = Protections(self._stored.snapshot)
        self.positions = PositionRecords(self.range_id, self.protections)
        self.feed = ChangeFeed(
            lambda: self.reads.last_commit, self.intents, self.protections, self.waiting, watched
        )
        self.wake = self.memory.wake
        self.release_locks = self.memory.release_locks
        self.release_expired = self.memory.release_expired
        self.release_client = self.memory.release_client
        self.holds_for = self.memory.holds_for
        self.clients_that_hold = self.memory.clients_that_hold
        self.try_get = self.reads.try_get
        self.is_used_up, self.charge = self.reads.is_used_up, self.reads.charge

    def _begin_stages(self) -> None:
        """Make the evaluators, and the stages that the data of commands passes."""
        registry, clock, memory, waits = self.registry, self._clock, self.memory, self.commit_waits
        evaluators.register(registry)
        reads = RangeReads(waits.locks, self.protections, self.holders, waits.wound)
        self.check_age = reads.check_age
        committer = Committer(registry, clock.reading, waits, self.bounds, self.intents)
        participation = Participation(
            registry, self.intents, waits.locks, self.bounds, clock, memory.release_locks
        )
        garbage = GarbageLists(self.range_id, self.protections, self.positions, self.bounds)
        partitions = Partitions(self._stored, self.protections, self.bounds)
        self.listing = RangeListing(self.bounds, self.node_id, self._stored, lambda: self.group)
        bulk = (garbage, partitions, self.listing)
        self.pushes = Pushes(clock.pass_over, self._host.monotonic)
        registry.divisible.append(TransactionHalves(self.range_id, self.intents))
        refreshes = Refreshes(reads.check_age, clock.pass_over)
        spanning = (participation, self.pushes, refreshes, ForgottenCommits(self.range_id))
        own = (reads, committer, waits, self.positions, self.feed)
        for each in (*own, *spanning, *bulk):
            each.register(registry)
        memory.reads, memory.committer, memory.commit_waits = reads, committer, waits
        memory.feed, memory.garbage, memory.intents = self.feed, garbage, self.intents
        self._evaluator = BatchEvaluator(
            self.range_id, registry, self._cache, clock, self._admission,
            checks_first({CommitTransaction: committer, Prepare: participation.prepare}),
        )  # fmt: skip
        self._evaluator.intents = self.intents
        self._time_share = self._evaluator.time_share = TimeShare(self._host.monotonic)
        self._evaluator.waiting_commits = waits.calls
        self._proposer = Proposer(self.range_id, clock, self._lease_holder, self.feed, garbage)
        self._answers = Answering(
            self.node_id, lambda: self.group.leader, self._host, memory, waits, self.feed
        )
        self.usual_parts = UsualParts(
            self._cache, clock, registry, committer, self.feed, garbage,
            self._lease_holder,
        )  # fmt: skip
        self.usual_way: UsualWay | None = None
        self.complete = self._proposer.complete
        self.reads.look_at_commit = waits.look
        self.reads.given_up = memory.given_up
        self.reads.translate = self._answers.elsewhere_if_damaged

    def span(self, transactions: SpanningTransactions) -> None:
        """Let transactions commit here that concern other ranges, too."""
        self.transactions = self.memory.transactions = transactions

    def join(self, companion: Companion, keeper: MemoryKeeper) -> None:
        """Let the rest of the program take part in proposals, and in the leaseholder's memory."""
        self._proposer.companion = self._answers.companion = companion
        self.memory.keeper = keeper

    # --- requests

    def submit(self, call: Call) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""
        request = call.request
        evaluator = self._evaluators.get(type(request))
        if self.failed is not None:
            call.complete(None, self.failed)
        elif evaluator is not None:
            self.reads.read(call, evaluator)
        elif type(request) is ReleaseLocks:
            self.release_locks(request.transaction_id)
            call.complete(None, None)
        else:
            transactions = self.transactions
            if transactions is not None and not self.bounds.is_whole and transactions.takes(call):
                return
            if call.urgent:
                self._clients.append(call)
            else:
                self.reads.only_commits = False
                self._upkeep.append(call)
            if self._proposal is None:  # else the end of it wakes
                self._host.wake(urgent=call.urgent)

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; return false if it is too late for that."""
        call.cancelled = True
        return self.reads.cancel(call)

    def resize_cache(self, bytes_max: int) -> None:
        """Have a cache of values of another size, which is empty at first."""
        self._cache.resize(bytes_max)

    def refuse(self, refusal: RefusedCalls | None) -> None:
        """Refuse some requests from now on; ``None``: none."""
        self.reads.only_commits = False
        self._admission.refusal = refusal

    def _committing(self) -> set[bytes]:
        """Return the transactions whose commits are under way."""
        if self._proposal is not None:
            return commits([call for call, _, _ in self._proposal.results])
        return commits(self._evaluator.under_evaluation())

    def hurries(self) -> bool:
        """Return whether a request waits for the result of upkeep."""
        return bool(self.waiting.lines)

    # --- its state, for others

    @property
    def waiting_for(self) -> dict[object, Line]:
        """Return the calls that wait, by token, in the order in which they will be answered."""
        return self.waiting.lines

    def sizes(self) -> dict[str, int]:
        """Count what is kept in memory for clients: in the end nothing but cancelled deadlines."""
        sizes = {name: size() for name, size in self.registry.sizes.items()}
        sizes |= {"holders": len(self.holders), "deadlines": self.holders.entries}
        blocked = len(self.reads.blocked) + len(self.reads.without_lease)
        return sizes | {"parked": len(self.waiting), "blocked": blocked}

    @property
    def last_commit(self) -> int:
        """Return the timestamp of the last commit that is applied."""
        return self.reads.last_commit

    @property
    def serves(self) -> bool:
        """Return whether this replica answers reads now, and evaluates commands."""
        return self._lease_holder.serves(self._clock.reading())

    def descriptors(self) -> list[RangeDescriptor]:
        """Return the descriptor that is applied, and that of a snapshot being put in place."""
        arriving = self.state.arriving
        return [self.bounds.descriptor, *([] if arriving is None else [arriving])]

    @property
    def rests(self) -> bool:
        """Return whether it only reads, and has written nothing since it was started."""
        return self._lease_holder.resting

    @property
    def lease(self) -> leases.RangeLease:
        """Return the lease that is applied here, with any holder."""
        return self._lease_holder.lease

    # --- when it wants a turn

    @property
    def is_proposing(self) -> bool:
        """Return whether a proposal is under way. The end of it may change the next deadline."""
        return self._proposal is not None

    def wants_turn(self) -> bool:
        """Return whether a turn would have something to do."""
        if self._proposal is not None:
            return False
        if self._clients.arrived and self._lease_holder.has_lease:
            return True  # usually, if there is work at all
        if self.reads.only_commits:
            return bool(self._clients.by_owner)
        if not self._has_work():
            return self._acquisition.hands_over
        return (
            self._lease_holder.has_lease or self._acquisition.hands_over
            or not self._acquisition.must_wait()
        )  # fmt: skip

    def _has_work(self) -> bool:
        clients, upkeep, reads = self._clients, self._upkeep, self.reads
        return bool(
            clients.arrived or clients.by_owner or upkeep.arrived or upkeep.by_owner
            or reads.without_lease.kept or self._acquisition.wanted or reads.long.kept
            or self._evaluator.batch or self._evaluator.is_behind
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """Return when a turn has something to do without being woken; ``None``: never."""
        first = self.holders.rings_at
        if self.commit_waits.calls:
            first = earlier(first, self.commit_waits.next_deadline())
        if self._evaluator.put_off:
            first = earlier(first, self._evaluator.next_deadline())
        if self._lease_holder.has_lease:  # it is asked for, and given back, when woken
            return first
        return earlier(first, self._lease_deadline())

    def _lease_deadline(self) -> float | None:
        """Return when this leader may ask for the lease."""
        is_idle = self._proposal is not None or not self._has_work()
        return None if is_idle else self._acquisition.deadline()

    # --- a turn (``take_turn``)

    def turn(self) -> None:
        """Take a turn alone, as ``take_turn`` does for several replicas."""
        if self.begin(self._clock.reading()):
            batch = self.evaluate()
            if batch is not None:
                self.complete(batch)
                if self.propose(batch):
                    self.conclude()

    def reading(self) -> int:
        """Return about now, by the node's clock."""
        return self._clock.reading()

    def begin(self, now: int) -> bool:
        """Begin a turn at about ``now``, and return whether there is something to evaluate.

        The end of a proposal notes whether commits of clients are all that there is to do. Whatever
        adds something else takes that back (``reads.only_commits``). Until then a turn asks for
        nothing else.
        """
        reads, clients, rings_at = self.reads, self._clients, self.holders.rings_at
        if not reads.only_commits or (
            rings_at is not None and rings_at <= self._host.monotonic()
        ):  # fmt: skip
            return self.begin_turn()
        if clients.arrived or clients.by_owner:
            # A member that has ceased to lead has no lease.
            if self._proposal is not None or not self._lease_holder.serves(now):
                return self.begin_turn()
            if reads.offers:
                reads.take_offers()
            reads.begin_turn()
            return True
        reads.begin_turn()
        return False

    def begin_turn(self) -> bool:
        """Do the reads that wait, and what concerns the lease; return whether there is more.

        This may answer calls. The other parts of a turn answer none, up to ``conclude``.
        """
        reads = self.reads
        reads.only_commits = False
        reads.begin_turn()
        if (reads.long.kept or reads.without_lease.kept) and self._may_read():
            reads.go_on_first(self._submit_again)
        if self.on_room is not None:
            self.on_room()
        rings_at = self.holders.rings_at
        if (
            self.commit_waits.calls or self._freeing.left
            or (rings_at is not None and rings_at <= self._host.monotonic())
        ):  # fmt: skip
            self._tidy_up()
        if not self.wants_turn():
            return False
        if not self.group.is_leader:
            self._refuse_waiting()
        elif self._acquisition.hands_over:
            self._acquisition.give_back()
        elif not self._may_read():
            self._rest_or_ask()
        else:
            if reads.offers:
                reads.take_offers()
            if reads.without_lease.kept or reads.long.kept:
                reads.go_on(self._submit_again)
            clients, upkeep = self._clients, self._upkeep
            return bool(
                clients.arrived or clients.by_owner or upkeep.arrived or upkeep.by_owner
                or self._evaluator.batch or self._evaluator.is_behind
            )  # fmt: skip
        return False

    def _may_read(self) -> bool:
        """Return whether reads that wait may go on. A store that rests has to write first."""
        return self._lease_holder.serves(self._clock.reading()) and not (
            self._lease_holder.resting and self._wants_to_write()
        )

    def evaluate(self) -> Batch | None:
        """Evaluate what waits into a batch; ``None``: it was usual, and is proposed."""
        evaluator, way, reads = self._evaluator, self.usual_way, self.reads
        taken: list[Call] = []  # by the usual way, if that cannot evaluate them
        if way is not None and (
            reads.only_commits or (evaluator.is_at_rest and self._admission.is_plain)
        ):
            try:
                usual = way.propose(
                    self._clients.taken(), taken, reads.last_commit, self._share_of_clients()
                )
            except Exception:  # the calls that were taken must not be lost
                _log.critical(
                    "the usual way failed: all proposals take the general way from now on, until "
                    "the store is opened again; please report this", exc_info=True,
                )  # fmt: skip
                self.usual_way = None
            else:
                if type(usual) is Proposal:
                    self._start(usual)
                    return None
                reads.only_commits = False
                if type(usual) is Batch:
                    return evaluator.take_up(usual)
        reads.only_commits = False
        return evaluator.evaluate(reads.last_commit, taken)

    def _share_of_clients(self) -> Share:
        """Return the part of the next proposal that is for clients, who come first."""
        if not (self._upkeep.arrived or self._upkeep.by_owner):
            return Share(limits.PROPOSAL_BYTES_MAX, limits.TURN_STEPS_MAX, is_all=True)
        (_, room_bytes, room_steps), *_ = self._admission.shares()
        return Share(room_bytes, room_steps, is_all=False)

    def propose(self, batch: Batch) -> bool:
        """Propose a batch; return whether it writes nothing, and there are only results to tell."""
        proposal = self._proposer.propose(batch, self.reads.last_commit)
        if proposal is None:
            self._go_on_with(batch)
            return False
        self._evaluator.batch = None
        self.reads.before = 0
        if batch.failure is not None:
            self._forget_evaluated()
        if batch.failure is None:
            self._admission.requests_max = REQUESTS_AT_ONCE
        writes = proposal.command.writes
        if not writes and proposal.command.sums is None:
            self._unwritten = proposal
            return True
        if self._evaluator.checks.current:
            self._evaluator.checks.hear(writes)
        self._start(proposal)
        return False

    def _go_on_with(self, batch: Batch) -> None:
        """Go on with a batch in the next turn, or with half of it if it is too large."""
        if batch.is_too_large:
            self._evaluator.batch = None
            self.reads.before = 0
            self._admission.take_back(batch.results)
            self._forget_evaluated()
        else:
            # RangeReads do not see its writes, and not a timestamp at which they may be.
            self.reads.before = self.reads.before or batch.ctx.began - 1
        self._host.wake(urgent=True)

    def _forget_evaluated(self) -> None:
        """Forget the intents of a batch of which no proposal comes."""
        if self.intents.has_changed:
            self.intents.restart(self._stored)

    def conclude(self) -> None:
        """Tell the results of a proposal that writes nothing."""
        proposal, self._unwritten = self._unwritten, None
        assert proposal is not None
        self._answers.tell(proposal.results, proposal.after)
        self._go_on_after_proposal()

    def _tidy_up(self) -> None:
        """End what has lasted for too long, and free a part of what is needed no more."""
        self.release_expired()
        self.commit_waits.expire()
        self._freeing.go_on()
        if self._freeing.left:
            self._host.wake(urgent=False)

    def _wants_to_write(self) -> bool:
        return bool(self._clients or self._upkeep or self._acquisition.wanted)

    def _rest_or_ask(self) -> None:
        """Read under the lease of an earlier life, or ask for a lease if there is more to do."""
        if self._clients or self._upkeep or not self._acquisition.rest():
            self._acquisition.ask()
        else:
            self.reads.last_commit = self._clock.read()

    def wake_up(self) -> None:
        """End the rest: there is something to do."""
        self.reads.only_commits = False
        self._acquisition.wanted = True
        self._host.wake(urgent=False)

    def rouse(self) -> None:
        """End the rest, if it rests: a service has something to do."""
        if self._lease_holder.resting:
            self.wake_up()

    # --- a proposal: from its start to its end

    def _start(self, proposal: Proposal) -> None:
        command = proposal.command
        self._proposal = proposal
        self.reads.proposal_started(command.writes)
        self.group.propose(proposal.packed or command, proposal, self._ended)

    def _ended(self, outcome: ProposalOutcome) -> None:
        """Answer the calls of the proposal, which is applied, void, or of unknown outcome."""
        proposal = self._proposal
        assert proposal is not None
        writes = proposal.command.writes
        applied = outcome is ProposalOutcome.APPLIED and not proposal.rejected
        if applied:
            # First of all: a thread that reads beside us takes cached values once nothing is in
            # flight.
            self._cache.wrote(writes)
            for hear in self.registry.on_written:
                hear(writes)
        self._proposal = None
        self.reads.proposal_ended()
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self._freeing.add(writes)
        if applied:
            self.reads.last_commit = proposal.last_commit
            if proposal.lease_until:
                self._lease_holder.granted(proposal.lease_until)
            self._answers.tell(proposal.results, proposal.after, writes)
        else:
            # Memory has what was evaluated, and if the outcome is unknown it may be applied yet,
            # below the timestamp of a read: not under this lease.
            self.stop_serving()
            self._acquisition.wanted = self.group.is_leader
            self._answers.fail(proposal, outcome)
        self._go_on_after_proposal()

    def _go_on_after_proposal(self) -> None:
        if self.reads.only_commits:
            if self._clients.arrived or self._clients.by_owner:
                self._host.wake(urgent=True)
            return
        if self._time_share.since is not None:
            self._time_share.end()
        if self.reads.blocked:
            self._submit_again(taken(self.reads.blocked))
        if self.wants_turn():
            reads = self.reads
            is_urgent = (
                self._clients or reads.without_lease or reads.long or self._evaluator.is_behind
            )
            self._host.wake(urgent=bool(is_urgent))
        self.reads.only_commits = self.has_only_commits()

    def has_only_commits(self) -> bool:
        """Return whether a turn would have nothing to do but commits of clients."""
        reads, upkeep, acquisition = self.reads, self._upkeep, self._acquisition
        return (
            self.on_room is None and self.failed is None and self._lease_holder.has_lease
            and self._evaluator.is_at_rest and self._admission.is_plain
            and not (
                upkeep.arrived or upkeep.by_owner or reads.without_lease.kept or reads.long.kept
                or reads.blocked or acquisition.wanted or acquisition.hands_over
                or self.commit_waits.calls or self._freeing.left
            )
        )  # fmt: skip

    def _read_at(self, call: Call, at: int) -> None:
        if not call.cancelled:
            self.reads.read_at(call, at)

    def _submit_again(self, calls: list[Call]) -> None:
        for call in calls:
            if not call.cancelled:
                self.submit(call)

    # --- the lease

    def propose_lease(
        self, lease: leases.RangeLease, after: Callable[[], None], until: float
    ) -> None:
        """Have the group agree on ``lease``, and call ``after`` when it is applied."""
        command = LeasedWrites(self.lease.sequence, {self._lease_key: leases.encode(lease)})
        self._start(Proposal(command, [], [after], self.last_commit, until))

    def begin_with_fresh_memory(self) -> None:
        """Serve under a new lease: memory starts afresh from what is stored."""
        self.reads.last_commit = self._lease_holder.begin()
        self._acquisition.wanted = False
        self.memory.begin()
        self.serve_again()

    def begin_anew(self) -> None:
        """Begin memory anew under this lease, if any: everything stored was replaced.

        Without a lease, memory begins with the next one.
        """
        if self._lease_holder.has_lease:
            self.memory.begin_anew()

    def serve_again(self) -> None:
        """Let those have their turn that have waited for the lease."""
        self._submit_again(taken(self.reads.without_lease))

    def on_leadership(self, leads: bool, term: int) -> None:
        """Hear that this member has begun or ceased to lead.

        A new leader takes the lease as soon as it may: there may be messages to deliver.
        """
        del term
        self.reads.only_commits = False
        self._acquisition.on_leadership(leads)
        if self._has_work():
            self._host.wake(urgent=True)

    def noop_applied(self) -> None:
        """Have a turn for what waits for the lease: an entry of the group's own is applied."""
        if self._has_work():
            self._host.wake(urgent=True)

    def _observe_lease(self, stored: bytes | None) -> None:
        """Hear that a lease is applied. It may be another node's, or this one's next."""
        if not self._lease_holder.applied(stored):
            self.stop_serving()

    def _observe_descriptor(self, stored: bytes | None) -> None:
        """Take the bounds that are applied. Calls that wait for keys outside of them are told.

        Calls that are evaluated, or evaluated again, find out by themselves.
        """
        self.bounds.take(decode_descriptor(stored, self.range_id))
        self.state.arriving = None
        self._cache.clear()
        waiting, long = self.waiting, self.reads.long
        for call in [call for line in waiting.lines.values() for call in line] + list(long):
            waits = call.token is not None and not waiting.is_looked_at_later(call)
            if waits or call in long:
                wrong = self.bounds.refusal(call.request)
                if wrong is not None:
                    self._give_up(call, wrong)

    def _give_up(self, call: Call, error: Error) -> None:
        """End a call that waits, without having changed anything."""
        if type(call.request) is CommitTransaction:
            self.commit_waits.refuse(call, error)
        else:
            self.reads.cancel(call)
            call.complete(None, error)

    # --- the end of serving

    def hand_over(self, done: Callable[[], None]) -> None:
        """Stop serving, so that a successor can begin at once; see :mod:`.lease`."""
        self.reads.only_commits = False
        self._acquisition.hand_over(done)

    def resume(self) -> None:
        """Serve again, since no successor took over."""
        self.reads.only_commits = False
        self._acquisition.resume()

    def stop_serving(self) -> None:
        """Stop using this lease, and send those that wait elsewhere."""
        met = self.intents.take_waiting()
        if self._lease_holder.end():
            self._host.on_serving(False)
            self.memory.end()
        reads = self.reads
        reads.only_commits = False
        waited = dict.fromkeys(
            (*self.waiting.clear(), *met, *taken(reads.blocked), *self._abandon())
        )
        self._answers.refuse([call for call in waited if call not in reads.without_lease])

    def _abandon(self) -> list[Call]:
        """Give up what goes over several turns: under another lease it would be something else."""
        reading = taken(self.reads.long)
        self.reads.before = 0
        return [*reading, *self._evaluator.abandon()]

    def _refuse_waiting(self) -> None:
        """Send those that wait elsewhere, unless this member is to lead in a moment."""
        if self.group.is_about_to_lead:
            return
        waiting = (*taken(self._clients), *taken(self._upkeep), *taken(self.reads.without_lease))
        for call in waiting:  # a commit may have been put in line after the lease had ended
            self.commit_waits.given_up(call.request)
        self._answers.refuse(waiting)

    def refuse_commit(self, call: Call, error: Exception) -> None:
        """End a commit that waits for an intent, without having changed anything."""
        if id(call.request) in self.commit_waits.calls:
            self.commit_waits.refuse(call, error)
        else:
            call.complete(None, error)

    def fail_all(self, error: Error) -> None:
        """Answer every call that waits, or will come, with ``error``: the node stops."""
        self.failed = error
        self.reads.is_stopped, self.reads.only_commits = True, False
        waited = dict.fromkeys((*self.waiting.clear(), *self.intents.take_waiting()))
        reads = self.reads
        for calls in (self._clients, self._upkeep, reads.without_lease, reads.blocked):
            waited |= dict.fromkeys(taken(calls))
        waited |= dict.fromkeys(self._abandon())
        self.memory.end()
        for call in waited:
            call.complete(None, error)


def take_turn(replicas: Iterable[Replica]) -> None:
    """Make one proposal of what waits at each of ``replicas``, unless one is under way."""
    replicas = list(replicas)
    now = replicas[0].reading() if replicas else 0
    begun = [replica for replica in replicas if replica.begin(now)]
    evaluated: list[tuple[Replica, Batch]] = []
    for replica in begun:
        batch = replica.evaluate()
        if batch is not None:
            evaluated.append((replica, batch))
    for replica, batch in evaluated:
        replica.complete(batch)
    for replica in [replica for replica, batch in evaluated if replica.propose(batch)]:
        replica.conclude()
