"""One node's replica of a range: what it does with requests, in its turns, and with proposals.

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
others but through the data that it is given; this module hands the data on. :mod:`.assembly` makes
them. The replica asks for the lease and gives it back (:mod:`.lease`, :mod:`.serving`).

Everything is synchronous and called by the node, one call at a time: ``submit`` and ``cancel`` for
requests, a turn (``take_turn``), the ``state`` by the group. At most one proposal is under way.
Commands that arrive meanwhile go together into the next one. This is the whole concurrency control
inside a range: no latches, no threads. A call that must wait for something stands in line for it
(:mod:`.waiting`). Transactions hold locks and claims in memory until they end, their time is over,
or their client has gone (:mod:`.memory`).

Invariants:

* An answer leaves only after the proposal that it speaks of is applied and durable.
* The applied index is written with the state that it describes.
* It serves only while it leads and the lease is its own (:mod:`.lease`), with fresh memory.
* A command evaluated under one lease has no effect under another one.
* A lease is asked for only when every entry of earlier leaders is applied: the last one is known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from postroom import limits
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Engine
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges import lease as leases
from postroom.ranges.admission import REQUESTS_AT_ONCE, RefusedCalls
from postroom.ranges.assembly import AssembledReplica
from postroom.ranges.batch import Batch, commits
from postroom.ranges.calls import Call, Proposal
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.ports import Host, Onlooker, ServiceWakeUp
from postroom.ranges.requests import ReleaseLocks
from postroom.ranges.slow_log import SlowLog
from postroom.ranges.usual import Share
from postroom.ranges.waiting import Line, earlier

_log: Final = logging.getLogger(__name__)


class Replica(AssembledReplica):
    """A replica of a range; see the module.

    Attributes:
        on_room: called with each turn, when there is room for reads again.
        complete: a stage of a turn, see :mod:`.turn`.
        slow_log: the log of slow calls.
        onlookers: the functions that see each request first, usually none.
        begin_anew, fail_all, hand_over, on_leadership, refuse_commit, resume, rouse, stop_serving,
            wake_up: see :class:`.Serving`.
    """

    __slots__ = (
        "_evaluators", "_unwritten", "begin_anew", "complete", "fail_all", "hand_over",
        "on_leadership", "on_room", "onlookers", "refuse_commit", "resume", "rouse", "slow_log",
        "stop_serving", "wake_up",
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
        super().__init__(range_id, node_id, stored, clock, host, watched)
        self.on_room: Callable[[], None] | None = None
        self.complete = self.proposer.complete
        self._evaluators = self.registry.reads
        self._unwritten: Proposal | None = None
        self.onlookers: list[Onlooker] = []
        self.slow_log = SlowLog(host.monotonic, self.onlookers)
        serving = self.serving
        self.begin_anew, self.fail_all = serving.begin_anew, serving.fail_all
        self.hand_over, self.resume = serving.hand_over, serving.resume
        self.on_leadership, self.refuse_commit = serving.on_leadership, serving.refuse_commit
        self.rouse, self.wake_up = serving.rouse, serving.wake_up
        self.stop_serving = serving.stop_serving

    # --- requests

    def submit(self, call: Call) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""
        if self.onlookers:
            call = self._seen(call)
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
            bounds, transactions = self.bounds, self.transactions
            if (
                not bounds.is_whole and call.within is not bounds.descriptor
                and bounds.refusal_of(call) is not None
                and transactions is not None and transactions.takes(call)
            ):  # fmt: skip
                return
            if call.urgent:
                self.clients.append(call)
            else:
                self.reads.only_commits = False
                self.upkeep.append(call)
            if self.proposal is None:  # else the end of it wakes
                self.host.wake(urgent=call.urgent)

    def submit_commit(self, call: Call) -> bool:
        """Take a commit of a client, and return true. Any thread may do so, without a lock.

        If the range has split meanwhile, and does not contain all that the commit concerns, the
        commit is refused when its turn comes.
        """
        if self.onlookers:
            call = self._seen(call)
        if self.failed is not None:
            call.complete(None, self.failed)
            return True
        self.clients.append(call)
        if self.proposal is None:  # else the end of it wakes
            self.host.wake(urgent=True)
        return True

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; return false if it is too late for that."""
        call.cancelled = True
        return self.reads.cancel(self.slow_log.taken_out(call))

    def _seen(self, call: Call) -> Call:
        for see in (*self.onlookers,):
            call = see(self, call)
        return call

    def resize_cache(self, bytes_max: int) -> None:
        """Have a cache of values of another size, which is empty at first."""
        self.cache.resize(bytes_max)

    def refuse(self, refusal: RefusedCalls | None) -> None:
        """Refuse some requests from now on; ``None``: none."""
        self.reads.only_commits = False
        self.admission.refusal = refusal

    def committing(self) -> set[bytes]:
        """Return the transactions whose commits are under way."""
        if self.proposal is not None:
            return commits([call for call, _, _ in self.proposal.results])
        return commits(self.evaluator.under_evaluation())

    def hurries(self) -> bool:
        """Return whether a request, or an answer, waits for the result of upkeep."""
        return bool(self.waiting.lines or self.memory.held)

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
        return self.lease_holder.serves(self.clock.reading())

    def descriptors(self) -> list[RangeDescriptor]:
        """Return the descriptor that is applied, and that of a snapshot being put in place."""
        arriving = self.state.arriving
        return [self.bounds.descriptor, *([] if arriving is None else [arriving])]

    @property
    def rests(self) -> bool:
        """Return whether it only reads, and has written nothing since it was started."""
        return self.lease_holder.resting

    @property
    def lease(self) -> leases.RangeLease:
        """Return the lease that is applied here, with any holder."""
        return self.lease_holder.lease

    # --- when it wants a turn

    def wants_turn(self) -> bool:
        """Return whether a turn would have something to do."""
        if self.proposal is not None:
            return False
        if self.clients.arrived and self.lease_holder.has_lease:
            return True  # usually, if there is work at all
        if self.reads.only_commits:
            return bool(self.clients.by_owner)
        if not self.has_work():
            return self.acquisition.hands_over
        return (
            self.lease_holder.has_lease or self.acquisition.hands_over
            or not self.acquisition.must_wait()
        )  # fmt: skip

    def has_work(self) -> bool:
        """Return whether something waits, whoever has the lease."""
        clients, upkeep, reads = self.clients, self.upkeep, self.reads
        return bool(
            clients.arrived or clients.by_owner or upkeep.arrived or upkeep.by_owner
            or reads.without_lease.kept or self.acquisition.wanted or reads.long.kept
            or self.evaluator.batch or self.evaluator.is_behind
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """Return when a turn has something to do without being woken; ``None``: never."""
        first = self.holders.rings_at
        if self.commit_waits.calls:
            first = earlier(first, self.commit_waits.next_deadline())
        if self.evaluator.put_off:
            first = earlier(first, self.evaluator.next_deadline())
        if self.lease_holder.has_lease:  # it is asked for, and given back, when woken
            return first
        return earlier(first, self._lease_deadline())

    def _lease_deadline(self) -> float | None:
        """Return when this leader may ask for the lease."""
        is_idle = self.proposal is not None or not self.has_work()
        return None if is_idle else self.acquisition.deadline()

    # --- a turn (:mod:`.turn`)

    def turn(self) -> None:
        """Take a turn alone, as :mod:`.turn` does for several replicas."""
        if self.begin(self.clock.reading()):
            batch = self.evaluate()
            if batch is not None:
                self.complete(batch)
                if self.propose(batch):
                    self.conclude()

    def reading(self) -> int:
        """Return about now, by the node's clock."""
        return self.clock.reading()

    def begin(self, now: int) -> bool:
        """Begin a turn at about ``now``, and return whether there is something to evaluate.

        The end of a proposal notes whether commits of clients are all that there is to do. Whatever
        adds something else takes that back (``reads.only_commits``). Until then a turn asks for
        nothing else.
        """
        reads, clients, rings_at = self.reads, self.clients, self.holders.rings_at
        if not reads.only_commits or (
            rings_at is not None and rings_at <= self.host.monotonic()
        ):  # fmt: skip
            return self.begin_turn()
        if clients.arrived or clients.by_owner:
            # A member that has ceased to lead has no lease.
            if self.proposal is not None or not self.lease_holder.serves(now):
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
            reads.go_on_first(self.submit_again)
        if self.on_room is not None:
            self.on_room()
        rings_at = self.holders.rings_at
        if (
            self.commit_waits.calls or self.freeing.left
            or (rings_at is not None and rings_at <= self.host.monotonic())
        ):  # fmt: skip
            self._tidy_up()
        if not self.wants_turn():
            return False
        if not self.group.is_leader:
            self.serving.refuse_waiting()
        elif self.acquisition.hands_over:
            self.acquisition.give_back()
        elif not self._may_read():
            self.serving.rest_or_ask()
        else:
            return self._read_on()
        return False

    def _read_on(self) -> bool:
        """Do the reads that have waited for a turn; return whether there is more to evaluate."""
        reads, evaluator = self.reads, self.evaluator
        if reads.offers:
            reads.take_offers()
        if reads.without_lease.kept or reads.long.kept:
            reads.go_on(self.submit_again)
        if reads.has_overdue() and not evaluator.batch:
            self.host.wake(urgent=True)
            return False
        clients, upkeep = self.clients, self.upkeep
        return bool(
            clients.arrived or clients.by_owner or upkeep.arrived or upkeep.by_owner
            or evaluator.batch or evaluator.is_behind
        )  # fmt: skip

    def _may_read(self) -> bool:
        """Return whether reads that wait may go on. A store that rests has to write first."""
        return self.lease_holder.serves(self.clock.reading()) and not (
            self.lease_holder.resting and self._wants_to_write()
        )

    def evaluate(self) -> Batch | None:
        """Evaluate what waits into a batch; ``None``: it was usual, and is proposed."""
        evaluator, way, reads = self.evaluator, self.usual_way, self.reads
        taken: list[Call] = []  # by the usual way, if that cannot evaluate them
        if way is not None and (
            reads.only_commits or (evaluator.is_at_rest and self.admission.is_plain)
        ):
            try:
                usual = way.propose(
                    self.clients.taken(), taken, reads.last_commit, self._share_of_clients()
                )
            except Exception:  # the calls that were taken must not be lost
                _log.critical(
                    "the usual way failed: all proposals take the general way from now on, until "
                    "the store is opened again; please report this", exc_info=True,
                )  # fmt: skip
                self.usual_way = None
            else:
                if type(usual) is Proposal:
                    self.start(usual)
                    return None
                reads.only_commits = False
                if type(usual) is Batch:
                    return evaluator.take_up(usual)
        reads.only_commits = False
        return evaluator.evaluate(reads.last_commit, taken)

    def _share_of_clients(self) -> Share:
        """Return the part of the next proposal that is for clients, who come first."""
        if not (self.upkeep.arrived or self.upkeep.by_owner):
            return Share(limits.PROPOSAL_BYTES_MAX, limits.TURN_STEPS_MAX, is_all=True)
        (_, room_bytes, room_steps), *_ = self.admission.shares()
        return Share(room_bytes, room_steps, is_all=False)

    def propose(self, batch: Batch) -> bool:
        """Propose a batch; return whether it writes nothing, and there are only results to tell."""
        proposal = self.proposer.propose(batch, self.reads.last_commit)
        if proposal is None:
            self._go_on_with(batch)
            return False
        self.evaluator.batch = None
        self.reads.before = 0
        if batch.failure is not None:
            self._forget_evaluated()
        if batch.failure is None:
            self.admission.requests_max = REQUESTS_AT_ONCE
        writes = proposal.command.writes
        if not writes and proposal.command.sums is None:
            self._unwritten = proposal
            return True
        if self.evaluator.checks.current:
            self.evaluator.checks.hear(writes)
        self.start(proposal)
        return False

    def _go_on_with(self, batch: Batch) -> None:
        """Go on with a batch in the next turn, or with half of it if it is too large."""
        if batch.is_too_large:
            self.evaluator.batch = None
            self.reads.before = 0
            self.admission.take_back(batch.results)
            self._forget_evaluated()
        else:
            # RangeReads do not see its writes, and not a timestamp at which they may be.
            self.reads.before = self.reads.before or batch.ctx.began - 1
        self.host.wake(urgent=True)

    def _forget_evaluated(self) -> None:
        """Forget the intents of a batch of which no proposal comes."""
        if self.intents.has_changed:
            self.intents.restart(self.stored)

    def conclude(self) -> None:
        """Tell the results of a proposal that writes nothing."""
        proposal, self._unwritten = self._unwritten, None
        assert proposal is not None
        self.answers.tell(proposal.results, proposal.after)
        self._go_on_after_proposal()

    def _tidy_up(self) -> None:
        """End what has lasted for too long, and free a part of what is needed no more."""
        self.release_expired()
        self.commit_waits.expire()
        self.freeing.go_on()
        if self.freeing.left:
            self.host.wake(urgent=False)

    def _wants_to_write(self) -> bool:
        return bool(self.clients or self.upkeep or self.acquisition.wanted)

    # --- a proposal: from its start to its end

    def start(self, proposal: Proposal) -> None:
        """Offer a proposal to the group."""
        if self.slow_log.timed:
            self.slow_log.proposes(proposal)
        command = proposal.command
        self.proposal = proposal
        self.reads.proposal_started(command.writes)
        self.group.propose(proposal.packed or command, proposal, self._ended)

    def _ended(self, outcome: ProposalOutcome) -> None:
        """Answer the calls of the proposal, which is applied, void, or of unknown outcome."""
        proposal = self.proposal
        assert proposal is not None
        writes = proposal.command.writes
        applied = outcome is ProposalOutcome.APPLIED and not proposal.rejected
        if applied:
            # First of all: a thread that reads beside us takes cached values once nothing is in
            # flight.
            self.cache.wrote(writes)
            for hear in self.registry.on_written:
                hear(writes)
        self.proposal = None
        self.reads.proposal_ended()
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.freeing.add(writes)
        if applied:
            self.reads.last_commit = proposal.last_commit
            if proposal.lease_until:
                self.serving.granted(proposal.lease_until)
            self.answers.tell(proposal.results, proposal.after, writes)
        else:
            # Memory has what was evaluated, and if the outcome is unknown it may be applied yet,
            # below the timestamp of a read: not under this lease.
            self.stop_serving()
            self.acquisition.wanted = self.group.is_leader
            self.answers.fail(proposal, outcome)
        self._go_on_after_proposal()

    def _go_on_after_proposal(self) -> None:
        if self.reads.only_commits:
            if self.clients.arrived or self.clients.by_owner:
                self.host.wake(urgent=True)
            return
        if self.time_share.since is not None:
            self.time_share.end()
        if self.reads.blocked:
            self.submit_again(self.reads.take_blocked())
        if self.wants_turn():
            reads = self.reads
            is_urgent = (
                self.clients or reads.without_lease or reads.long or self.evaluator.is_behind
            )
            self.host.wake(urgent=bool(is_urgent))
        self.reads.only_commits = self.has_only_commits()

    def has_only_commits(self) -> bool:
        """Return whether a turn would have nothing to do but commits of clients."""
        reads, upkeep, acquisition = self.reads, self.upkeep, self.acquisition
        return (
            self.on_room is None and self.failed is None and self.lease_holder.has_lease
            and self.evaluator.is_at_rest and self.admission.is_plain
            and not (
                upkeep.arrived or upkeep.by_owner or reads.without_lease.kept or reads.long.kept
                or reads.blocked or acquisition.wanted or acquisition.hands_over
                or self.commit_waits.calls or self.freeing.left
            )
        )  # fmt: skip

    def read_at(self, call: Call, at: int) -> None:
        """Read at a timestamp, unless the call was cancelled."""
        if not call.cancelled:
            self.reads.read_at(call, at)

    def submit_again(self, calls: list[Call]) -> None:
        """Take requests again that have waited."""
        for call in calls:
            if not call.cancelled:
                self.submit(call)
