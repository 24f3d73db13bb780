"""The second stage of a replica: all waiting commands are evaluated, in order, into one batch.

::

    admission ─▶ evaluated, each on the writes of those before ─▶ Batch ─▶ proposed

A command that takes more steps than a turn has (:mod:`.evaluation`) goes on with the next turn, in
the same batch. Until that is proposed, later commands wait, and reads see the store as of before.

Evaluation has no effect but in memory. Its effects take place when the group has replicated and
applied them. A request that goes over several turns is the last one of its batch: the queue that
had no share in that is the first one in the next.

A long evaluation does not keep others waiting for each proposal. The reads of a commit are checked
beside the proposals, if that takes long (:mod:`.long_checks`). A request that takes more than
``PATIENCE_TURNS`` is *put off* if others are in its batch, which is proposed without it. It leads
the next batch, or the one after that, if the last one was as long: others have a proposal between.

An atomic request that is long keeps the writes of others waiting in the end: its proposal is one.
Long requests therefore have at most a third of the time, if other principals want some
(:class:`TimeShare`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable
from itertools import chain
from types import GeneratorType
from typing import Any, Final

from postroom import limits
from postroom.errors import Error
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.ranges.admission import REQUESTS_AT_ONCE, CommandAdmission, FairQueue
from postroom.ranges.calls import Call, Result
from postroom.ranges.commit_waits import withdrawn
from postroom.ranges.evaluation import LONG_SHARE, Evaluation, MustWait, yields_at
from postroom.ranges.long_checks import LongChecks, too_many_steps
from postroom.ranges.ports import ALONE, CHECKS_LONG, ChecksFirst, Registry, WriteEvaluator
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.transactions.intents import IntentTable, MeetsIntent
from postroom.ranges.transactions.requests import Prepare, Resolve

OTHERS_SHARE: Final = 2
"""The time of others, as a multiple of the time that a long request has had."""
PATIENCE_TURNS: Final = 2 * LONG_SHARE


class Batch:
    """The commands of one proposal in the making.

    Attributes:
        ctx: the evaluation of all of them.
        results: the calls that are evaluated, each with its answer or error.
        unfinished: the call that is evaluated half-way, with the generator that goes on.
        turns: the number of turns for which that one has gone on.
        completing: the generator that completes a large proposal over turns, when it has begun.
        packed: the command as it is replicated, or ``b""`` if it is not packed yet; ``None`` until
            the batch is complete.
        failure: the error that stopped the whole proposal.
        is_too_large: whether it comes to too large a command.
    """

    __slots__ = (
        "completing", "ctx", "failure", "is_too_large", "packed", "results", "turns", "unfinished",
    )  # fmt: skip

    def __init__(self, ctx: Evaluation) -> None:
        self.ctx = ctx
        self.results: list[Result] = []
        self.unfinished: tuple[Call, Generator[object, None, Any]] | None = None
        self.turns = 0
        self.completing: Generator[None, None, bytes] | None = None
        self.packed: bytes | None = None
        self.failure: Exception | None = None
        self.is_too_large = False


class TimeShare:
    """The share of time that long requests have: a third of it, if other principals want some.

    After a long request, the next one does not go on before others have had twice as much time.
    This is weighted round robin, as in the queues (:mod:`.admission`), but in seconds instead of
    requests.

    Args:
        monotonic: returns the time in seconds.

    Attributes:
        since: when a long request has begun to keep others waiting; ``None``: none does.
        until: the end of the time of others; 0: it is over.
    """

    __slots__ = ("_is_wanted", "_monotonic", "_principal", "since", "until")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._principal = ""
        self._is_wanted = False
        self.since: float | None = None
        self.until = 0.0

    def begin(self, call: Call) -> None:
        """Note that a long request keeps others waiting from now on."""
        if self.since is None:
            self.since, self._principal = self._monotonic(), call.principal

    def end(self) -> None:
        """Note that it does not any more: its proposal has ended."""
        since, self.since = self.since, None
        if since is not None:
            now = self._monotonic()
            self.until, self._is_wanted = now + OTHERS_SHARE * (now - since), False

    def look(self, results: list[Result]) -> None:
        """Look whether others have used some of their time, and whether it is over."""
        if self._monotonic() >= self.until:
            self.until = 0.0
        elif not self._is_wanted:
            mine = self._principal
            self._is_wanted = any(call.urgent and call.principal != mine for call, _, _ in results)

    def is_for_others(self) -> bool:
        """Return whether long requests have to wait."""
        return self._is_wanted and self._monotonic() < self.until


class BatchEvaluator:
    """The evaluator of commands; see the module.

    Args:
        range_id: the id of the range.
        registry: the evaluators.
        cache: the applied state.
        clock: the clock, which gives commits their timestamps.
        admission: the commands that wait.
        commit_checks: the checks of commits that may take long.

    Attributes:
        intents: the transactions over several ranges that are prepared here.
        batch: the batch in the making; ``None``: there is none.
        alone: the calls that make a proposal of their own, each.
        put_off: the calls that were begun, and left for others.
        checks: the long checks under way.
        time_share: the share of time that long requests have.
        waiting_commits: the commits that wait for locks, by the identity of their requests.
    """

    def __init__(
        self,
        range_id: int,
        registry: Registry,
        cache: Cache,
        clock: HybridLogicalClock,
        admission: CommandAdmission,
        commit_checks: ChecksFirst,
    ) -> None:
        self.intents: IntentTable
        self._range_id = range_id
        self._commands = registry.commands
        self._cache = cache
        self._clock = clock
        self._admission = admission
        self.waiting_commits: Container[int] = ()
        self.batch: Batch | None = None
        self.checks = LongChecks(commit_checks, cache)
        self.alone: deque[Call] = deque()
        self.put_off: deque[Call] = deque()
        self.time_share: TimeShare
        self._others_next = self._may_put_off = self._has_put_off = False

    @property
    def is_behind(self) -> bool:
        """Return whether requests that were begun, and left for others, may go on."""
        return bool(
            self.alone
            or self.checks.waiting
            or (self.put_off and not self.time_share.is_for_others())
        )

    @property
    def is_at_rest(self) -> bool:
        """Return whether nothing was begun in earlier turns."""
        return not (
            self.batch or self.alone or self.put_off or self._others_next
            or self.checks.waiting or self.time_share.until
        )  # fmt: skip

    def next_deadline(self) -> float | None:
        """Return when what was put off may go on; ``None``: nothing waits for a time."""
        share = self.time_share
        return share.until if self.put_off and share.is_for_others() else None

    def evaluate(self, last_commit: int, taken: list[Call]) -> Batch:
        """Evaluate as many commands as a turn has room for.

        Args:
            last_commit: the timestamp of the last commit that is applied.
            taken: the calls of clients that were taken already, and are evaluated first.

        Returns:
            The batch. If its last command is unfinished, it goes on with the next turn.
        """
        batch = self.batch
        if batch is None:
            self.batch = batch = Batch(Evaluation(self._cache, self._range_id, last_commit))
            if self.alone and not taken:
                self._evaluate_alone(batch, self.alone.popleft())
                return batch
            if self.put_off or self._others_next or self.checks.waiting:
                self._lead(batch)
            if batch.unfinished is None:
                shares = self._admission.shares()
                calls = iter(taken)
                self._evaluate_calls(batch, *shares[0], calls)
                for call in reversed(tuple(calls)):  # none, unless both ways count differently
                    self._admission.clients.appendleft(call)
                if len(shares) > 1:
                    self._evaluate_second(batch, *shares[1])
            if self.time_share.until:
                self.time_share.look(batch.results)
            return batch
        batch.ctx.go_on()
        unfinished, batch.unfinished = batch.unfinished, None
        if unfinished is not None:
            batch.turns += 1
            # Those that come later make the next proposal: else this one might never be made.
            self._go_on(batch, *unfinished)
        return batch

    def _evaluate_alone(self, batch: Batch, call: Call) -> None:
        """Evaluate the only request of a batch."""
        if not self._is_given_up(call, batch.results):
            batch.ctx.scratch[ALONE] = True
            self._evaluate_one(batch, call, self._commands[type(call.request)])

    def take_up(self, batch: Batch) -> Batch:
        """Go on with a batch for which the calls of clients are evaluated already."""
        self.batch = batch
        shares = self._admission.shares()
        if len(shares) > 1:
            self._evaluate_calls(batch, *shares[1])
        return batch

    def _evaluate_second(
        self, batch: Batch, queue: FairQueue, share_bytes: int, share_steps: int
    ) -> None:
        if batch.unfinished is None:
            self._evaluate_calls(batch, queue, share_bytes, share_steps)
        else:
            self._admission.missed(queue)

    def under_evaluation(self) -> list[Call]:
        """Return the calls of a batch that goes on with the next turn, and those put off."""
        batch = self.batch
        calls = [] if batch is None else [call for call, _, _ in batch.results]
        if batch is not None and batch.unfinished is not None:
            calls.append(batch.unfinished[0])
        return [*calls, *self.alone, *self.put_off, *self.checks]

    def abandon(self) -> list[Call]:
        """Give up everything that goes over several turns, and return the calls."""
        calls, batch = self.under_evaluation(), self.batch
        if batch is not None:
            if batch.unfinished is not None:
                batch.unfinished[1].close()
            if batch.completing is not None:
                batch.completing.close()
        self.batch = None
        self.alone.clear()
        self.put_off.clear()
        self.checks.clear()
        self.time_share.since = None
        return calls

    def _lead(self, batch: Batch) -> None:
        """Evaluate first what was begun before: a part of a check, and what was put off.

        Others may have their turn before that.
        """
        others, self._others_next = self._others_next, False
        self._may_put_off = others and not self._has_put_off
        self._has_put_off = False
        if self.checks.waiting:
            check, steps = self.checks.go_on(batch.ctx.last_commit)
            batch.ctx.steps += steps
            if check is not None and not self._is_given_up(check.call, batch.results):
                self._may_put_off = False  # it has waited already, and would be checked again
                self._evaluate_one(batch, check.call, lambda ctx, _: check.evaluate(ctx))
                return
        if self.put_off and not others and not self.time_share.is_for_others():
            call = self.put_off.popleft()
            if not self._is_given_up(call, batch.results):
                self._evaluate_one(batch, call, self._commands[type(call.request)])

    def _go_on(self, batch: Batch, call: Call, going_on: Generator[object, None, Any]) -> None:
        """Evaluate a long request to its end, or to that of the turn."""
        ctx, results = batch.ctx, batch.results
        ctx.yields_at = yields_at(ctx.steps)
        try:
            said = next(going_on)
            if ctx.steps_before + ctx.steps > limits.TRANSACTION_STEPS_MAX:
                going_on.close()
                raise too_many_steps()
        except StopIteration as stop:
            self._accept(batch, call, stop.value)
            self._others_next = self._others_next or batch.turns > 0
        except Exception as error:
            ctx.reject()
            results.append((call, None, _bare(error)))
        else:
            if said is ALONE:
                self._leave(ctx, going_on)
                self.alone.append(call)
            elif said is CHECKS_LONG:
                self._leave(ctx, going_on)
                self.checks.add(call)
            elif self._keeps_waiting(call, batch):
                self._leave(ctx, going_on)
                self.time_share.since = None
                self.put_off.append(call)
                self._has_put_off = self._others_next = not results
            else:
                self.time_share.begin(call)
                batch.unfinished = call, going_on

    def _keeps_waiting(self, call: Call, batch: Batch) -> bool:
        """Return whether others wait for a long request that can be put off."""
        if self.time_share.is_for_others():
            return True
        if batch.turns < PATIENCE_TURNS:
            return False
        if batch.results:
            return True
        return self._may_put_off and self._admission.clients.has_others_than(call.owner)

    def _leave(self, ctx: Evaluation, going_on: Generator[object, None, Any]) -> None:
        going_on.close()
        ctx.reject()

    def _evaluate_calls(
        self,
        batch: Batch,
        queue: FairQueue,
        share_bytes: int,
        share_steps: int,
        taken: Iterable[Call] = (),
    ) -> None:
        ctx, results, admission = batch.ctx, batch.results, self._admission
        commands, room = self._commands, admission.requests_max
        if room < REQUESTS_AT_ONCE:
            room -= len(results)  # both queues together, or it might not become less
        steps_max, bytes_max = ctx.steps + share_steps, ctx.bytes + ctx.moved + share_bytes
        calls, now = chain(taken, queue.taken()), self._clock.now
        while room and ctx.steps < steps_max and ctx.bytes + ctx.moved < bytes_max:
            call = next(calls, None)
            if call is None:
                return
            room -= 1
            if call.cancelled and self._is_given_up(call, results):
                continue
            if admission.refusal is not None and admission.refusal.concerns(call):
                results.append((call, None, admission.refusal.error))
                admission.refused += 1
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
                self._go_on(batch, call, answer)
                if batch.unfinished is not None:
                    return
            elif self.intents.by_transaction:
                self._accept(batch, call, answer)
            else:
                ctx.accept()
                results.append((call, answer, None))

    def _is_given_up(self, call: Call, results: list[Result]) -> bool:
        """Return whether a call is cancelled. A commit that has waited for a lock is told so."""
        if call.cancelled and id(call.request) in self.waiting_commits:
            results.append((call, None, withdrawn()))
        return call.cancelled

    def _evaluate_one(self, batch: Batch, call: Call, evaluate: WriteEvaluator) -> None:
        """Evaluate the first request of a batch."""
        ctx, results, refusal = batch.ctx, batch.results, self._admission.refusal
        if refusal is not None and refusal.concerns(call):
            results.append((call, None, refusal.error))
            self._admission.refused += 1
            return
        ctx.begin(self._clock.now())
        try:
            answer = evaluate(ctx, call.request)
        except Exception as error:
            ctx.reject()
            results.append((call, None, _bare(error)))
            return
        if type(answer) is GeneratorType:
            self._go_on(batch, call, answer)
        else:
            self._accept(batch, call, answer)

    def _accept(self, batch: Batch, call: Call, answer: Any) -> None:
        """Add what a request writes to the proposal, unless an intent keeps it away."""
        ctx = batch.ctx
        if self.intents.by_transaction and type(call.request) not in _LOOK_THEMSELVES:
            try:
                self.intents.check_written(ctx.all_writes())
            except MeetsIntent as met:
                ctx.reject()
                batch.results.append((call, None, _bare(met)))
                return
        ctx.accept()
        batch.results.append((call, answer, None))


_LOOK_THEMSELVES: Final = frozenset((CommitTransaction, Prepare, Resolve))


def commits(calls: list[Call]) -> set[bytes]:
    """Return the ids of the transactions that are committed by some of ``calls``."""
    return {
        call.request.transaction_id for call in calls if type(call.request) is CommitTransaction
    }


def _bare(error: Exception) -> Exception:
    """Return an error without the traceback, if a rule has refused the request.

    A traceback tells a caller nothing, but keeps all that was evaluated until the garbage collector
    comes.
    """
    is_rule = isinstance(error, Error | MustWait | MeetsIntent)
    return error.with_traceback(None) if is_rule else error
