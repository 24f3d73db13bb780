"""One node's replica of a range: evaluate, propose, apply, and serve reads under the lease.

::

    submit ─┬─ read ────── applied state, at once (or after what it must wait for)
            └─ command ─── queue ── evaluate ── propose ──▶ group ──▶ apply ──▶ done
                            all that wait, in order,      replicated   raw writes, applied
                            into one proposal                          index, in one write set

A turn reads and evaluates a bounded number of steps (:mod:`.evaluation`): what has more to do goes
on with the next one.

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
* It serves only while it leads and the lease is its own (:mod:`.tenure`), with fresh memory.
* A command evaluated under one lease has no effect under another one.
* A lease is asked for only when every entry of earlier leaders is applied: the last one is known.

Left out here: several ranges (intents, splits), reads on followers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import Any, Final, Protocol

from postroom.errors import CommitUnknown, Error, Unavailable
from postroom.kv import keys, versions
from postroom.kv.cache import ENTRY_BYTES_MAX, Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import BlockDamaged, Engine
from postroom.raft.group import Group
from postroom.raft.outcome import Outcome
from postroom.ranges import lease as leases
from postroom.ranges.batch import Batcher
from postroom.ranges.calls import Call, Command, NotLeaseholder, Proposal, Result
from postroom.ranges.evaluation import Blocked, MustWait, View
from postroom.ranges.fair_queue import FairQueue
from postroom.ranges.feed import TOKEN
from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry
from postroom.ranges.requests import CommitTransaction, Get, ReleaseLocks, Value
from postroom.ranges.state import RangeState
from postroom.ranges.tenure import Tenure
from postroom.ranges.waiting import Line, Waiting

_OFFERS_MAX: Final = 1000


class Host(Protocol):
    """What a replica asks of its node.

    Attributes:
        lease_seconds: how long a lease lasts, which is how long another node waits for it.
    """

    lease_seconds: float

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def may_rest(self) -> bool:
        """Whether a replica that is alone may only read, and write nothing before it must."""

    def on_serving(self, serves: bool) -> None:
        """The replica has begun to serve under a new lease, or will not serve under this one."""

    def wake(self, *, urgent: bool) -> None:
        """A turn is wanted: now, or within a moment."""

    def on_damage(self, error: BlockDamaged) -> bool:
        """Some of the data cannot be read; whether another node is to serve instead."""


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
        last_commit: the timestamp of the last commit that is applied.
        holders: the transactions that hold something in this leaseholder's memory.
        on_room: called with each turn: there is room for reads again.
    """

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
        self._reads = registry.reads
        self.failed: Error | None = None
        self._stored = stored
        self._clock = clock
        self._host = host
        self._monotonic = host.monotonic
        self._lease_key = keys.record_key(range_id, leases.LEASE_RECORD)
        lease = leases.decode(stored.get(self._lease_key))
        self._tenure = Tenure(node_id, lease, clock, host.monotonic, host.lease_seconds)
        self.last_commit = 0
        self._cache = Cache(stored)
        self._view = View(self._cache)
        self._batcher = Batcher(range_id, registry, self._cache, clock, self._tenure)
        self._queue, self._upkeep = self._batcher.queue, self._batcher.upkeep
        self.state = RangeState(range_id, stored, self._cache, registry, self._tenure, self)
        self.holders = Holders(host.monotonic, lambda _: host.wake(urgent=False))
        self._blocked: dict[Call, None] = {}
        self._without_lease: dict[Call, None] = {}
        self._waiting = Waiting(self._look_again)
        self._long_reads: dict[Call, Generator[None, None, Any]] = {}
        self._proposal: Proposal | None = None
        self._generation = 0
        self._offers: deque[tuple[int, bytes, bytes | None]] = deque(maxlen=_OFFERS_MAX)
        self._wants_lease = False
        self.on_room: Callable[[], None] = lambda: None
        self._hands_over: Callable[[], None] | None = None
        self._is_handing_over = False
        registry.observers[self._lease_key] = self._observe_lease
        self.group: Group

    # --- what others ask

    def submit(self, call: Call) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""
        request = call.request
        evaluator = self._reads.get(type(request))
        if self.failed is not None:
            call.complete(None, self.failed)
        elif evaluator is not None:
            self._read(call, evaluator)
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
        waited = call in self._blocked or call in self._without_lease
        self._blocked.pop(call, None)
        self._without_lease.pop(call, None)
        reading = self._long_reads.pop(call, None)
        if reading is not None:
            reading.close()
            waited = True
        if self._waiting.cancel(call):
            waited = True
            for give_up in self.registry.on_given_up:
                give_up(call.request)
        return waited

    def wake(self, tokens: list[object]) -> None:
        """What ``tokens`` stand for may be free: those who are first in line are evaluated."""
        for token in tokens:
            self._waiting.wake(token)

    def release_locks(self, transaction_id: bytes) -> None:
        """A transaction has ended: whoever waits for what it locked may go on."""
        self.holders.release(transaction_id)
        for release in self.registry.on_release:
            tokens = release(transaction_id)
            if tokens:
                self.wake(tokens)

    def release_client(self, client: bytes) -> None:
        """A client has gone: nothing is held for its transactions any more."""
        for transaction_id in self.holders.of(client):
            self.release_locks(transaction_id)

    def release_expired(self) -> None:
        """Nothing is held for transactions whose time is over."""
        for transaction_id in self.holders.take_expired():
            self.release_locks(transaction_id)

    @property
    def is_used_up(self) -> bool:
        """Whether reads have had their share of this turn; those that come wait for the next."""
        return self._view.is_used_up()

    def refuse(self, refusal: Unavailable | None) -> None:
        """What those who want to write are told from now on; ``None``: they are served."""
        self._batcher.refusal = refusal

    @property
    def waiting_for(self) -> dict[object, Line]:
        """The requests that wait, by token, in the order in which they will be answered."""
        return self._waiting.lines

    def sizes(self) -> dict[str, int]:
        """How much is kept in memory for clients, by name. When they have ended it is nothing, but
        for a few deadlines that were cancelled.
        """
        sizes = {name: size() for name, size in self.registry.sizes.items()}
        sizes["holders"] = len(self.holders)
        sizes["deadlines"] = self.holders.entries
        sizes["parked"] = len(self._waiting)
        sizes["blocked"] = len(self._blocked) + len(self._without_lease)
        return sizes

    # --- reads

    def _read(self, call: Call, evaluator: Callable[[View, Any], Any]) -> None:
        view = self._view
        if self._clock.rests and type(call.request) in self.registry.locking:
            self._clock.now()
        view.now = now = self._clock.read()
        if view.is_used_up() or not self._tenure.serves(now):
            self._without_lease[call] = None
            self._waiting.look_later(call)
            self._host.wake(urgent=True)
            return
        view.steps += 1
        view.before = before = self._batcher.before
        if before:
            view.now = before
        try:
            if before and getattr(call.request, "timestamp", 0) > before:
                raise Blocked  # what is under evaluation may be seen from there
            answer = evaluator(view, call.request)
            if type(answer) is GeneratorType:
                self._go_on(call, answer)
                return
        except Blocked:
            self._blocked[call] = None
            self._waiting.look_later(call)
        except MustWait as wait:
            self._waiting.park(call, wait.token)
        except Exception as error:
            self._answer(call, None, self._elsewhere_if_damaged(error))
        else:
            self._answer(call, answer, None)

    def _look_again(self, call: Call) -> None:
        """``call`` is first in line for what may be free."""
        self._read(call, self._reads[type(call.request)])

    def _answer(self, call: Call, answer: Any, error: BaseException | None) -> None:
        token = self._waiting.leave(call)
        call.complete(answer, error)
        if token is not None:  # it may have left something for the next in line
            self._waiting.wake(token)

    def _go_on(self, call: Call, reading: Generator[None, None, Any]) -> None:
        """Read to the end, or to that of the turn."""
        try:
            next(reading)
        except StopIteration as stop:
            self._answer(call, stop.value, None)
        except Blocked:
            self._blocked[call] = None
            self._waiting.look_later(call)
        except MustWait as wait:
            self._waiting.park(call, wait.token)
        except Exception as error:
            self._answer(call, None, self._elsewhere_if_damaged(error))
        else:
            self._long_reads[call] = reading
            self._waiting.look_later(call)
            self._host.wake(urgent=True)

    def _read_on(self) -> None:
        """A turn's share of reads: first those that have waited for one, then the long ones."""
        for call in list(self._without_lease):
            if self._view.is_used_up():
                return
            if call in self._without_lease:
                del self._without_lease[call]
                self._submit_again([call])
        for call in list(self._long_reads):
            if self._view.is_used_up():
                return
            reading = self._long_reads.pop(call, None)
            if reading is not None:
                self._go_on(call, reading)

    def try_get(self, request: Get) -> Value | None:
        """The newest value of a key, read beside whoever evaluates; ``None``: submit it instead.

        The one method that several threads may call at once, also while the others are called. What
        was read counts only if no proposal has started or ended meanwhile. It is read at the
        timestamp of the last commit applied: commits that are evaluated just now are above it,
        though the clock has passed them.
        """
        if request.timestamp or self.failed is not None:
            return None
        generation, at = self._generation, self.last_commit
        head = keys.head_key(request.key)
        if not self._tenure.serves(self._clock.reading()):
            return None
        if head in self._view.in_flight:
            return None
        known, version = self._cache.peek(head)
        if not known:
            version = self._stored.get(head)
        if generation != self._generation:
            return None
        if not known and (version is None or len(version) <= ENTRY_BYTES_MAX):
            self._offers.append((generation, head, version))
        return Value(versions.payload(version), at, versions.is_integer(version))

    def _take_offers(self) -> None:
        """What was read during the last proposal, or since, is in the cache when it is committed.

        It is still exact: the proposal under way does not write what ``try_get`` returns.
        """
        offers = self._offers
        while offers:
            generation, head, version = offers.popleft()
            if generation >= self._generation - 1:
                self._cache.offer(head, version)

    @property
    def serves(self) -> bool:
        """Whether this replica answers reads now, and evaluates commands."""
        return self._tenure.serves(self._clock.reading())

    @property
    def rests(self) -> bool:
        """Whether it only reads, and has written nothing since it was started."""
        return self._tenure.resting

    @property
    def lease(self) -> leases.Lease:
        """The lease that is applied here, whoever holds it."""
        return self._tenure.lease

    # --- a turn: evaluate what waits

    def wants_turn(self) -> bool:
        """Whether ``evaluate`` would have something to do."""
        if self._proposal is not None:
            return False
        if self._hands_over is not None:
            return True
        return self._has_work() and not self._must_wait_for_lease()

    def _has_work(self) -> bool:
        queue = self._queue
        return bool(
            queue.arrived or queue.by_owner or self._upkeep or self._without_lease
            or self._wants_lease or self._long_reads or self._batcher.before
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """When a turn has something to do without being woken; ``None``: never."""
        deadlines = (self.holders.next_deadline(), self._lease_deadline())
        return min((each for each in deadlines if each is not None), default=None)

    def _lease_deadline(self) -> float | None:
        """When this leader may ask for the lease."""
        if self._proposal is not None or self._tenure.serves_from or not self._has_work():
            return None
        if self._is_handing_over or not self.group.has_applied_own_term:
            return None
        return self._tenure.may_ask_at(self.group.entries_received_at)

    def evaluate(self) -> None:
        """Turn what waits into one proposal, unless one is under way."""
        self._view.steps = 0
        self.on_room()
        if not self.wants_turn():
            return
        if not self.group.is_leader:
            self._turn_away()
        elif self._hands_over is not None:
            self._give_back_lease(self._hands_over)
        elif not self.serves or (self._tenure.resting and self._wants_to_write()):
            if not self._rest():
                self._ask_for_lease()
        else:
            self._take_offers()
            self._read_on()
            self._propose_queued()

    def _wants_to_write(self) -> bool:
        return bool(self._queue or self._upkeep or self._wants_lease)

    def _must_wait_for_lease(self) -> bool:
        """Whether this is a leader who must not ask for the lease, or not yet."""
        if self._tenure.serves_from or not self.group.is_leader:
            return False
        if self._is_handing_over or not self.group.has_applied_own_term:
            return True
        return self._tenure.may_ask_at(self.group.entries_received_at) > self._monotonic()

    def _propose_queued(self) -> None:
        if not (self._queue or self._upkeep or self._batcher.before):
            return
        proposal = self._batcher.evaluate(self.last_commit)
        if proposal is None:
            self._host.wake(urgent=True)
            return
        if proposal.command.writes:
            self._start(proposal)
            return
        self._tell(proposal.results, proposal.after)
        self._submit_again(_taken(self._blocked))
        if self.wants_turn():
            self._host.wake(urgent=bool(self._queue or self._without_lease or self._long_reads))

    def _rest(self) -> bool:
        """Alone, and with the lease of an earlier life: read, until there is something to write."""
        if self._tenure.serves_from or self._queue or self._upkeep:
            return False
        if self.group.learners or len(self.group.members) > 1 or not self._host.may_rest():
            return False
        if not self._tenure.rest():
            return False
        self._begin_with_fresh_memory()
        self.last_commit = self._clock.read()
        return True

    def wake_up(self) -> None:
        """There is something to do: do not rest any longer."""
        self._wants_lease = True
        self._host.wake(urgent=False)

    def _end_rest(self) -> None:
        self._wants_lease = False
        self._host.on_serving(True)
        self._serve_again()

    def _ask_for_lease(self) -> None:
        """For the same lease again, if it has lapsed; or for the next one."""
        if self._tenure.resting:
            lease, after = self._tenure.extended(), self._end_rest
        elif self._tenure.serves_from:
            lease, after = self._tenure.extended(), self._serve_again
        else:
            lease, after = self._tenure.successor(), self._begin_to_serve
        self._propose_lease(lease, after, self._tenure.until_if_granted())

    def _propose_lease(self, lease: leases.Lease, after: Callable[[], None], until: float) -> None:
        command = Command(self.lease.sequence, {self._lease_key: leases.encode(lease)})
        self._start(Proposal(command, [], [after], self.last_commit, until))

    def _begin_to_serve(self) -> None:
        """The lease is ours: memory starts afresh from what is stored."""
        if not self.group.is_leader:
            return  # it was another leader that had the entry committed after all
        self._begin_with_fresh_memory()

    def _begin_with_fresh_memory(self) -> None:
        self.last_commit = self._tenure.begin()
        self._wants_lease = False
        self._cache.clear()
        self.holders.clear()
        for begin in self.registry.on_lease:
            begin(self._stored)
        self._host.on_serving(True)
        self._serve_again()

    def _serve_again(self) -> None:
        self._submit_again(_taken(self._without_lease))

    # --- serving no longer

    def hand_over(self, done: Callable[[], None]) -> None:
        """Serve no longer, so that a successor can begin at once; ``done`` is called in any case.

        From then on this replica asks for no lease until it is told to ``resume``, or leads anew.
        """
        if not self.group.is_leader:
            done()
            return
        self._hands_over = done
        self._is_handing_over = True
        self._host.wake(urgent=True)

    def resume(self) -> None:
        """Nobody took over: serve again."""
        self._is_handing_over = False
        self._wants_lease = self.group.is_leader
        self._host.wake(urgent=True)

    def _give_back_lease(self, done: Callable[[], None]) -> None:
        self._hands_over = None
        if not self._tenure.serves_from:
            done()
            return
        # It stops before it says so: from here on nothing is read under this lease.
        self.stop_serving()
        self._propose_lease(self._tenure.given_back(), done, 0.0)

    def stop_serving(self) -> None:
        """This lease is not used any more, and whoever waits is sent elsewhere."""
        if self._tenure.end():
            self._host.on_serving(False)
            self.holders.clear()
            for end in self.registry.on_lease_end:
                end()
        waited = dict.fromkeys((*self._waiting.clear(), *_taken(self._blocked), *self._given_up()))
        self._turn_away_calls([call for call in waited if call not in self._without_lease])

    def _given_up(self) -> list[Call]:
        """What goes over several turns: under another lease it would be something else."""
        reading = _taken(self._long_reads)
        return [*reading, *self._batcher.abandon()]

    def on_leadership(self, leads: bool, term: int) -> None:
        """This member has begun or ceased to lead. A new leader takes the lease as soon as it may:
        there may be messages to deliver.
        """
        del term
        self._wants_lease = leads
        self._is_handing_over = False
        if not leads:
            self.stop_serving()
            done, self._hands_over = self._hands_over, None
            if done is not None:
                done()
        if self._has_work():
            self._host.wake(urgent=True)

    def _start(self, proposal: Proposal) -> None:
        self._generation += 1
        self._proposal = proposal
        self._view.in_flight = proposal.command.writes
        self.group.propose(proposal.command, proposal, self._ended)

    # --- after a turn: what was proposed has ended

    def _ended(self, outcome: Outcome) -> None:
        proposal = self._proposal
        assert proposal is not None
        applied = outcome is Outcome.APPLIED and not proposal.rejected
        if applied:
            # First of all: who reads beside us takes cached values once nothing is in flight.
            self._cache.wrote(proposal.command.writes)
        self._generation += 1
        self._proposal = None
        self._view.in_flight = {}
        if applied:
            self.last_commit = proposal.last_commit
            self._tenure.granted(proposal.lease_until)
            self._tell(proposal.results, proposal.after, wrote=True)
        else:
            # Memory holds what was evaluated, and if the outcome is unknown it may be applied yet,
            # below what a read would be served at: not under this lease.
            self.stop_serving()
            self._wants_lease = self.group.is_leader
            self._fail(proposal, outcome)
        self._submit_again(_taken(self._blocked))
        if self.wants_turn():
            self._host.wake(urgent=bool(self._queue or self._without_lease or self._long_reads))

    def _tell(
        self, results: list[Result], after: list[Callable[[], None]], *, wrote: bool = False
    ) -> None:
        for act in after:
            act()
        if wrote:
            self._waiting.wake_all(TOKEN)
        for call, answer, error in results:
            if type(call.request) is CommitTransaction:
                self.release_locks(call.request.transaction_id)
            call.complete(answer, None if error is None else self._elsewhere_if_damaged(error))

    def _elsewhere_if_damaged(self, error: BaseException) -> BaseException:
        """What to tell whoever asked for something that cannot be read here."""
        if isinstance(error, BlockDamaged) and self._host.on_damage(error):
            return self._not_leaseholder()
        return error

    def _fail(self, proposal: Proposal, outcome: Outcome) -> None:
        unknown = outcome is Outcome.UNKNOWN
        for call, _, error in proposal.results:
            if error is not None or not unknown:
                call.complete(None, self._not_leaseholder())
            else:
                call.complete(None, CommitUnknown(
                    "the write was under way when its node lost the lead, or stopped; it may or "
                    "may not be there: "
                    "commit again with the same transaction id, or read what it wrote"
                ))  # fmt: skip

    def _turn_away(self) -> None:
        waiting = (*_taken(self._queue), *_taken(self._upkeep), *_taken(self._without_lease))
        self._turn_away_calls(waiting)

    def _turn_away_calls(self, calls: Sequence[Call]) -> None:
        error = self._not_leaseholder()
        for call in calls:
            call.complete(None, error)

    def _not_leaseholder(self) -> NotLeaseholder:
        leader = self.group.leader
        return NotLeaseholder(None if leader == self.node_id else leader)

    def fail_all(self, error: Error) -> None:
        """Answer everything that waits, or will come, with ``error``: the node stops."""
        self.failed = error
        waited = dict.fromkeys(self._waiting.clear())
        for calls in (self._queue, self._upkeep, self._without_lease, self._blocked):
            waited |= dict.fromkeys(_taken(calls))
        waited |= dict.fromkeys(self._given_up())
        self.holders.clear()
        for end in self.registry.on_lease_end:
            end()
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
        if not self._tenure.applied(stored):
            self.stop_serving()


def _taken(calls: dict[Call, Any] | deque[Call] | FairQueue) -> list[Call]:
    """All of ``calls``, which is left empty."""
    taken = list(calls)
    calls.clear()
    return taken
