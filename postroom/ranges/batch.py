"""All calls that wait are evaluated in order, into one proposal.

::

    requests ─▶ evaluated, each on the writes of those before ─▶ companions ─▶ finishers ─▶ Proposal
       ▲                                                                           │
       └──────────── half of them at a time, if the command is too large ──────────┘

A turn does that in three steps, ``evaluate``, ``complete`` and ``propose``, so that a node with
many ranges can take each step with all of them (:mod:`.together`).

What takes more steps than a turn has (:mod:`.evaluation`) goes on with the next turn, in the same
proposal: until it is made, those that come later wait, and reads see the store as of before it. The
same holds of what comes after the evaluation of a large proposal: companions, finishers, encoding.

Evaluation has no effect but in memory; what it comes to takes place when the group has replicated
and applied it.

Clients may keep more waiting than a proposal holds, for ever. So upkeep (deliveries, deferred
updates, the collection of garbage) has a share of each proposal that clients do not get: bytes,
steps, and at least one request. When a proposal is halved because it was too large, there may be
room for one request only: then it is the turn of either by turns. A request that goes over several
turns is the last one of its proposal: who had no share in that is the first one in the next.

Who evaluates long does not keep others waiting for each proposal. What a commit has read is checked
beside the proposals, if that takes long (:mod:`.long_checks`). A request that takes more than
``PATIENCE_TURNS`` is *put off* if others are in its proposal: that is made without it. It leads the
next one, or the one after that, if the last one was as long: others have a proposal between.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from types import GeneratorType
from typing import Any, Final, NamedTuple

from postroom import limits
from postroom.errors import Error, Unavailable
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.limits import COMMAND_BYTES_MAX
from postroom.ranges.calls import Call, LeasedWrites, Proposal, Result, encode
from postroom.ranges.commit_waits import withdrawn
from postroom.ranges.completion import Completion
from postroom.ranges.evaluation import Evaluation, MustWait, too_much_moved
from postroom.ranges.fair_queue import FairQueue
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.long_checks import LongChecks, too_many_steps
from postroom.ranges.registry import CHECKS_LONG, Registry, WriteEvaluator

_log = logging.getLogger(__name__)

_REQUESTS_AT_ONCE: Final = 2000
PATIENCE_TURNS: Final = 2


class Refusal(NamedTuple):
    """Which calls are not evaluated while the device has hardly any room.

    Attributes:
        error: what they are told.
        upkeep: whether it concerns upkeep, too, beside what clients ask for.
        deletions: whether it concerns what frees room, if a client asks for it.
        everything: whether it concerns all.
    """

    error: Unavailable
    upkeep: bool = False
    deletions: bool = False
    everything: bool = False

    def concerns(self, call: Call) -> bool:
        """Return whether ``call`` is refused."""
        if self.everything:
            return True
        if call.request.needs_no_room():
            return self.deletions and call.urgent
        return self.upkeep or call.urgent


class Batcher:
    """See the module.

    Args:
        range_id: of which range.
        registry: the evaluators.
        cache: the applied state.
        clock: gives the timestamps of commits.
        lease_holder: the lease under which commands are good; it is extended along with them.

    Attributes:
        queue: the calls that somebody waits for; all clients have their turns.
        upkeep: the others, which are evaluated after them, in a share of their own.
        refusal: what calls are told instead of being evaluated, if any are; see :class:`Refusal`.
        before: while an evaluation goes over several turns: a timestamp before it, and not before
            anything that was read until it began; else 0.
    """

    def __init__(
        self,
        range_id: int,
        registry: Registry,
        cache: Cache,
        clock: HybridLogicalClock,
        lease_holder: LeaseHolder,
    ) -> None:
        self.queue = FairQueue()
        self.upkeep = FairQueue()
        self.refusal: Refusal | None = None
        self._range_id = range_id
        self._registry = registry
        self._cache = cache
        self._clock = clock
        self._lease_holder = lease_holder
        self._completion = Completion(range_id, registry, clock, lease_holder)
        self._requests_max = _REQUESTS_AT_ONCE
        self._upkeep_leads = False
        self._making: tuple[Evaluation, list[Result]] | None = None
        self._unfinished: tuple[Call, Generator[object, None, Any]] | None = None
        self._completing: Generator[None, None, bytes] | None = None
        self._packed: bytes | None = None
        self._failure: Exception | None = None
        self.before = 0
        self._checks = LongChecks(registry, cache)
        self._put_off: deque[Call] = deque()
        self._turns = 0
        self._others_next = self._may_put_off = self._has_put_off = False

    @property
    def is_behind(self) -> bool:
        """Whether there are requests that were begun, and left for others."""
        return bool(self._put_off or self._checks.waiting)

    def evaluate(self, last_commit: int) -> None:
        """The first step: as many requests as a turn has room for.

        Args:
            last_commit: the timestamp of the last commit that is applied.
        """
        if self._making is None:
            ctx = Evaluation(self._cache, self._range_id, last_commit)
            self._making = ctx, []
            self._turns = 0
            if self._put_off or self._others_next or self._checks.waiting:
                self._lead(*self._making)
                if self._unfinished is not None:
                    return
        else:
            ctx = self._making[0]
            ctx.steps_before += ctx.steps
            ctx.steps = 0
        if self._completing is None:
            self._evaluate_some(*self._making)

    def complete(self) -> None:
        """The second step: what goes along with them, and the records that sum it up."""
        assert self._making is not None, "nothing is under evaluation"
        self._packed = None
        if self._unfinished is not None:
            return
        try:
            if self._completing is None:
                self._completing = self._completion.complete(self._making[0])
            self._packed = b"" if self._completing is None else _next_part(self._completing)
        except Exception as error:
            _log.critical("a proposal was stopped", exc_info=True)
            self._failure = error

    def propose(self, last_commit: int) -> Proposal | None:
        """The third step: what it has come to.

        Returns:
            A proposal. If its command writes nothing there is nothing to replicate, only results.
            ``None``: it goes on with the next turn; or it was too large, the calls wait again, and
            the next one will be smaller.
        """
        assert self._making is not None, "nothing is under evaluation"
        ctx, results = self._making
        if self._failure is not None:
            # Not one request is at fault but what they come to: none of it happens.
            error = self._failure
            self._forget()
            return self._nothing([(call, None, error) for call, _, _ in results], last_commit)
        packed = self._packed
        if packed is None:
            self.before = self.before or ctx.began - 1
            return None
        if self._completing is None and not self.before:  # as a rule
            self._making = self._packed = None
        else:
            self._forget()
        command = LeasedWrites(self._lease_holder.lease.sequence, ctx.staged)
        if ctx.staged:
            # Here, once: how large it is must be known, and it is replicated as it is.
            packed = packed or encode(command)
            if len(packed) >= COMMAND_BYTES_MAX:
                return self._split(results, last_commit)
            if self._checks.current:
                self._checks.hear(ctx.staged)
        self._requests_max = _REQUESTS_AT_ONCE
        extends = self._completion.lease_key in ctx.staged
        until = self._lease_holder.until_if_granted() if extends else 0.0
        # What is to be done afterwards knows the evaluation. That forgets it, so that both are
        # freed with the proposal, and do not wait for the garbage collector.
        after, ctx.after = ctx.after, []
        return Proposal(command, results, after, ctx.last_commit, until, packed=packed)

    def _forget(self) -> None:
        """Nothing is in the making."""
        self._making, self._completing, self.before = None, None, 0
        self._packed, self._failure = None, None

    def under_evaluation(self) -> list[Call]:
        """Whose requests are in a proposal that goes on with the next turn."""
        calls = [] if self._making is None else [call for call, _, _ in self._making[1]]
        if self._unfinished is not None:
            calls.append(self._unfinished[0])
        return [*calls, *self._put_off, *self._checks]

    def abandon(self) -> list[Call]:
        """What goes over several turns is given up; answers whose requests it was."""
        calls = self.under_evaluation()
        if self._unfinished is not None:
            self._unfinished[1].close()
        if self._completing is not None:
            self._completing.close()
        self._unfinished = None
        self._put_off.clear()
        self._checks.clear()
        self._forget()
        return calls

    def _evaluate_some(self, ctx: Evaluation, results: list[Result]) -> None:
        """As much as a turn has room for; a request may be left half-way."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            self._turns += 1
            # Those that come later make the next proposal: else this one might never be made.
            self._go_on(ctx, *unfinished, results)
        elif self.upkeep.arrived or self.upkeep.by_owner:
            self._evaluate_both(ctx, results)
        else:
            shares = limits.PROPOSAL_BYTES_MAX, limits.TURN_STEPS_MAX
            self._evaluate_calls(ctx, self.queue, results, *shares)

    def _evaluate_both(self, ctx: Evaluation, results: list[Result]) -> None:
        """Each queue in its share; where a share comes to nothing, one request."""
        steps = max(limits.TURN_STEPS_MAX // 4, 1)
        clients, upkeep = (
            (self.queue, limits.PROPOSAL_BYTES_MAX - limits.UPKEEP_BYTES,
             max(limits.TURN_STEPS_MAX - steps, 1)),
            (self.upkeep, limits.UPKEEP_BYTES, steps),
        )  # fmt: skip
        first, second = (upkeep, clients) if self._upkeep_leads else (clients, upkeep)
        self._evaluate_calls(ctx, first[0], results, *first[1:])
        if not self._is_half_way():
            self._evaluate_calls(ctx, second[0], results, *second[1:])
        elif second[0]:
            # It has had no turn in this proposal, and must not wait for another one like that.
            self._upkeep_leads = second is upkeep

    def _is_half_way(self) -> bool:
        return self._unfinished is not None

    def _lead(self, ctx: Evaluation, results: list[Result]) -> None:
        """What was begun before comes first: a part of a check, and what was put off, unless it is
        the turn of others.
        """
        others, self._others_next = self._others_next, False
        self._may_put_off = others and not self._has_put_off
        self._has_put_off = False
        if self._checks.waiting:
            check, steps = self._checks.go_on(ctx.last_commit)
            ctx.steps += steps
            if check is not None and not _is_given_up(check.call, results):
                self._may_put_off = False  # it has waited already, and would be checked again
                self._evaluate_one(ctx, check.call, lambda ctx, _: check.evaluate(ctx), results)
                return
        if self._put_off and not others:
            call = self._put_off.popleft()
            if not _is_given_up(call, results):
                self._evaluate_one(ctx, call, self._registry.commands[type(call.request)], results)

    def _go_on(
        self,
        ctx: Evaluation,
        call: Call,
        going_on: Generator[object, None, Any],
        results: list[Result],
    ) -> None:
        """Evaluate a long request to its end, or to that of the turn."""
        try:
            said = next(going_on)
            if ctx.steps_before + ctx.steps > limits.TRANSACTION_STEPS_MAX:
                going_on.close()
                raise too_many_steps()
        except StopIteration as stop:
            ctx.accept()
            results.append((call, stop.value, None))
            self._others_next = self._others_next or self._turns > 0
        except Exception as error:
            ctx.reject()
            results.append((call, None, _bare(error)))
        else:
            if said is CHECKS_LONG:
                self._leave(ctx, going_on)
                self._checks.add(call)
            elif self._turns >= PATIENCE_TURNS and self._keeps_waiting(call, results):
                self._leave(ctx, going_on)
                self._put_off.append(call)
                self._has_put_off = self._others_next = not results
            else:
                self._unfinished = call, going_on

    def _keeps_waiting(self, call: Call, results: list[Result]) -> bool:
        """Return whether others wait for a long request that can be put off."""
        return bool(results) or (self._may_put_off and self.queue.has_others_than(call.owner))

    def _leave(self, ctx: Evaluation, going_on: Generator[object, None, Any]) -> None:
        going_on.close()
        ctx.reject()

    def _evaluate_calls(
        self,
        ctx: Evaluation,
        queue: FairQueue,
        results: list[Result],
        share_bytes: int,
        share_steps: int,
    ) -> None:
        commands, room = self._registry.commands, self._requests_max
        if room < _REQUESTS_AT_ONCE:
            room -= len(results)  # both queues together, or it might not become less
        steps_max, bytes_max = ctx.steps + share_steps, ctx.bytes + ctx.moved + share_bytes
        calls, now = queue.taken(), self._clock.now
        while room and ctx.steps < steps_max and ctx.bytes + ctx.moved < bytes_max:
            call = next(calls, None)
            if call is None:
                return
            room -= 1
            if call.cancelled and _is_given_up(call, results):
                continue
            if self.refusal is not None and self.refusal.concerns(call):
                results.append((call, None, self.refusal.error))
                continue
            ctx.begin(now())
            # Those after the first one: the wall clock need not be asked anew.
            now = self._clock.following
            ctx.steps += 1
            try:
                answer = commands[type(call.request)](ctx, call.request)
            except Exception as error:
                ctx.reject()
                results.append((call, None, _bare(error)))
                continue
            if type(answer) is GeneratorType:
                self._go_on(ctx, call, answer, results)
                if self._unfinished is not None:
                    return
            else:
                ctx.accept()
                results.append((call, answer, None))

    def _evaluate_one(
        self, ctx: Evaluation, call: Call, evaluate: WriteEvaluator, results: list[Result]
    ) -> None:
        """The first request of a proposal."""
        if self.refusal is not None and self.refusal.concerns(call):
            results.append((call, None, self.refusal.error))
            return
        ctx.begin(self._clock.now())
        try:
            answer = evaluate(ctx, call.request)
        except Exception as error:
            ctx.reject()
            results.append((call, None, _bare(error)))
            return
        if type(answer) is GeneratorType:
            self._go_on(ctx, call, answer, results)
        else:
            ctx.accept()
            results.append((call, answer, None))

    def _split(self, results: list[Result], last_commit: int) -> Proposal | None:
        """Too large a command: half of the requests at a time, and in the end one by one.

        What requests move (old versions, due messages) they do not bring along, so that many small
        ones may come to a large command. Proposed, it would stop one leader after the other.
        """
        if len(results) == 1:
            self._requests_max = _REQUESTS_AT_ONCE
            return self._nothing([(results[0][0], None, too_much_moved())], last_commit)
        self._requests_max = len(results) // 2
        self._upkeep_leads = not self._upkeep_leads
        for call, _, _ in reversed(results):
            (self.queue if call.urgent else self.upkeep).appendleft(call)
        return None

    def _nothing(self, results: list[Result], last_commit: int) -> Proposal:
        return Proposal(
            LeasedWrites(self._lease_holder.lease.sequence, {}), results, [], last_commit
        )


def _next_part(completing: Generator[None, None, bytes]) -> bytes | None:
    """What it comes to in the end; ``None``: it goes on."""
    try:
        next(completing)
    except StopIteration as stop:
        packed: bytes = stop.value
        return packed
    return None


def _is_given_up(call: Call, results: list[Result]) -> bool:
    """Whether nobody wants the answer any more. A commit that stands in line is told of it."""
    if call.cancelled and call.token is not None:
        results.append((call, None, withdrawn()))
    return call.cancelled


def _bare(error: Exception) -> Exception:
    """An error as the caller gets it. If a rule refuses a request, its traceback tells nobody
    anything; but it would keep all that was evaluated until the garbage collector comes.
    """
    return error.with_traceback(None) if isinstance(error, Error | MustWait) else error
