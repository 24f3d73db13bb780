"""A claim that waits, among several ranges; see :mod:`.claims`.

::

    begin ─▶ part of one range, without a wait ─┬─ messages ──────────────────────────────▶ end
               ▲                                ├─ none, and others were not asked ──┐
               └────────────────────────────────┼────────────────────────────────────┘
                                                └─ none ─▶ waits at all nodes ─┬─ the first answer
                                                            a node has refused ┘ (begins again)

Each part has a number of its own, by which its range knows what it was given, should its answer be
lost. A part at a node ends with its link: other nodes lead the ranges then. All ranges are asked
for what it was given, and that goes back.

A node that begins to lead ranges is sent a part as soon as the client knows (:meth:`wait_at`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.client.routing.claims import answer_of, at_node, at_once, left_to_ask, turned
from postroom.client.routing.lanes import Lanes
from postroom.client.routing.links import Link
from postroom.client.routing.merges import cut
from postroom.client.routing.spreading import AssignedCalls, AwaitedParts, PartCall
from postroom.messaging.queues.claim_requests import ClaimQueue


class AwaitedClaim(AwaitedParts):
    """A claim that waits at several ranges until one of them has messages for it."""

    def __init__(self, call: RemoteCall, calls: AssignedCalls) -> None:
        super().__init__(call, calls)
        self._lanes: Lanes
        self._waiting: list[ClaimQueue] = []
        self._not_asked: deque[ClaimQueue] = deque()

    def begin(self, lanes: Lanes) -> None:
        """Ask the first range, or wait for the end of an attempt that is in hand."""
        self._lanes, call = lanes, self._call
        request = call.request
        if call.was_sent:  # to the range that had all keys: its answer may be lost
            request = msgspec.structs.replace(request, again=True)
        self._waiting = turned(cut(request, request.concerns(), lanes.cache), call.number)
        if request.in_hand is None:
            self._not_asked.extend(self._waiting)
        call.way = call.way or CallWay()
        self._go_on()

    def _go_on(self) -> None:
        """Ask the next range; if there is none, wait."""
        if self._not_asked:
            self.assign([at_once(self._not_asked.popleft())])
        elif self._call.request.in_hand is None:
            self._wait_at_nodes()
        else:
            self.assign(self._waiting)

    # --- at nodes

    def _wait_at_nodes(self) -> None:
        """Wait once at each node that leads a range."""
        call = self._call
        assert call.way is not None
        call.way.parts = self._parts = []
        self._wait_on()

    def _wait_on(self) -> None:
        """Wait at the nodes at which it does not yet; if there is none, begin again later."""
        for lane in self._lanes:
            if lane.target is not None:
                self.wait_at(lane.target)
        if not self._parts:
            self._calls.rest(self._call)

    def wait_at(self, link: Link) -> None:
        """Wait at a node that leads a range, unless the claim waits there already."""
        if self.is_over or any(part.link is link for part in self._parts):
            return
        part = NodeCall(self, at_node(self._call.request))
        part.waits = True
        self._parts.append(part)
        self._calls.send_new(link, part)

    def lost(self, part: PartCall) -> None:
        """Go on without a part that was lost. It may have been given something."""
        self._parts.remove(part)
        self._calls.leave(part)
        if not self.is_over:
            self._wait_on()

    def refused(self, part: PartCall) -> None:
        """Begin again after a pause, since a node has refused a part."""
        self._parts.remove(part)
        if not self.is_over:
            self._calls.rest(self._call)

    # --- answers

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
            self._not_asked = deque(left_to_ask(self._not_asked, result))
            self._go_on()


class NodeCall(PartCall):
    """The part of a claim that waits at a node."""

    __slots__ = ("awaited",)

    is_bound = True

    def __init__(self, awaited: AwaitedClaim, request: ClaimQueue) -> None:
        super().__init__(awaited, request)
        self.awaited = awaited

    def lost(self) -> None:
        """Tell the claim that its link, or its node's lease of a range, has ended."""
        self.link = None
        self.awaited.lost(self)

    def refused_there(self) -> None:
        """Tell the claim that the node has refused the part."""
        self.done = True
        self.awaited.refused(self)
