"""One node's replica of a range: evaluate, propose, apply, and serve reads under the lease.

::

    submit ─┬─ read ────── applied state, at once (or after what it must wait for)
            └─ command ─── queue ── evaluate ── propose ──▶ group ──▶ apply ──▶ done
                            all that wait, in order,      replicated   raw writes, applied
                            into one proposal                          index, in one write set

A turn reads and evaluates a bounded number of steps (:mod:`.evaluation`): what has more to do goes
on with the next one. Reads are :mod:`.local_reads`; when the lease is asked for and given back is
:mod:`.lease_acquisition`. What clients hold in memory, and what frees it, is :mod:`.releases`; what
those are told whose requests are not done here is :mod:`.refusals`.

Everything is synchronous and called by the node, one call at a time: ``submit`` and ``cancel`` by
whoever brings requests, ``evaluate`` once a turn, the ``state`` by the group. At most one proposal
is under way; what arrives meanwhile goes together into the next one (:mod:`.batch`). That is the
whole concurrency control inside a range: no latches, no threads. What must wait for something
stands in line for it (:mod:`.waiting`); what transactions hold in memory ends with them, with their
time, or with their client (:mod:`.holders`).

Invariants:

* An answer leaves only after the proposal that it speaks of is applied and durable, errors
  included: an error may tell of a write that another request of the same proposal made.
* The applied index is written with the state that it describes.
* It serves only while it leads and the lease is its own (:mod:`.lease_holder`), with fresh memory.
* A command evaluated under one lease has no effect under another one.
* A lease is asked for only when every entry of earlier leaders is applied: the last one is known.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom import limits
from postroom.errors import Error
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Engine, WriteSet
from postroom.raft.group import RaftGroup
from postroom.raft.outcome import ProposalOutcome
from postroom.ranges import lease as leases
from postroom.ranges.batch import Batcher, Refusal
from postroom.ranges.calls import Call, LeasedWrites, Proposal, Result
from postroom.ranges.commit_waits import CommitWaits
from postroom.ranges.deadlines import earlier
from postroom.ranges.evaluation import MustWait
from postroom.ranges.fair_calls import taken
from postroom.ranges.fresh_memory import FreshMemory
from postroom.ranges.holders import Holders
from postroom.ranges.host import Host
from postroom.ranges.lease_acquisition import LeaseAcquisition
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.local_reads import LocalReads
from postroom.ranges.refusals import Refusals
from postroom.ranges.registry import Registry
from postroom.ranges.releases import Releases
from postroom.ranges.requests import CommitTransaction, ReleaseLocks
from postroom.ranges.spent import Spent
from postroom.ranges.state import RangeState
from postroom.ranges.together import evaluate_together
from postroom.ranges.waiting import Line


class Replica:
    """See the module.

    Args:
        range_id: which range.
        node_id: whose replica; the holder of its leases.
        stored: the node's engine.
        clock: the node's clock.
        registry: what the range can do.
        host: the node.

    Attributes:
        state: the state machine of the replica's group.
        failed: what everybody is told, once the node has stopped.
        holders: the transactions that hold something in this leaseholder's memory.
        memory: what it keeps as leaseholder.
        waiting: the requests that are in line for something.
        try_get: see :meth:`.LocalReads.try_get`.
        is_used_up, charge: see :class:`.LocalReads`.
        wake, release_*, holds_for, clients_that_hold: see :class:`.Releases`.
        commit_waits: the locks, and the commits that wait for them.
        complete: the third part of ``evaluate``, see :mod:`.together`.
        on_room: called with each turn: there is room for reads again.
    """

    # Too many for instances to share their layout: as slots they are found at once.
    __slots__ = (
        "__weakref__", "_acquisition", "_batcher", "_cache", "_clock", "_evaluators", "_host",
        "_lease_holder", "_lease_key", "_proposal", "_queue", "_reads", "_refusals", "_releases",
        "_spent", "_stored", "_unwritten", "_upkeep", "charge", "clients_that_hold", "commit_waits",
        "complete", "failed", "group", "holders", "holds_for", "is_used_up", "memory", "node_id",
        "on_room", "range_id", "registry", "release_client", "release_expired", "release_locks",
        "state", "try_get", "waiting", "wake",
    )  # fmt: skip

    def __init__(
        self,
        range_id: int,
        node_id: int,
        stored: Engine,
        clock: HybridLogicalClock,
        registry: Registry,
        host: Host,
    ) -> None:
        self.range_id = range_id
        self.node_id = node_id
        self.registry = registry
        self._evaluators = registry.reads
        self.failed: Error | None = None
        self._stored = stored
        self._clock = clock
        self._host = host
        self._lease_key = keys.record_key(range_id, leases.LEASE_RECORD)
        lease = leases.decode(stored.get(self._lease_key))
        self._lease_holder = LeaseHolder(node_id, lease, clock, host.monotonic, host.lease_seconds)
        self._cache = Cache(stored, host.values_bytes)
        self._reads = LocalReads(stored, self._cache, clock, registry, self._lease_holder, host)
        self._refusals = Refusals(node_id, lambda: self.group.leader, host)
        self._reads.translate = self._refusals.elsewhere_if_damaged
        self.try_get = self._reads.try_get
        self.is_used_up, self.charge = self._reads.is_used_up, self._reads.charge
        self.waiting = self._reads.waiting
        self._batcher = Batcher(range_id, registry, self._cache, clock, self._lease_holder)
        self._queue, self._upkeep = self._batcher.queue, self._batcher.upkeep
        self.complete = self._batcher.complete
        self.state = RangeState(range_id, stored, self._cache, registry, self._lease_holder, self)
        self.holders = Holders(host.monotonic, lambda _: host.wake(urgent=False))
        lease_holder = self._lease_holder
        self.memory = FreshMemory(registry, stored, self._cache, self.holders, host, lease_holder)
        self._releases = Releases(registry, self.holders, self.waiting, self._committing)
        self.wake = self._releases.wake
        self.release_locks = self._releases.release_locks
        self.release_expired = self._releases.release_expired
        self.release_client = self._releases.release_client
        self.holds_for = self._releases.holds_for
        self.clients_that_hold = self._releases.clients_that_hold
        self.commit_waits = CommitWaits(
            self._reads, self.holders, host, self._queue, self.release_locks
        )
        self._proposal: Proposal | None = None
        self._unwritten: Proposal | None = None
        self._spent = Spent()
        self._acquisition = LeaseAcquisition(self._lease_holder, host, self)
        self.on_room: Callable[[], None] = lambda: None
        registry.observers[self._lease_key] = self._observe_lease
        self.group: RaftGroup

    # --- what others ask

    def submit(self, call: Call) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""
        request = call.request
        evaluator = self._evaluators.get(type(request))
        if self.failed is not None:
            call.complete(None, self.failed)
        elif evaluator is not None:
            self._reads.read(call, evaluator)
        elif type(request) is ReleaseLocks:
            self.release_locks(request.transaction_id)
            call.complete(None, None)
        else:
            (self._queue if call.urgent else self._upkeep).append(call)
            if self._proposal is None:  # else the end of it wakes
                self._host.wake(urgent=call.urgent)

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; false if it is too late for that."""
        call.cancelled = True
        return self._reads.cancel(call)

    def _committing(self) -> set[bytes]:
        """The transactions whose commits are under way."""
        proposal = self._proposal
        calls = self._batcher.under_evaluation()
        if proposal is not None:
            calls = [call for call, _, _ in proposal.results]
        return {
            call.request.transaction_id for call in calls
            if type(call.request) is CommitTransaction
        }  # fmt: skip

    def refuse(self, refusal: Refusal | None) -> None:
        """Refuse some requests from now on; ``None``: none."""
        self._batcher.refusal = refusal

    @property
    def waiting_for(self) -> dict[object, Line]:
        """The requests that wait, by token, in the order in which they will be answered."""
        return self.waiting.lines

    def sizes(self) -> dict[str, int]:
        """How much is kept in memory for clients: in the end nothing, but cancelled deadlines."""
        sizes = {name: size() for name, size in self.registry.sizes.items()}
        sizes |= {"holders": len(self.holders), "deadlines": self.holders.entries}
        blocked = len(self._reads.blocked) + len(self._reads.without_lease)
        return sizes | {"parked": len(self.waiting), "blocked": blocked}

    @property
    def last_commit(self) -> int:
        """The timestamp of the last commit that is applied."""
        return self._reads.last_commit

    @property
    def serves(self) -> bool:
        """Whether this replica answers reads now, and evaluates commands."""
        return self._lease_holder.serves(self._clock.reading())

    @property
    def rests(self) -> bool:
        """Whether it only reads, and has written nothing since it was started."""
        return self._lease_holder.resting

    @property
    def lease(self) -> leases.Lease:
        """The lease that is applied here, whoever holds it."""
        return self._lease_holder.lease

    # --- a turn: evaluate what waits

    def wants_turn(self) -> bool:
        """Whether ``evaluate`` would have something to do."""
        if self._proposal is not None:
            return False
        if self._queue.arrived and self._lease_holder.has_lease:
            return True  # as a rule, if there is anything
        if not self._has_work():
            return self._acquisition.hands_over
        return (
            self._lease_holder.has_lease or self._acquisition.hands_over
            or not self._acquisition.must_wait()
        )  # fmt: skip

    def _has_work(self) -> bool:
        queue, upkeep, reads = self._queue, self._upkeep, self._reads
        return bool(
            queue.arrived or queue.by_owner or upkeep.arrived or upkeep.by_owner
            or reads.without_lease.kept or self._acquisition.wanted or reads.long.kept
            or self._batcher.before or self._batcher.is_behind
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """When a turn has something to do without being woken; ``None``: never."""
        first = self.holders.next_deadline()
        if self.commit_waits.calls:
            first = earlier(first, self.commit_waits.next_deadline())
        if self._lease_holder.has_lease:  # it is asked for, and given back, when woken
            return first
        return earlier(first, self._lease_deadline())

    def _lease_deadline(self) -> float | None:
        """When this leader may ask for the lease."""
        is_idle = self._proposal is not None or not self._has_work()
        return None if is_idle else self._acquisition.deadline()

    def evaluate(self) -> None:
        """Turn what waits into one proposal, unless one is under way."""
        evaluate_together((self,))

    def begin_turn(self) -> bool:
        """The first part of ``evaluate``: reads, and the lease. Whether there is more to do.

        It may answer calls; nothing of the others does, up to ``conclude``.
        """
        reads = self._reads
        reads.begin_turn()
        if (reads.long.kept or reads.without_lease.kept) and self._may_read():
            reads.go_on_first(self._submit_again)
        self.on_room()
        if self.commit_waits.calls or self._spent.left:
            self._tidy_up()
        if not self.wants_turn():
            return False
        if not self.group.is_leader:
            self._turn_away()
        elif self._acquisition.hands_over:
            self._acquisition.give_back()
        elif not self._may_read():
            if not self._rest():
                self._acquisition.ask()
        else:
            if reads.offers:
                reads.take_offers()
            if reads.without_lease.kept or reads.long.kept:
                reads.go_on(self._submit_again)
            queue, upkeep = self._queue, self._upkeep
            return bool(
                queue.arrived or queue.by_owner or upkeep.arrived or upkeep.by_owner
                or self._batcher.before or self._batcher.is_behind
            )  # fmt: skip
        return False

    def _may_read(self) -> bool:
        """Return whether reads that wait may go on. A store that rests has to write first."""
        return self._lease_holder.serves(self._clock.reading()) and not (
            self._lease_holder.resting and self._wants_to_write()
        )

    def evaluate_requests(self) -> None:
        """The second part: what waits. The third one is ``complete``."""
        self._batcher.evaluate(self._reads.last_commit)

    def propose(self) -> bool:
        """The last part but one: propose what was evaluated. Whether there is only something to
        tell.
        """
        proposal = self._batcher.propose(self._reads.last_commit)
        self._reads.before = self._batcher.before
        if proposal is None:
            self._host.wake(urgent=True)
            return False
        if not proposal.command.writes:
            self._unwritten = proposal
            return True
        self._start(proposal)
        return False

    def conclude(self) -> None:
        """The last part: there was nothing to write."""
        proposal, self._unwritten = self._unwritten, None
        assert proposal is not None
        self._tell(proposal.results, proposal.after)
        self._go_on_after_proposal()

    def _tidy_up(self) -> None:
        self.commit_waits.expire()
        self._spent.go_on()
        if self._spent.left:
            self._host.wake(urgent=False)

    def _wants_to_write(self) -> bool:
        return bool(self._queue or self._upkeep or self._acquisition.wanted)

    def _go_on_after_proposal(self) -> None:
        if self._reads.blocked:
            self._submit_again(taken(self._reads.blocked))
        if self.wants_turn():
            reads = self._reads
            is_urgent = self._queue or reads.without_lease or reads.long or self._batcher.is_behind
            self._host.wake(urgent=bool(is_urgent))

    def _rest(self) -> bool:
        """Read under the lease of an earlier life, until there is something to write."""
        if self._queue or self._upkeep or not self._acquisition.rest():
            return False
        self._reads.last_commit = self._clock.read()
        return True

    def wake_up(self) -> None:
        """There is something to do: do not rest any longer."""
        self._acquisition.wanted = True
        self._host.wake(urgent=False)

    # --- the lease

    def propose_lease(self, lease: leases.Lease, after: Callable[[], None], until: float) -> None:
        """Have the group agree on ``lease``; ``after`` is called when it is applied."""
        command = LeasedWrites(self.lease.sequence, {self._lease_key: leases.encode(lease)})
        self._start(Proposal(command, [], [after], self.last_commit, until))

    def begin_with_fresh_memory(self) -> None:
        """Serve under a new lease: memory starts afresh from what is stored."""
        self._reads.last_commit = self._lease_holder.begin()
        self._acquisition.wanted = False
        self.memory.begin()
        self.serve_again()

    def serve_again(self) -> None:
        """Those that have waited for the lease have their turn."""
        self._submit_again(taken(self._reads.without_lease))

    # --- serving no longer

    def hand_over(self, done: Callable[[], None]) -> None:
        """Serve no longer, so that a successor can begin at once; see :mod:`.lease_acquisition`."""
        self._acquisition.hand_over(done)

    def resume(self) -> None:
        """Nobody took over: serve again."""
        self._acquisition.resume()

    def stop_serving(self) -> None:
        """This lease is not used any more, and whoever waits is sent elsewhere."""
        if self._lease_holder.end():
            self._host.on_serving(False)
            self.memory.end()
        waited = dict.fromkeys(
            (*self.waiting.clear(), *taken(self._reads.blocked), *self._given_up())
        )
        self._refusals.turn_away([call for call in waited if call not in self._reads.without_lease])

    def _given_up(self) -> list[Call]:
        """What goes over several turns: under another lease it would be something else."""
        reading = taken(self._reads.long)
        self._reads.before = 0
        return [*reading, *self._batcher.abandon()]

    def on_leadership(self, leads: bool, term: int) -> None:
        """This member has begun or ceased to lead. A new leader takes the lease as soon as it may:
        there may be messages to deliver.
        """
        del term
        self._acquisition.on_leadership(leads)
        if self._has_work():
            self._host.wake(urgent=True)

    def _start(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._reads.proposal_started(proposal.command.writes)
        self.group.propose(proposal.packed or proposal.command, proposal, self._ended)

    # --- after a turn: what was proposed has ended

    def _ended(self, outcome: ProposalOutcome) -> None:
        proposal = self._proposal
        assert proposal is not None
        applied = outcome is ProposalOutcome.APPLIED and not proposal.rejected
        if applied:
            # First of all: who reads beside us takes cached values once nothing is in flight.
            for hear in (self._cache.wrote, *self.registry.on_written):
                hear(proposal.command.writes)
        self._proposal = None
        self._reads.proposal_ended()
        if len(proposal.command.writes) > limits.COMPLETED_AT_ONCE_MAX:
            self._spent.add(proposal.command.writes)
        if applied:
            self._reads.last_commit = proposal.last_commit
            if proposal.lease_until:
                self._lease_holder.granted(proposal.lease_until)
            self._tell(proposal.results, proposal.after, proposal.command.writes)
        else:
            # Memory holds what was evaluated, and if the outcome is unknown it may be applied yet,
            # below what a read would be served at: not under this lease.
            self.stop_serving()
            self._acquisition.wanted = self.group.is_leader
            self._refusals.fail(proposal, outcome)
        self._go_on_after_proposal()

    def _tell(
        self, results: list[Result], after: list[Callable[[], None]], wrote: WriteSet | None = None
    ) -> None:
        for act in after:
            act()
        if wrote and self.waiting.lines:
            for look in self.registry.on_applied:
                look(wrote)
        waiting = self.commit_waits.calls
        for call, answer, error in results:
            if type(error) is MustWait:
                self.commit_waits.park(call)
                continue
            if type(call.request) is CommitTransaction:
                self.release_locks(call.request.transaction_id)
            told = None if error is None else self._refusals.elsewhere_if_damaged(error)
            call.complete(answer, told)
            if waiting and type(call.request) is CommitTransaction:
                self.commit_waits.answered(call)

    def _turn_away(self) -> None:
        waiting = (*taken(self._queue), *taken(self._upkeep), *taken(self._reads.without_lease))
        self._refusals.turn_away(waiting)

    def fail_all(self, error: Error) -> None:
        """Answer everything that waits, or will come, with ``error``: the node stops."""
        self.failed = error
        self._reads.is_stopped = True
        waited = dict.fromkeys(self.waiting.clear())
        for calls in (self._queue, self._upkeep, self._reads.without_lease, self._reads.blocked):
            waited |= dict.fromkeys(taken(calls))
        waited |= dict.fromkeys(self._given_up())
        self.memory.end()
        for call in waited:
            call.complete(None, error)

    def _submit_again(self, calls: list[Call]) -> None:
        for call in calls:
            if not call.cancelled:
                self.submit(call)

    # --- what the group has applied

    def noop_applied(self) -> None:
        """An entry of the group's own is applied; what waits for the lease may have a turn."""
        if self._has_work():
            self._host.wake(urgent=True)

    def _observe_lease(self, stored: bytes | None) -> None:
        """A lease is applied. It may be another node's, or this one's next."""
        if not self._lease_holder.applied(stored):
            self.stop_serving()
