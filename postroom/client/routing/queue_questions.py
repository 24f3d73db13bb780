"""The questions whether there is a queue of which a range has not heard.

::

    call ─▶ range ── no such queue ─▶ the root: is there one? ─┬─ yes ─▶ the call again, later
                                                               └─ no ──▶ the error is told

The root alone makes queues, and the other ranges hear of it a moment later. The root is asked each
time that a range says this, so the call goes on until its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.errors import NoSuchQueue
from postroom.messaging.queues.queries import ReadQueues


class QueueQuestion(RemoteCall):
    """A question for a queue, in the place of a call that was told that there is none.

    Args:
        call: the call.
        told: the error.
        again: sends the call again, after a pause.
        finish: ends the call with an error.
    """

    __slots__ = ("_again", "_call", "_finish", "_told")

    def __init__(
        self,
        call: RemoteCall,
        told: NoSuchQueue,
        again: Callable[[RemoteCall], None],
        finish: Callable[[RemoteCall, Exception], None],
    ) -> None:
        super().__init__(ReadQueues(told.queue))
        self.deadline = call.deadline
        self._call = call
        self._told = told
        self._again = again
        self._finish = finish
        way = call.way = call.way or CallWay()
        way.parts = [self]

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Have the call go on, or tell its error."""
        call = self._call
        if call.done:
            return
        if error is None and any(not each.dropped for each in result):
            self._again(call)
        else:
            self._finish(call, self._told)
