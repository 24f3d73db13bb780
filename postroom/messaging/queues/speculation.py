"""The changes that a proposal under evaluation makes to the memory of a queue before it is applied.

::

    begin ─▶ taken from the ready cache, promised, given to claims ─┬─ it is applied ────▶ commit
                                                                    └─ it never will be ─▶ abort

Firing changes memory while a proposal is under evaluation. The proposal may be too large, or fail.
It is not reported then: the next evaluation that begins notices it. An abort forgets the ready
cache, which is read again, and restores the rest of the memory.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.messaging.queues.consumers import Consumers, Wishes
from postroom.messaging.queues.leases import LeaseTable
from postroom.messaging.queues.ready import ReadyCache
from postroom.ranges.evaluation import Evaluation


class Speculation:
    """The changes of one evaluation to the memory of a queue, until they are committed or aborted.

    Args:
        ready, leases, consumers, wishes: the memory of the queue.
        on_abort: called when an evaluation is aborted.

    Attributes:
        taken: engine keys of the entries that the proposal under evaluation has taken.
        has_fired: whether it has fired all that it could.
    """

    def __init__(
        self,
        ready: ReadyCache,
        leases: LeaseTable,
        consumers: Consumers,
        wishes: Wishes,
        on_abort: Callable[[], None],
    ) -> None:
        self._ready = ready
        self._leases = leases
        self._consumers = consumers
        self._wishes = wishes
        self._on_abort = on_abort
        self._ctx: Evaluation | None = None
        self.taken: set[bytes] = set()
        self.has_fired = False

    @property
    def is_under_way(self) -> bool:
        """Return whether changes are neither committed nor aborted."""
        return self._ctx is not None

    @property
    def ctx(self) -> Evaluation:
        """Return the evaluation under way; there must be one."""
        assert self._ctx is not None
        return self._ctx

    def begin(self, ctx: Evaluation) -> bool:
        """Begin the changes of an evaluation; return whether it had not begun yet.

        An earlier evaluation that was not committed is aborted.
        """
        if self._ctx is ctx:
            return False
        self.abort_other(ctx)
        self._ctx = ctx
        self._leases.begin_naming()
        self.has_fired = False
        return True

    def commit(self) -> None:
        """Commit the changes: the proposal is applied and its notes have taken effect."""
        self._leases.break_promises()
        self.taken.clear()
        self._ctx = None

    def commit_if(self, ctx: Evaluation) -> bool:
        """Commit the changes of this evaluation, if it is under way; return whether it was."""
        if self._ctx is not ctx:
            return False
        self.commit()
        return True

    def abort_other(self, ctx: Evaluation) -> None:
        """Abort an earlier evaluation than this one: it never took effect, and never will."""
        if self._ctx is not None and self._ctx is not ctx:
            self.abort()

    def abort(self) -> None:
        """Undo the changes of a proposal that did not come about."""
        self._ready.forget()
        self._leases.break_promises()
        self._leases.name_again()
        self._consumers.take_back()
        self._wishes.begin_again()
        self.taken.clear()
        self._ctx = None
        self._on_abort()
