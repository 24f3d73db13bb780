"""What goes along with the requests of a proposal, and the records that sum it up.

::

    requests accepted ─▶ companions ─▶ riders ─▶ finishers ─▶ lease, if it wants more time ─▶ packed
                         deliver what they send               (a large command; others later)

Most proposals are small, and are completed at once: that is one function without a generator, since
it is done for each proposal. One that is large, or becomes so, goes on over turns; each part has
one of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

from postroom import limits
from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock
from postroom.ranges import lease as leases
from postroom.ranges.calls import LeasedWrites, encode_in_parts
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.registry import Registry

_log = logging.getLogger(__name__)

Companion: TypeAlias = Callable[[Evaluation], Iterator[None] | None]


class Completion:
    """See the module.

    Args:
        range_id: of which range.
        registry: companions, riders, finishers.
        clock: gives companions and riders their timestamps.
        lease_holder: the lease, which is extended along with commands.
    """

    def __init__(
        self,
        range_id: int,
        registry: Registry,
        clock: HybridLogicalClock,
        lease_holder: LeaseHolder,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._lease_holder = lease_holder
        self.lease_key = keys.record_key(range_id, leases.LEASE_RECORD)

    def complete(self, ctx: Evaluation) -> Generator[None, None, bytes] | None:
        """As much as can be done at once: all of it, as a rule.

        Returns:
            What is left for later turns, of a large proposal; it returns the command, as it is
            replicated, or nothing if that is small after all. ``None``: nothing is left.
        """
        staged, large = ctx.staged, limits.COMPLETED_AT_ONCE_MAX
        if ctx.sent or ctx.deferred:
            # As a rule a request has asked the wall clock in this very turn.
            ctx.go_along(self._clock.now() if ctx.steps_before else self._clock.following())
            companions = self._registry.companions
            if len(staged) > large:
                return self._in_parts(ctx, iter(companions))
            for companion in companions:
                going_along = companion(ctx)
                if going_along is not None:
                    return self._in_parts(ctx, _after(companion, companions), going_along)
            ctx.accept()
        if len(staged) > large:
            return self._go_on(ctx)
        for wants, rider in self._registry.riders:
            if wants(ctx):
                self._take(ctx, rider)
        if not staged:
            return None
        return self._finish(ctx)

    def _finish(self, ctx: Evaluation) -> Generator[None, None, bytes] | None:
        ctx.sum_up()
        finishers = self._registry.finishers
        for finish in finishers:
            finishing = finish(ctx)
            if finishing is not None:
                return self._finish_in_parts(ctx, _after(finish, finishers), finishing)
        if self._lease_holder.wants_extension(self._clock.last()):
            self._extend_lease(ctx)
        return self._packed(ctx) if len(ctx.staged) > limits.COMPLETED_AT_ONCE_MAX else None

    def _in_parts(
        self,
        ctx: Evaluation,
        companions: Iterator[Companion],
        going_along: Iterator[None] | None = None,
    ) -> Generator[None, None, bytes]:
        """The rest of the companions, riders and finishers."""
        if going_along is not None:
            yield from going_along
        for companion in companions:
            if _is_large(ctx):
                yield
            going_along = companion(ctx)
            if going_along is not None:
                yield from going_along
        ctx.accept()
        return (yield from self._go_on(ctx))

    def _go_on(self, ctx: Evaluation) -> Generator[None, None, bytes]:
        """Riders and finishers."""
        for wants, rider in self._registry.riders:
            if wants(ctx):
                self._take(ctx, rider)
        if not ctx.staged:
            return b""
        if _is_large(ctx):
            yield
        ctx.sum_up()
        return (yield from self._finish_in_parts(ctx, iter(self._registry.finishers)))

    def _finish_in_parts(
        self,
        ctx: Evaluation,
        finishers: Iterator[Companion],
        finishing: Iterator[None] | None = None,
    ) -> Generator[None, None, bytes]:
        """The rest of the finishers."""
        if finishing is not None:
            yield from finishing
        for finish in finishers:
            finishing = finish(ctx)
            if finishing is not None:
                yield from finishing
        if self._lease_holder.wants_extension(self._clock.last()):
            self._extend_lease(ctx)
        return (yield from self._packed(ctx)) if _is_large(ctx) else b""

    def _extend_lease(self, ctx: Evaluation) -> None:
        ctx.staged[self.lease_key] = leases.encode(self._lease_holder.extended())

    def _packed(self, ctx: Evaluation) -> Generator[None, None, bytes]:
        """The command of a large proposal, with an extension of the lease that is still one."""
        command = LeasedWrites(self._lease_holder.lease.sequence, ctx.staged)
        packed = yield from encode_in_parts(command)
        while self._shortens_lease(ctx):
            del ctx.staged[self.lease_key]
            packed = yield from encode_in_parts(command)
        return packed

    def _shortens_lease(self, ctx: Evaluation) -> bool:
        """Whether the lease has lapsed meanwhile, and been asked for again: for longer than the
        extension that goes along. A lease never becomes shorter.
        """
        staged = ctx.staged.get(self.lease_key)
        if staged is None:
            return False
        return leases.decode(staged).expiration < self._lease_holder.lease.expiration

    def _take(self, ctx: Evaluation, rider: Callable[[Evaluation], Any]) -> None:
        ctx.begin(self._clock.now())
        try:
            rider(ctx)
        except Exception:
            _log.exception("what was to ride along with a proposal has failed")
            ctx.reject()
        else:
            ctx.accept()


def _is_large(ctx: Evaluation) -> bool:
    """Whether a turn has no room for all that a proposal comes to. What a turn has evaluated from
    its beginning to its end is never that large.
    """
    return len(ctx.staged) > limits.COMPLETED_AT_ONCE_MAX


def _after(one: Companion, of: list[Companion]) -> Iterator[Companion]:
    """Those that follow ``one``."""
    return iter(of[of.index(one) + 1 :])
