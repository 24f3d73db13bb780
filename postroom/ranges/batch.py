"""What waits, evaluated in order, comes to one proposal.

::

    requests ─▶ evaluated, each on the writes of those before ─▶ companions ─▶ finishers ─▶ Proposal
       ▲                                                                           │
       └──────────── half of them at a time, if the command is too large ──────────┘

Evaluation has no effect but in memory; what it comes to takes place when the group has replicated
and applied it.

Clients may keep more waiting than a proposal holds, for ever. So upkeep (deliveries, deferred
updates, the collection of garbage) has a share of each proposal that clients do not get: bytes, and
at least one request. When a proposal is halved because it was too large, there may be room for one
request only: then it is the turn of either by turns.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from postroom.errors import TransactionTooLarge, Unavailable
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.clock import HybridLogicalClock
from postroom.limits import PROPOSAL_BYTES_MAX, UPKEEP_BYTES
from postroom.raft.messages import COMMAND_BYTES_MAX
from postroom.ranges import lease as leases
from postroom.ranges.calls import Call, Command, Proposal, Result
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry
from postroom.ranges.tenure import Tenure

_log = logging.getLogger(__name__)

_REQUESTS_MAX: Final = 2000


class Batcher:
    """See the module.

    Args:
        range_id: of which range.
        registry: the evaluators.
        cache: the applied state.
        clock: gives the timestamps of commits.
        tenure: the lease under which commands are good; it is extended along with them.

    Attributes:
        queue: the calls that somebody waits for.
        upkeep: the others, which are evaluated after them, in a share of their own.
        refusal: what urgent calls are told instead of being evaluated, if anything.
    """

    def __init__(
        self,
        range_id: int,
        registry: Registry,
        cache: Cache,
        clock: HybridLogicalClock,
        tenure: Tenure,
    ) -> None:
        self.queue: deque[Call] = deque()
        self.upkeep: deque[Call] = deque()
        self.refusal: Unavailable | None = None
        self._range_id = range_id
        self._registry = registry
        self._cache = cache
        self._clock = clock
        self._tenure = tenure
        self._lease_key = keys.record_key(range_id, leases.LEASE_RECORD)
        self._requests_max = _REQUESTS_MAX
        self._upkeep_leads = False

    def evaluate(self, last_commit: int) -> Proposal | None:
        """One proposal of what waits.

        Args:
            last_commit: the timestamp of the last commit that is applied.

        Returns:
            A proposal. If its command writes nothing there is nothing to replicate, only results.
            ``None``: it was too large, the calls wait again, and the next one will be smaller.
        """
        ctx = Evaluation(self._cache, self._range_id, last_commit)
        results: list[Result] = []
        if self.upkeep:
            self._evaluate_both(ctx, results)
        else:
            self._evaluate_calls(ctx, self.queue, results, PROPOSAL_BYTES_MAX)
        try:
            self._complete(ctx)
        except Exception as error:
            # Not one request is at fault but what they come to: none of it happens.
            _log.critical("a proposal was stopped", exc_info=True)
            return self._nothing([(call, None, error) for call, _, _ in results], last_commit)
        command = Command(self._tenure.lease.sequence, ctx.staged)
        if ctx.staged and command.size_bytes() > COMMAND_BYTES_MAX:
            return self._split(results, last_commit)
        self._requests_max = _REQUESTS_MAX
        extends = self._lease_key in ctx.staged
        until = self._tenure.until_if_granted() if extends else 0.0
        return Proposal(command, results, ctx.after, ctx.last_commit, until)

    def _evaluate_both(self, ctx: Evaluation, results: list[Result]) -> None:
        """Each queue in its share."""
        clients, upkeep = PROPOSAL_BYTES_MAX - UPKEEP_BYTES, UPKEEP_BYTES
        if self._upkeep_leads:
            self._evaluate_calls(ctx, self.upkeep, results, upkeep)
            self._evaluate_calls(ctx, self.queue, results, clients)
        else:
            self._evaluate_calls(ctx, self.queue, results, clients)
            self._evaluate_calls(ctx, self.upkeep, results, upkeep)

    def _evaluate_calls(
        self, ctx: Evaluation, queue: deque[Call], results: list[Result], share_bytes: int
    ) -> None:
        commands, now, room = self._registry.commands, self._clock.now, self._requests_max
        if room < _REQUESTS_MAX:
            room -= len(results)  # both queues together, or it might not become less
        bytes_max = ctx.bytes + share_bytes
        while queue and ctx.bytes < bytes_max and room:
            call = queue.popleft()
            room -= 1
            if call.cancelled:
                continue
            if self.refusal is not None and call.urgent:
                results.append((call, None, self.refusal))
                continue
            ctx.begin(now())
            try:
                answer = commands[type(call.request)](ctx, call.request)
            except Exception as error:
                ctx.reject()
                results.append((call, None, error))
            else:
                ctx.accept()
                results.append((call, answer, None))

    def _complete(self, ctx: Evaluation) -> None:
        """What goes along with the requests of a proposal, and the records that sum it up."""
        if ctx.sent or ctx.deferred:
            for companion in self._registry.companions:
                ctx.begin(self._clock.now())
                companion(ctx)
                ctx.accept()
        if not ctx.staged:
            return
        ctx.begin(ctx.last_commit)
        for finish in self._registry.finishers:
            finish(ctx)
        if self._tenure.wants_extension(self._clock.last()):
            ctx.staged[self._lease_key] = leases.encode(self._tenure.extended())

    def _split(self, results: list[Result], last_commit: int) -> Proposal | None:
        """Too large a command: half of the requests at a time, and in the end one by one.

        What requests move (old versions, due messages) they do not bring along, so that many small
        ones may come to a large command. Proposed, it would stop one leader after the other.
        """
        if len(results) == 1:
            self._requests_max = _REQUESTS_MAX
            return self._nothing([(results[0][0], None, TransactionTooLarge(
                "with what it overwrites or moves, the transaction comes to more than the "
                f"{COMMAND_BYTES_MAX} bytes of a command; nothing was changed: do the work in "
                "smaller transactions"
            ))], last_commit)  # fmt: skip
        self._requests_max = len(results) // 2
        self._upkeep_leads = not self._upkeep_leads
        for call, _, _ in reversed(results):
            (self.queue if call.urgent else self.upkeep).appendleft(call)
        return None

    def _nothing(self, results: list[Result], last_commit: int) -> Proposal:
        return Proposal(Command(self._tenure.lease.sequence, {}), results, [], last_commit)
