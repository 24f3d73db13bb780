"""A claim that waits, among several ranges; see :mod:`.claims`.

::

    begin ─▶ part of one range, without a wait ─┬─ messages ──────────────────────────────▶ end
               ▲                                ├─ none, and others were not asked ──┐
               └────────────────────────────────┼────────────────────────────────────┘
                                                └─ none ─▶ parts wait in all ranges ─┬─ the first
                                                            a range was split ───────┘   answer
                                                            (begins again)

Each part has a number of its own, by which its range knows what it was given, should its answer be
lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.client.routing.claims import answer_of, at_once, turned
from postroom.client.routing.lanes import Lanes
from postroom.client.routing.merges import cut
from postroom.client.routing.spreading import AssignedCalls, PartCall
from postroom.messaging.queues.requests import ClaimQueue


class AwaitedClaim:
    """A claim that waits at several ranges until one of them has messages for it.

    Args:
        call: the call.
        calls: assigns, sends again and withdraws calls.
    """

    def __init__(self, call: RemoteCall, calls: AssignedCalls) -> None:
        self._call = call
        self._calls = calls
        self._waiting: list[ClaimQueue] = []
        self._not_asked: deque[ClaimQueue] = deque()

    def begin(self, lanes: Lanes) -> None:
        """Ask the first range, or wait for the end of an attempt that is in hand."""
        call = self._call
        request = call.request
        if call.was_sent:  # to the range that had all keys: its answer may be lost
            request = msgspec.structs.replace(request, again=True)
        self._waiting = turned(cut(request, request.concerns(), lanes.cache), call.number)
        if request.in_hand is None:
            self._not_asked.extend(self._waiting)
        call.way = call.way or CallWay()
        self._go_on()

    def _go_on(self) -> None:
        """Ask the next range; if there is none, wait in all of them."""
        if self._not_asked:
            self._assign([at_once(self._not_asked.popleft())])
        else:
            self._assign(self._waiting)

    def _assign(self, requests: Iterable[ClaimQueue]) -> None:
        call = self._call
        parts = [PartCall(self, each) for each in requests]
        assert call.way is not None
        call.way.parts = parts
        for part in parts:
            part.deadline, part.waits = call.deadline, part.request.wait
            if not self.is_over and call.way.parts is parts:
                self._calls.assign_new(part)

    @property
    def is_over(self) -> bool:
        """Return whether the call waits no more."""
        return self._call.done

    def completed(self, part: PartCall, result: Any, error: BaseException | None) -> None:
        """Take the first answer with anything, ask the next range, or begin again."""
        call = self._call
        if self.is_over:
            return
        if error is not None:
            self._calls.end_wait(call, None, error)
        elif result is None:  # its range was split
            self._calls.begin_again(call)
        elif part.waits or result.messages:
            self._calls.end_wait(call, answer_of(call.request, part.request, result), None)
        else:
            self._go_on()
