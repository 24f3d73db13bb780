"""The changes of a proposal under evaluation to the memory of a queue; see :mod:`.manager`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.ranges.evaluation import Evaluation

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager


class Speculation:
    """The changes of one evaluation to the memory of a queue, until they are committed or aborted.

    Args:
        manager: the manager of the queue.

    Attributes:
        taken: engine keys of the entries that the proposal under evaluation has taken.
        has_fired: whether it has fired all that it could.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
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
        self._manager.leases.begin_naming()
        self.has_fired = False
        return True

    def commit(self) -> None:
        """Commit the changes: the proposal is applied and its notes have taken effect."""
        self._manager.leases.break_promises()
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
        manager = self._manager
        manager.ready.forget()
        manager.leases.break_promises()
        manager.leases.name_again()
        manager.consumers.forget_ungranted()
        manager.wishes.begin_again()
        self.taken.clear()
        self._ctx = None
        manager.steps.look_at(manager)
        manager.steps.plan(manager)
