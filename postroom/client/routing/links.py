"""One stream to one node, as the router sees it: the requests to send on it, and those sent.

::

    queue ──▶ batch ── take (encoded, many in a frame) ──▶ sent ── answered ──▶ gone
       └────▶ commits ──┘ (together)

Its states, and what leads from one to the next (``TRANSITIONS``)::

    opening ── greet ──▶ greeted ── welcomed ──▶ ready ◀── heard ── asked ── silent: given up
       its hello is taken     it says who it is    └────── ask ──────▲

Nothing but the hello is sent before the node is ready. While a sign of life is *asked* for,
everything goes on as before. The router forgets a link that it gives up, so that is no state.

Commits leave together: at least as many as are under way, or as soon as none is. A node makes one
proposal after the other, and each costs a sync. Commits that came singly would be proposed, and
answered, in small groups for ever; a few commits do not wait (cf. PostgreSQL's ``commit_siblings``,
and Nagle's algorithm, RFC 896).

A commit may wait at the node for a lock. Others thereby stop waiting for commits that are not
answered within ``COMPANY_SECONDS``. The commit of a transaction that has locked anything leaves at
once, because the waiting commits may need its locks. For the same reason commits that have locked
nothing do not take all slots under way: a quarter is left to reads, locks, and commits that free
locks.
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Any, Final

from postroom.client.routing.calls import RemoteCall
from postroom.errors import Error, Invalid, TransactionTooLarge
from postroom.limits import FRAME_BYTES_MAX, REQUESTS_PER_FRAME_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.frames import (
    PROTOCOL_VERSION,
    encode,
)
from postroom.protocol.requests import REVISION

QUIET_SECONDS: Final = 0.5
"""The time without a sign of life after which a client that waits for an answer asks for one."""
IDLE_SECONDS: Final = 10.0
"""The time without a sign of life after which a client that waits for nothing asks for one."""
SPEAK_SECONDS: Final = 1.0
"""The longest time in which a client that waits for something, or holds something, sends nothing.

The node would take it for dead otherwise.
"""
SILENT_SECONDS: Final = 1.0
"""The time after which a node that was asked for a sign of life and gives none is given up."""
OPENING_SECONDS: Final = 10.0


COMPANY_SECONDS: Final = 0.03
"""The longest time that a commit waits for others to leave with."""
_LEFT_TO_OTHERS: Final = 4
"""The share of the requests under way that commits leave to others: one in this many."""


class LinkState(IntEnum):
    """A state of a link."""

    OPENING = auto()
    GREETED = auto()
    READY = auto()
    ASKED = auto()


class LinkEvent(IntEnum):
    """An event that changes the state of a link."""

    GREET = auto()
    """The hello is taken, to be written."""
    WELCOMED = auto()
    """The node has said who it is, or who leads."""
    ASK = auto()
    """The client asks for a sign of life."""
    HEARD = auto()
    """A frame has come in, of any kind."""


TRANSITIONS: Final = MappingProxyType({
    LinkState.OPENING: {LinkEvent.GREET: LinkState.GREETED, LinkEvent.HEARD: LinkState.OPENING},
    LinkState.GREETED: {LinkEvent.WELCOMED: LinkState.READY, LinkEvent.HEARD: LinkState.GREETED},
    LinkState.READY: {
        LinkEvent.WELCOMED: LinkState.READY,
        LinkEvent.ASK: LinkState.ASKED,
        LinkEvent.HEARD: LinkState.READY,
    },
    LinkState.ASKED: {LinkEvent.ASK: LinkState.ASKED, LinkEvent.HEARD: LinkState.READY},
})  # fmt: skip
"""The next state for each state and event; a missing event is impossible, or the node's error."""


class Link:
    """One stream to one node, as the router sees it.

    Attributes:
        number: the number of the stream; numbers rise.
        address: the address of the node.
        node_id: the id of the node; 0 until it says its id.
        names_ranges: whether requests name the ranges that they are for.
        lanes: the lanes of the ranges that the node leads (:mod:`.lanes`).
        lease: the number of the lease of its last answers.
        holds: whether the leaseholder has something in memory for this client.
        delayed_at: when the first of the commits that wait for company came; infinity: there is
            none.
        commits: the commits that wait for company.
        batch: all other calls that are not sent yet.
        sent: the calls that may have reached the node and are not answered, by number.
        open: how many calls, sent or not yet, do not wait there for long.
        crowd: how many of these are commits that crowd.
        crowd_max: how many of these may be commits that crowd.
        revision: the revision of the requests that the node knows.
        state: see the module.
        heard_at: when a frame last came in.
        spoke_at: when the last frame was taken.
        asked_at: when it was asked for a sign of life, if it is.
    """

    __slots__ = (
        "_commits_out",
        "_hello",
        "_thins",
        "_told",
        "address",
        "asked_at",
        "batch",
        "commits",
        "crowd",
        "crowd_max",
        "delayed_at",
        "heard_at",
        "holds",
        "lanes",
        "lease",
        "looks_up",
        "names_ranges",
        "node_id",
        "number",
        "open",
        "requests_max",
        "revision",
        "sent",
        "speaks",
        "spoke_at",
        "state",
        "withdrawn",
    )

    def __init__(self, number: int, address: str, secret: bytes, now: float) -> None:
        self.number = number
        self.address = address
        self.node_id = 0
        self.state = LinkState.OPENING
        self.lease = 0
        self.holds = False
        self.lanes: list[Any] = []
        self.names_ranges = False
        self.batch: list[RemoteCall] = []
        self.commits: list[RemoteCall] = []
        self.delayed_at = math.inf
        self.sent: dict[int, RemoteCall] = {}
        self.withdrawn: list[int] = []
        self.looks_up = False
        self.open = self.crowd = 0
        self.requests_max = self.crowd_max = self.revision = 0
        self.heard_at = self.spoke_at = now
        self.asked_at = 0.0
        self.speaks = False
        self._hello = encode((0, PROTOCOL_VERSION, secret, number, REVISION))
        self._told = True
        self._thins = False
        self._commits_out = 0

    # --- its state

    @property
    def ready(self) -> bool:
        """Return whether the node has said who it is."""
        return self.state >= LinkState.READY

    def heard(self, now: float) -> None:
        """Note that a frame has come in."""
        self.heard_at = now
        self.state = TRANSITIONS[self.state][LinkEvent.HEARD]

    def welcomed(self, node_id: int, requests_max: int, revision: int) -> None:
        """Note that the node has said who it is, and which requests it knows.

        Raises:
            WireError: the node was not greeted.
        """
        state = TRANSITIONS[self.state].get(LinkEvent.WELCOMED)
        if state is None:
            raise WireError("a Welcome before the Hello")
        self.state = state
        self.node_id = node_id
        self.requests_max = requests_max
        self.crowd_max = requests_max - requests_max // _LEFT_TO_OTHERS
        self.revision = revision

    # --- calls to be sent

    def has_room(self, call: RemoteCall) -> bool:
        """Return whether ``call`` may be queued, or has to wait until others are answered."""
        if call.crowds and self.crowd >= self.crowd_max:
            return False
        return call.waits or self.open < self.requests_max

    def queue(self, call: RemoteCall) -> bool:
        """Have ``call`` sent with the next frame; return whether the port must be told."""
        call.link = self
        self.crowd += call.crowds
        if call.has_company and self._commits_out:
            self.open += 1
            self.commits.append(call)
            return self.commits_may_go() and self.tell()
        self.batch.append(call)
        if not call.waits:
            self.open += 1
        elif call.timeout_seconds is None:
            call.deadline = math.inf
        return self.tell()

    def commits_may_go(self) -> bool:
        """Return whether ``take`` has commits to send."""
        return bool(self.commits) and self._commits_out <= len(self.commits)

    def end_delay(self, now: float) -> bool:
        """Release commits that have waited long enough; return whether the port must be told."""
        if now < self.delayed_at + COMPANY_SECONDS:
            return False
        self.delayed_at = math.inf  # they may go; the stream decides when
        for call in self.sent.values():
            call.has_company = False
        self._commits_out, self.delayed_at = 0, math.inf
        return self.commits_may_go() and self.tell()

    def unsent(self) -> list[RemoteCall]:
        """Return the calls that are queued and not taken."""
        return [*self.batch, *self.commits]

    def waiting(self) -> int:
        """Return how many requests wait there for something to happen, or soon will."""
        return len(self.sent) + len(self.batch) + len(self.commits) - self.open

    def tell(self) -> bool:
        """Note that there is something to take; return whether the port must be told."""
        if self._told:
            return False
        self._told = True
        return True

    def look_up(self, now: float) -> bool:
        """Ask for a sign of life, and who leads; return whether the port must be told."""
        if self.state is not LinkState.ASKED:
            self.asked_at = now
            self.looks_up = True
        self.state = TRANSITIONS[self.state][LinkEvent.ASK]
        return self.tell()

    def speak(self) -> bool:
        """Give a sign of life; return whether the port must be told."""
        self.speaks = True
        return self.tell()

    def take(self, clock: int) -> bytes | None:
        """Return the next frame, with as many of the queued calls as fit into one."""
        if self.state is LinkState.OPENING:
            self.state = TRANSITIONS[self.state][LinkEvent.GREET]
            return self._hello
        if self.commits_may_go():
            self.batch += self.commits
            self.commits, self.delayed_at = [], math.inf
        has_words = self.batch or self.withdrawn or self.looks_up or self.speaks
        if not has_words or not self.ready:
            self._told = False
            return None
        batch, self.batch = self.batch, []
        if len(batch) > REQUESTS_PER_FRAME_MAX:
            batch, self.batch = batch[:REQUESTS_PER_FRAME_MAX], batch[REQUESTS_PER_FRAME_MAX:]
        if self._thins:
            batch = self._thinned(batch)
        frame = self._encoded(batch, clock)
        self.looks_up = self.speaks = False
        return frame

    def _encoded(self, batch: list[RemoteCall], clock: int) -> bytes:
        withdrawn = self.withdrawn[:REQUESTS_PER_FRAME_MAX]
        while True:
            requests = [(call.number, call.request) for call in batch]
            ask: tuple[Any, ...] = (1, clock, requests, withdrawn, self.looks_up)
            if self.names_ranges:
                ask = (*ask, _named_ranges(batch))
            frame, why = _encoded(ask)
            if why is None:
                break
            if len(batch) > 1:
                half = len(batch) // 2
                self.batch = batch[half:] + self.batch
                batch = batch[:half]
            elif withdrawn:
                withdrawn = []  # in the next frame: alone, this request may fit into one
            else:
                self._refuse(batch.pop(), why)
        del self.withdrawn[: len(withdrawn)]
        sent = self.sent
        for call in batch:
            call.was_sent = True
            sent[call.number] = call
            self._commits_out += call.has_company
        return frame

    def _thinned(self, batch: list[RemoteCall]) -> list[RemoteCall]:
        """Return the calls of a batch that were not cancelled before they left."""
        self._thins = bool(self.batch or self.commits)
        self.open -= sum(call.done and not call.waits for call in batch)
        self.crowd -= sum(call.done and call.crowds for call in batch)
        return [call for call in batch if not call.done]

    def _refuse(self, call: RemoteCall, why: Error) -> None:
        call.done = True
        if not call.waits:
            self.open -= 1
            self.crowd -= call.crowds
        call.complete(None, why)

    # --- answers

    def answered(self, number: int) -> RemoteCall | None:
        """Return the call that the node has answered; ``None``: there is no such call."""
        call = self.sent.pop(number, None)
        if call is not None and not call.waits:
            self.open -= 1
            self.crowd -= call.crowds
            self._commits_out -= call.has_company
        return call

    def withdraw(self, call: RemoteCall) -> bool:
        """Tell the node that no caller waits any more; return whether the port must be told.

        The node reads this after the request itself.
        """
        if call.number not in self.sent:
            self._thins = True
        self.withdrawn.append(call.number)
        return self.tell()

    # --- signs of life

    def next_look(self) -> float:
        """Return when the next look at its signs of life is due."""
        if not self.ready:
            return self.heard_at + OPENING_SECONDS
        is_busy = self.sent or self.holds
        if self.state is LinkState.ASKED:
            look = self.asked_at + SILENT_SECONDS
        else:
            look = self.heard_at + (QUIET_SECONDS if is_busy else IDLE_SECONDS)
        return min(look, self.spoke_at + SPEAK_SECONDS) if is_busy else look

    def is_to_speak(self, now: float) -> bool:
        """Return whether the node might take this client for dead if it sends nothing now."""
        is_busy = self.ready and (self.sent or self.holds)
        return bool(is_busy) and now >= self.spoke_at + SPEAK_SECONDS

    def is_to_look_up(self, now: float) -> bool:
        """Return whether it is time to ask for a sign of life."""
        if self.state is not LinkState.READY:
            return False
        busy = self.sent or self.holds
        return now >= self.heard_at + (QUIET_SECONDS if busy else IDLE_SECONDS)

    def is_silent(self, now: float) -> bool:
        """Return whether the node is to be given up."""
        if not self.ready:
            return now >= self.heard_at + OPENING_SECONDS
        return self.state is LinkState.ASKED and now >= self.asked_at + SILENT_SECONDS


def _named_ranges(batch: list[RemoteCall]) -> list[tuple[int, int, int]]:
    """Return the numbers of the calls that name a range, each with that."""
    return [
        (call.number, *call.way.named)
        for call in batch
        if call.way is not None and call.way.named is not None
    ]


def _encoded(message: tuple[Any, ...]) -> tuple[bytes, Error | None]:
    """Return a frame and ``None``, or the error of a request that cannot be sent."""
    try:
        frame = encode(message)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        return b"", Invalid(
            f"the request cannot be sent to a node ({error}); nothing was changed: correct what "
            "was given"
        )
    if len(frame) <= FRAME_BYTES_MAX:
        return frame, None
    return b"", TransactionTooLarge(
        f"the request takes {len(frame)} bytes, {FRAME_BYTES_MAX} fit into a frame; nothing was "
        "changed: do the work in smaller transactions"
    )
