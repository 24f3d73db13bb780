"""The third stage of a replica: a batch becomes the command that the group replicates.

::

    Batch ─▶ deliver, execute ─▶ fire ─▶ sum up ─▶ lease, if it wants more ─▶ packed ─▶ Proposal
             what it sends       what    counters,                            │
             and defers          waits   garbage      too large: half of it ◀─┘

The companion (:class:`.ports.Companion`) does the first steps, with what the requests have sent,
deferred and counted. The change feed and the lists of garbage are the range's own.

Most proposals are small, and are completed at once. One that is large, or becomes so, goes on over
turns; each part has a generator of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias

from postroom import limits
from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock
from postroom.limits import COMMAND_BYTES_MAX
from postroom.ranges import lease as leases
from postroom.ranges.batch import Batch
from postroom.ranges.calls import LeasedWrites, Proposal, Result, encode, encode_in_parts
from postroom.ranges.evaluation import Evaluation, too_much_moved
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import GarbageLists
from postroom.ranges.lease import LeaseHolder
from postroom.ranges.ports import Companion

_log: Final = logging.getLogger(__name__)

_Parts: TypeAlias = Generator[None, None, bytes]


class Proposer:
    """The maker of proposals; see the module.

    Args:
        range_id: the id of the range.
        clock: the clock, which gives the companion its timestamps.
        lease_holder: the lease, which is extended along with commands.
        feed: the change feed, which follows the proposals.
        garbage: the lists of garbage.

    Attributes:
        companion: the part of the program that goes along with the proposals.
    """

    companion: Companion

    def __init__(
        self,
        range_id: int,
        clock: HybridLogicalClock,
        lease_holder: LeaseHolder,
        feed: ChangeFeed,
        garbage: GarbageLists,
    ) -> None:
        self._clock = clock
        self._lease_holder = lease_holder
        self._feed = feed
        self._garbage = garbage
        self._lease_key = keys.record_key(range_id, leases.LEASE_RECORD)

    def complete(self, batch: Batch) -> None:
        """Let the companion take up the batch, and sum it up, as far as a turn has room."""
        if batch.unfinished is not None:
            return
        try:
            if batch.completing is None:
                batch.completing = self._complete(batch.ctx)
            batch.packed = b"" if batch.completing is None else _next_part(batch.completing)
        except Exception as error:
            _log.critical("a proposal was stopped", exc_info=True)
            batch.failure = error

    def propose(self, batch: Batch, last_commit: int) -> Proposal | None:
        """Make the proposal of a batch.

        Args:
            batch: the batch.
            last_commit: the timestamp of the last commit that is applied.

        Returns:
            The proposal. If its command writes nothing, there are only results to tell. ``None``:
            the batch goes on with the next turn, or it is too large.
        """
        ctx, results = batch.ctx, batch.results
        if batch.failure is not None:
            # Not one request is at fault but all together: none of them happens.
            error = batch.failure
            return self._nothing([(call, None, error) for call, _, _ in results], last_commit)
        packed = batch.packed
        if packed is None:
            return None
        sequence = self._lease_holder.lease.sequence
        command = LeasedWrites(sequence, ctx.staged, ctx.last_commit, ctx.sums)
        if ctx.staged or ctx.sums is not None:
            # Here, once: how large it is must be known, and it is replicated as it is.
            packed = packed or encode(command)
            if len(packed) >= COMMAND_BYTES_MAX:
                # Proposed, it would stop one leader after the other.
                if len(results) == 1:
                    return self._nothing([(results[0][0], None, too_much_moved())], last_commit)
                batch.is_too_large = True
                return None
        until = self._lease_holder.until_if_granted() if self._lease_key in ctx.staged else 0.0
        # The actions know the evaluation. It forgets them, so that both are freed with the
        # proposal, and do not wait for the garbage collector.
        after, ctx.after = ctx.after, []
        return Proposal(command, results, after, ctx.last_commit, until, packed=packed)

    def _nothing(self, results: list[Result], last_commit: int) -> Proposal:
        """Return a proposal that writes nothing."""
        command = LeasedWrites(self._lease_holder.lease.sequence, {})
        return Proposal(command, results, [], last_commit)

    def _complete(self, ctx: Evaluation) -> _Parts | None:
        """Do as much as can be done at once: all of it, as a rule.

        Returns:
            A generator that does the rest of a large proposal over turns. It returns the packed
            command, or nothing if that is small after all. ``None``: nothing is left.
        """
        staged, large = ctx.staged, limits.COMPLETED_AT_ONCE_MAX
        if ctx.sent or ctx.deferred:
            # Mostly a request has asked the wall clock in this very turn.
            ctx.go_along(self._clock.now() if ctx.steps_before else self._clock.following())
            if len(staged) > large:
                return self._deliver_in_parts(ctx)
            delivering = self.companion.deliver_sent(ctx) if ctx.sent else None
            if delivering is not None:
                return self._deliver_in_parts(ctx, delivering)
            executing = self.companion.execute_deferred(ctx) if ctx.deferred else None
            if executing is not None:
                return self._execute_in_parts(ctx, executing)
            ctx.accept()
        if len(staged) > large:
            return self._fire_and_finish(ctx)
        if ctx.notes or self.companion.rider.is_wanted:
            self._fire(ctx)
        return self._finish(ctx) if staged or ctx.sums is not None else None

    def _fire(self, ctx: Evaluation) -> None:
        """Let the companion add to the proposal. If it fails, the requests do not suffer."""
        rider = self.companion.rider
        if not rider.has_to_fire(ctx):
            return
        ctx.begin(self._clock.now())
        try:
            rider.fire(ctx)
        except Exception:
            _log.exception("the companion of a proposal could not add to it")
            ctx.reject()
        else:
            ctx.accept()

    def _finish(self, ctx: Evaluation) -> _Parts | None:
        """Stage the records that sum up the proposal, and extend the lease."""
        ctx.sum_up()
        if self._feed.floor is not None:
            ctx.after.append(self._feed.followed(ctx.staged, ctx.last_commit))
        if ctx.tally or ctx.notes or self.companion.is_dividing:
            following = self.companion.sum_up(ctx)
            if following is not None:
                return self._follow_in_parts(ctx, following)
        return self._list(ctx)

    def _list(self, ctx: Evaluation) -> _Parts | None:
        """List the garbage of a proposal, and extend the lease."""
        if ctx.garbage:
            listing = self._garbage.finish(ctx)
            if listing is not None:
                return self._list_and_pack(ctx, listing)
        if self._lease_holder.wants_extension(self._clock.last()):
            self._extend_lease(ctx)
        return self._pack(ctx) if len(ctx.staged) > limits.COMPLETED_AT_ONCE_MAX else None

    def _extend_lease(self, ctx: Evaluation) -> None:
        ctx.staged[self._lease_key] = leases.encode(self._lease_holder.extended())

    # --- large proposals

    def _deliver_in_parts(
        self, ctx: Evaluation, delivering: Iterator[None] | None = None
    ) -> _Parts:
        """Deliver what is sent, or the rest of it, and do all that follows."""
        if delivering is None:
            yield
            delivering = self.companion.deliver_sent(ctx)
        if delivering is not None:
            yield from delivering
        return (yield from self._execute_in_parts(ctx))

    def _execute_in_parts(self, ctx: Evaluation, executing: Iterator[None] | None = None) -> _Parts:
        """Carry out what is deferred, or the rest of it, and do all that follows."""
        if executing is None:
            if _is_large(ctx):
                yield
            executing = self.companion.execute_deferred(ctx)
        if executing is not None:
            yield from executing
        ctx.accept()
        return (yield from self._fire_and_finish(ctx))

    def _fire_and_finish(self, ctx: Evaluation) -> _Parts:
        if ctx.notes or self.companion.rider.is_wanted:
            self._fire(ctx)
        if not ctx.staged and ctx.sums is None:
            return b""
        if _is_large(ctx):
            yield
        finishing = self._finish(ctx)
        return b"" if finishing is None else (yield from finishing)

    def _follow_in_parts(self, ctx: Evaluation, following: Iterator[None]) -> _Parts:
        yield from following
        rest = self._list(ctx)
        return b"" if rest is None else (yield from rest)

    def _list_and_pack(self, ctx: Evaluation, listing: Iterator[None]) -> _Parts:
        yield from listing
        if self._lease_holder.wants_extension(self._clock.last()):
            self._extend_lease(ctx)
        return (yield from self._pack(ctx)) if _is_large(ctx) else b""

    def _pack(self, ctx: Evaluation) -> _Parts:
        """Pack the command of a large proposal; an extension of the lease must still be one."""
        sequence = self._lease_holder.lease.sequence
        command = LeasedWrites(sequence, ctx.staged, ctx.last_commit, ctx.sums)
        packed = yield from encode_in_parts(command)
        while self._shortens_lease(ctx):
            del ctx.staged[self._lease_key]
            packed = yield from encode_in_parts(command)
        return packed

    def _shortens_lease(self, ctx: Evaluation) -> bool:
        """Return whether the lease would become shorter, which it must never.

        It may have lapsed meanwhile, and been granted again for longer than the extension.
        """
        staged = ctx.staged.get(self._lease_key)
        if staged is None:
            return False
        return leases.decode(staged).expiration < self._lease_holder.lease.expiration


def _is_large(ctx: Evaluation) -> bool:
    """Return whether a turn has no room for the whole proposal.

    A batch that a turn has evaluated from its beginning to its end is never that large.
    """
    return len(ctx.staged) > limits.COMPLETED_AT_ONCE_MAX


def _next_part(completing: _Parts) -> bytes | None:
    """Go on with a large proposal; return the packed command at its end, or ``None``."""
    try:
        next(completing)
    except StopIteration as stop:
        packed: bytes = stop.value
        return packed
    return None
