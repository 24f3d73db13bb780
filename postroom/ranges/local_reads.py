"""The reads of a leaseholder: served from its applied state, at once or when they may be.

::

    read ─┬─ answered at once
          ├─ without lease ─── no lease, or no time left in this turn ──▶ asked again in a turn
          ├─ blocked ───────── the proposal under way writes it ────────▶ asked again when it ends
          ├─ in line ───────── a lock, a message, a change (:mod:`.waiting`) ──▶ when it is woken
          └─ long ──────────── more steps than a turn has ──────────────▶ goes on with the next turn

A call is in one of these places at a time; it may also be in line, and keeps its place there while
it waits for something else. Only the proposal under way hides anything: what it writes is not known
to be applied, so a read of it waits (:class:`.evaluation.View`).

``try_get`` is the one read that threads make beside the thread that drives the node. The number of
the proposal (``generation``) tells it whether anything has changed while it read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from types import GeneratorType
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import Unavailable
from postroom.kv import keys, versions
from postroom.kv.cache import ENTRY_BYTES, Cache
from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.kv.engine import Engine
from postroom.limits import READ_AHEAD_SECONDS_MAX
from postroom.ranges.admission import FairCalls, taken
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call
from postroom.ranges.contract import KeySet, Read
from postroom.ranges.evaluation import Blocked, MustWait, Postponed, View
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.ports import Host, Registry
from postroom.ranges.requests import CommitTransaction, GetForUpdate, Lock, Value
from postroom.ranges.transactions.intents import AT_THE_END, NO_AGE, Age, IntentTable, MeetsIntent
from postroom.ranges.waiting import Waiting

_OFFERS_KEPT: Final = 1000
CLOCK_AHEAD: Final = from_seconds(READ_AHEAD_SECONDS_MAX)


def _age_of(request: Any) -> Age:
    """Return the age of the transaction that locks something."""
    return (request.began, request.transaction_id) if type(request) in _WITH_AGE else NO_AGE


_WITH_AGE: Final = (GetForUpdate, Lock)


class LocalReads:
    """The reads of one replica; see the module.

    Args:
        stored: the node's engine.
        cache: the cache of the applied state.
        clock: the node's clock.
        registry: the evaluators.
        lease_holder: the lease, which tells whether this replica serves.
        host: the node.

    Attributes:
        bounds: the bounds of the range.
        intents: the transactions over several ranges that are prepared here.
        last_commit: the timestamp of the last commit that is applied.
        before: while an evaluation goes over several turns: a timestamp before it; else 0.
        blocked, without_lease: the calls that wait for the end of a proposal, or for a turn.
        long: the reads that have been begun, with their generators.
        waiting: the calls in line.
        offers: the values read beside the evaluation, for the cache.
        is_stopped: whether reading has stopped for good.
        only_commits: whether a turn has nothing to do but commits, see :meth:`.Replica.begin`. A
            read that waits, or may hold something, ends that.
        look_at_commit: a function that looks at a commit which is first in line.
        given_up: a function that hears of a request which had to wait, and is waited for no more.
        translate: a function that turns a read's error into the one for its caller.
    """

    def __init__(
        self,
        stored: Engine,
        cache: Cache,
        clock: HybridLogicalClock,
        registry: Registry,
        lease_holder: LeaseHolder,
        host: Host,
    ) -> None:
        self._stored = stored
        self._cache = cache
        self._clock = clock
        self._registry = registry
        self._evaluators = registry.reads
        self._lease_holder = lease_holder
        self._host = host
        self.bounds: Bounds
        self.intents: IntentTable
        self._view = View(cache)
        self._taken_in = 0
        self.last_commit = 0
        self.before = 0
        self.blocked: dict[Call, None] = {}
        self._blocked_last: list[Call] = []
        self._overdue: list[Call] = []
        self.without_lease: FairCalls[None] = FairCalls()
        self.long: FairCalls[Generator[None, None, Any]] = FairCalls()
        self.waiting = Waiting(self._look_again)
        self.is_stopped = self.only_commits = False
        self.look_at_commit: Callable[[Call], None]
        self.given_up: Callable[[object], None]
        self.translate: Callable[[BaseException], BaseException] = lambda error: error
        self._generation = 0
        self.offers: deque[tuple[int, bytes, bytes | None]] = deque(maxlen=_OFFERS_KEPT)

    # --- one read

    def read(self, call: Call, evaluator: Callable[[View, Any], Any]) -> None:
        """Answer ``call``, now or later."""
        view, request, bounds = self._view, call.request, self.bounds
        if request.locks:
            self._may_hold()
        view.now = now = self._clock.read()
        if view.is_used_up() or not self._lease_holder.serves(now):
            self.only_commits = False
            self.without_lease[call] = None
            self.waiting.look_later(call)
            self._host.wake(urgent=True)
            return
        view.steps += 1
        view.before = before = self.before
        view.now = before or now
        try:
            if self.intents.by_transaction or not (
                bounds.is_whole
                or (
                    call.within is bounds.descriptor
                    and getattr(request, request.read_at, 0) <= view.now
                )
            ):
                self._check(call, view.now)
            if before and (
                self.intents.going
                or not bounds.is_whole  # other ranges have acknowledged what is later
                or getattr(request, "timestamp", 0) > before
            ):
                raise Blocked  # a proposal under evaluation may be seen from there
            answer = evaluator(view, request)
            if type(answer) is GeneratorType:
                self._go_on(call, answer)
                return
        except Blocked:
            self.only_commits = False
            self.blocked[call] = None
            self.waiting.look_later(call)
        except (MustWait, MeetsIntent, Postponed) as wait:
            self._wait(call, wait)
        except Exception as error:
            self._answer(call, None, self.translate(error))
        else:
            self._answer(call, answer, None)

    def _wait(self, call: Call, wait: MustWait | MeetsIntent | Postponed) -> None:
        self.only_commits = False
        if isinstance(wait, MustWait):
            self.waiting.park(call, wait.token)
            return
        self.waiting.look_later(call)
        if isinstance(wait, MeetsIntent):
            self.intents.park(call, wait)
        else:
            self.without_lease[call] = None
            self._host.wake(urgent=True)

    def _check(self, call: Call, now: int) -> None:
        """Refuse a read of keys of other ranges, or let it wait for a transaction.

        Raises:
            WrongRange: it concerns such keys.
            MeetsIntent: it has to wait.
            Blocked: it may have to, when the proposal under way has ended.
            Postponed, Unavailable: see :meth:`.follow`.
        """
        if not self.bounds.is_whole:
            if call.within is not self.bounds.descriptor:
                wrong = self.bounds.refusal_of(call)
                if wrong is not None:
                    raise wrong
            request = call.request
            at: int = getattr(request, request.read_at, 0)
            if now < at <= now + CLOCK_AHEAD:  # another range may have told it
                self.follow(at)
        if call.request.awaits_earlier:
            self._look_for_earlier(call, now)
        elif self.intents.by_transaction and call.request.waits_for_intents():
            self._look_for_intents(call, now)

    def follow(self, at: int) -> None:
        """Let the clock follow a timestamp that a reader has told, and another range may have.

        Clients move it by no more than clocks may differ. If more is missing, the other nodes tell
        their clocks, and only these are followed. Without other nodes nothing is done.

        Raises:
            Postponed: the read is asked again: the clock was behind.
            Unavailable: the other nodes are asked.
        """
        if self._clock.may_follow(at):
            self._clock.pass_over(at)
            raise Postponed
        if self._host.hear_clocks():
            raise Unavailable(
                f"the timestamp {at} lies in the future of this node; nothing was changed: use one "
                "that now() or a commit returned; if one has, try again",
                retry_after=0.05,
            )

    def _look_for_intents(self, call: Call, now: int) -> None:
        """Let a read wait for transactions that may have committed at its timestamp, or before."""
        request = call.request
        concern = request.concerns()
        if not isinstance(concern, KeySet):
            return
        at: int = getattr(request, request.read_at, AT_THE_END)
        if request.locks:
            at = AT_THE_END
        elif at > now + CLOCK_AHEAD:
            return  # it is refused, and no anchor's clock may follow it
        self.intents.check_reader(concern, at or now, _age_of(request))

    def _look_for_earlier(self, call: Call, now: int) -> None:
        """Let a read wait for the end of all transactions that were prepared before it came."""
        if self.intents.by_transaction or self.intents.going:
            call.came_at = getattr(call, "came_at", now)
            self.intents.check_earlier(call.came_at)

    def read_at(self, call: Call, at: int) -> None:
        """Read at the time at which ``call`` has met an intent that will commit later.

        A read of the newest value need not see that. But if it meets another one that has
        committed, it is read anew: that one may have been acknowledged before the read came.
        """
        request = call.request
        call.request = msgspec.structs.replace(request, **{request.read_at: at})
        self.read(call, self._evaluators[type(request)])
        call.request = request

    def _may_hold(self) -> None:
        """Note that a read may lock or claim something, which needs a timestamp of this life."""
        self.only_commits = False
        if self._clock.rests:
            self._clock.now()

    def newest(self, key: bytes) -> bytes | None:
        """Return the newest version of a key that is applied."""
        return self._cache.get(keys.head_key(key))

    def _look_again(self, call: Call) -> None:
        """Look at ``call``, which is first in line for what may be free."""
        if type(call.request) is CommitTransaction:
            self.look_at_commit(call)
            return
        self.read(call, self._evaluators[type(call.request)])

    def _answer(self, call: Call, answer: Any, error: BaseException | None) -> None:
        token = None if call.token is None else self.waiting.leave(call)
        if token is not None and error is not None:
            self.given_up(call.request)  # it may have been refused before it was evaluated
        call.complete(answer, error)
        if token is not None:  # it may have left something for the next in line
            self.waiting.wake(token)

    def _go_on(self, call: Call, reading: Generator[None, None, Any]) -> None:
        """Read to the end, or to that of the turn."""
        self.only_commits = False
        try:
            next(reading)
        except StopIteration as stop:
            self._answer(call, stop.value, None)
        except Blocked:
            self.blocked[call] = None
            self.waiting.look_later(call)
        except MustWait as wait:
            self.waiting.park(call, wait.token)
        except Exception as error:
            self._answer(call, None, self.translate(error))
        else:
            self.long[call] = reading
            self.waiting.look_later(call)
            self._host.wake(urgent=True)

    def take_blocked(self) -> list[Call]:
        """Take the calls that have waited for the end of a proposal, which has come.

        A call that two proposals in a row have blocked is *overdue*: there may have been no share
        of the turn between them for it. The next proposal waits for it, else there might never be.
        """
        calls, last = taken(self.blocked), set(self._blocked_last)
        self._overdue = [call for call in calls if call in last]
        self._blocked_last = calls
        return calls

    def has_overdue(self) -> bool:
        """Return whether a read is overdue, so that it goes before the next proposal."""
        if self._overdue:
            self._overdue = [call for call in self._overdue if call in self.without_lease]
        return bool(self._overdue)

    def cancel(self, call: Call) -> bool:
        """Forget a read that still waits; false if it is too late for that."""
        waited = call in self.blocked or call in self.without_lease
        self.blocked.pop(call, None)
        self.without_lease.pop(call)
        reading = self.long.pop(call)
        if reading is not None:
            reading.close()
            waited = True
        if isinstance(call.request, Read) and self.intents.withdraw(call):
            waited = True
        if type(call.request) is CommitTransaction and self.waiting.is_looked_at_later(call):
            return waited  # it is in the queue, or under evaluation: it is told of its end there
        if self.waiting.cancel(call):
            waited = True
            self.given_up(call.request)
        return waited

    # --- a turn

    def begin_turn(self) -> None:
        """Begin a turn: reads, and the intake of requests, have a new share."""
        self._view.steps = self._taken_in = 0

    def charge(self, steps: int) -> None:
        """Charge this turn for steps that were spent on taking requests in."""
        self._taken_in += steps

    def is_used_up(self) -> bool:
        """Return whether this turn takes in no more requests, or has read its share."""
        return (
            self._taken_in >= limits.INTAKE_STEPS_MAX or self._view.steps >= limits.TURN_STEPS_MAX
        )

    def go_on_first(self, submit_again: Callable[[list[Call]], None]) -> None:
        """Go on with waiting reads, with half of the turn's share, before new ones come.

        Otherwise those that have begun might never end.
        """
        view = self._view
        view.reserved = limits.TURN_STEPS_MAX // 2
        self.go_on(submit_again)
        view.reserved = 0

    def go_on(self, submit_again: Callable[[list[Call]], None]) -> None:
        """Do a turn's share of reads: first those that have waited for one, then the long ones.

        Principals have their turns.
        """
        for _ in range(len(self.without_lease)):
            if self._view.is_used_up() or not self.without_lease:
                break
            call, _ = self.without_lease.take()
            submit_again([call])
        # Between proposals: a reading that one blocks half-way would begin again, each time.
        for _ in range(0 if self._view.in_flight else len(self.long)):
            if self._view.is_used_up() or not self.long:
                break
            self._go_on(*self.long.take())

    # --- proposals that begin meanwhile

    def proposal_started(self, writes: Mapping[bytes, bytes | None]) -> None:
        """Hide what ``writes`` touches until the proposal has ended."""
        self._generation += 1
        self._view.in_flight = writes

    def proposal_ended(self) -> None:
        """Hide nothing any more."""
        self._generation += 1
        self._view.in_flight = {}

    # --- beside the thread that drives the node

    def try_get(self, key: bytes) -> Value | None:
        """Return the newest value of a key, beside the evaluation; ``None``: submit it instead.

        The one method that several threads may call at once, also while the others are called. A
        value counts only if no proposal has started or ended meanwhile. It is read at the timestamp
        of the last commit applied: commits that are evaluated just now are above it, though the
        clock has passed them.
        """
        # Before the bounds are looked at: they change with the proposal of a split.
        generation, at = self._generation, self.last_commit
        if (
            self.is_stopped or self._registry.refusal is not None
            or self.intents.by_transaction or self.intents.going
            or not (self.bounds.is_whole or self.bounds.contains(key))
        ):  # fmt: skip
            return None
        head = keys.head_key(key)
        if not self._lease_holder.serves(self._clock.reading()):
            return None
        if head in self._view.in_flight:
            return None
        known, version = self._cache.peek(head)
        if not known:
            version = self._stored.get(head)
        if generation != self._generation:
            return None
        if not known and (version is None or len(version) <= ENTRY_BYTES):
            self.offers.append((generation, head, version))
        if version is not None and version[0] == versions.VALUE:
            return Value(version[versions.PAYLOAD :], at)  # the usual one
        return Value(versions.payload(version), at, versions.is_integer(version))

    def take_offers(self) -> None:
        """Put into the cache what was read during the last proposal, or since.

        It is still exact: the proposal under way does not write what ``try_get`` returns.
        """
        offers = self.offers
        while offers:
            generation, head, version = offers.popleft()
            if generation >= self._generation - 1:
                self._cache.offer(head, version)
