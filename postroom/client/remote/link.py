"""One stream to one node, as the router sees it: what is to be sent on it, and what was.

::

    place ──▶ batch ── take (encoded, many in a frame) ──▶ sent ── answered ──▶ gone
       └────▶ commits ──┘ (together)

Its states, and what leads from one to the next (``TRANSITIONS``)::

    opening ── greet ──▶ greeted ── welcomed ──▶ ready ◀── heard ── asked ── silent: given up
       its hello is taken     it says who it is    └────── ask ──────▲

Nothing but the hello is sent before the node is ready. While a sign of life is *asked* for, all
goes on as before. Whoever gives a link up forgets it; so that is no state.

Commits leave together: as many at least as are under way, or as soon as none is. A node makes one
proposal after the other, and each costs a sync, so commits that trickled in would be proposed, and
answered, in small groups for ever; a few commits do not wait (cf. PostgreSQL's ``commit_siblings``,
and Nagle's algorithm, RFC 896).
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Any, Final

from postroom.client.remote.calls import RemoteCall
from postroom.errors import Error, Invalid, TransactionTooLarge
from postroom.limits import FRAME_BYTES_MAX, REQUESTS_PER_FRAME_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.frames import (
    PROTOCOL_VERSION,
    encode,
)
from postroom.protocol.identities import Identity

QUIET_SECONDS: Final = 0.5
"""A client that waits for an answer asks for a sign of life after this time without one."""
IDLE_SECONDS: Final = 10.0
"""A client that waits for nothing asks for a sign of life after this time."""
SPEAK_SECONDS: Final = 1.0
"""A client that waits for something, or holds something, says something at least so often: else
the node would take it for dead."""
SILENT_SECONDS: Final = 1.0
"""A node that gives no sign of life for so long, when asked for one, is given up."""
OPENING_SECONDS: Final = 10.0


class State(IntEnum):
    """How far a link has come."""

    OPENING = auto()
    GREETED = auto()
    READY = auto()
    ASKED = auto()


class Event(IntEnum):
    """What happens to it."""

    GREET = auto()
    """The hello is taken, to be written."""
    WELCOMED = auto()
    """The node has said who it is, or who leads."""
    ASK = auto()
    """A sign of life is asked for."""
    HEARD = auto()
    """A frame has come in, whichever."""


TRANSITIONS: Final = MappingProxyType({
    State.OPENING: {Event.GREET: State.GREETED, Event.HEARD: State.OPENING},
    State.GREETED: {Event.WELCOMED: State.READY, Event.HEARD: State.GREETED},
    State.READY: {
        Event.WELCOMED: State.READY, Event.ASK: State.ASKED, Event.HEARD: State.READY,
    },
    State.ASKED: {Event.ASK: State.ASKED, Event.HEARD: State.READY},
})  # fmt: skip
"""What each event leads to; what is not in it cannot happen, or is no sense of the node's."""


class Link:
    """See the module.

    Attributes:
        number: of the stream; they rise.
        address: where it goes.
        node_id: who is there; 0 until it says so.
        lease: the number of the lease of its last answers.
        holds: the leaseholder has something in memory for this client.
        commits: those that wait for company; of all else that is not sent yet there is ``batch``.
        sent: what may have reached the node and is not answered, by number.
        open: how many of those, and of what is not sent yet, do not wait there for long.
        revision: which requests are known there.
        state: see above.
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
        "heard_at",
        "holds",
        "lease",
        "looks_up",
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

    def __init__(self, number: int, address: str, identity: Identity, now: float) -> None:
        self.number = number
        self.address = address
        self.node_id = 0
        self.state = State.OPENING
        self.lease = 0
        self.holds = False
        self.batch: list[RemoteCall] = []
        self.commits: list[RemoteCall] = []
        self.sent: dict[int, RemoteCall] = {}
        self.withdrawn: list[int] = []
        self.looks_up = False
        self.open = 0
        self.requests_max = self.revision = 0
        self.heard_at = self.spoke_at = now
        self.asked_at = 0.0
        self.speaks = False
        self._hello = encode((0, PROTOCOL_VERSION, identity.client, number, True, identity.secret))
        self._told = True
        self._thins = False
        self._commits_out = 0

    # --- how far it has come

    @property
    def ready(self) -> bool:
        """Whether the node has said who it is."""
        return self.state >= State.READY

    def heard(self, now: float) -> None:
        """A frame has come in."""
        self.heard_at = now
        self.state = TRANSITIONS[self.state][Event.HEARD]

    def welcomed(self, node_id: int, requests_max: int, revision: int) -> None:
        """The node has said who it is, and which requests it knows.

        Raises:
            WireError: nobody has greeted it.
        """
        state = TRANSITIONS[self.state].get(Event.WELCOMED)
        if state is None:
            raise WireError("a Welcome before the Hello")
        self.state = state
        self.node_id = node_id
        self.requests_max = requests_max
        self.revision = revision

    # --- what is to be sent

    def place(self, call: RemoteCall) -> bool:
        """``call`` is sent with the next frame; whether the port must be told that there is one."""
        call.link = self
        if call.is_commit and self._commits_out:
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
        """Whether ``take`` has commits to give out."""
        return bool(self.commits) and self._commits_out <= len(self.commits)

    def unsent(self) -> list[RemoteCall]:
        """What is placed and not taken."""
        return [*self.batch, *self.commits]

    def waiting(self) -> int:
        """How many requests wait there for something to happen, or soon will."""
        return len(self.sent) + len(self.batch) + len(self.commits) - self.open

    def tell(self) -> bool:
        """There is something to take; whether that is news."""
        if self._told:
            return False
        self._told = True
        return True

    def look_up(self, now: float) -> bool:
        """Ask for a sign of life, and who leads; whether the port must be told."""
        if self.state is not State.ASKED:
            self.asked_at = now
            self.looks_up = True
        self.state = TRANSITIONS[self.state][Event.ASK]
        return self.tell()

    def speak(self) -> bool:
        """Give a sign of life; whether the port must be told."""
        self.speaks = True
        return self.tell()

    def take(self, clock: int) -> bytes | None:
        """The next frame, with what is placed, as far as it goes into one."""
        if self.state is State.OPENING:
            self.state = TRANSITIONS[self.state][Event.GREET]
            return self._hello
        if self.commits_may_go():
            self.batch += self.commits
            self.commits = []
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
            frame, why = _encoded((1, clock, requests, withdrawn, self.looks_up))
            if why is None:
                break
            if len(batch) > 1:
                half = len(batch) // 2
                self.batch = batch[half:] + self.batch
                batch = batch[:half]
            elif withdrawn:
                withdrawn = []  # with the next frame: this request fits into one alone, perhaps
            else:
                self._refuse(batch.pop(), why)
        del self.withdrawn[: len(withdrawn)]
        sent = self.sent
        for call in batch:
            call.was_sent = True
            sent[call.number] = call
            self._commits_out += call.is_commit
        return frame

    def _thinned(self, batch: list[RemoteCall]) -> list[RemoteCall]:
        """Without those that were cancelled before they left."""
        self._thins = bool(self.batch or self.commits)
        self.open -= sum(call.done and not call.waits for call in batch)
        return [call for call in batch if not call.done]

    def _refuse(self, call: RemoteCall, why: Error) -> None:
        call.done = True
        if not call.waits:
            self.open -= 1
        call.complete(None, why)

    # --- what has come of it

    def answered(self, number: int) -> RemoteCall | None:
        """The node has answered; ``None``: nobody asked."""
        call = self.sent.pop(number, None)
        if call is not None and not call.waits:
            self.open -= 1
            self._commits_out -= call.is_commit
        return call

    def withdraw(self, call: RemoteCall) -> bool:
        """Tell the node that nobody waits any more, after what it is asked; whether the port must
        be told.
        """
        if call.number not in self.sent:
            self._thins = True
        self.withdrawn.append(call.number)
        return self.tell()

    # --- is anybody there

    def next_look(self) -> float:
        """When ``is_silent`` may have something to say, or a look-up is due."""
        if not self.ready:
            return self.heard_at + OPENING_SECONDS
        is_busy = self.sent or self.holds
        if self.state is State.ASKED:
            look = self.asked_at + SILENT_SECONDS
        else:
            look = self.heard_at + (QUIET_SECONDS if is_busy else IDLE_SECONDS)
        return min(look, self.spoke_at + SPEAK_SECONDS) if is_busy else look

    def is_to_speak(self, now: float) -> bool:
        """Whether the node might take this client for dead if nothing is said now."""
        is_busy = self.ready and (self.sent or self.holds)
        return bool(is_busy) and now >= self.spoke_at + SPEAK_SECONDS

    def is_to_look_up(self, now: float) -> bool:
        """Whether it is time to ask for a sign of life."""
        if self.state is not State.READY:
            return False
        busy = self.sent or self.holds
        return now >= self.heard_at + (QUIET_SECONDS if busy else IDLE_SECONDS)

    def is_silent(self, now: float) -> bool:
        """Whether the node is to be given up."""
        if not self.ready:
            return now >= self.heard_at + OPENING_SECONDS
        return self.state is State.ASKED and now >= self.asked_at + SILENT_SECONDS


def _encoded(message: tuple[Any, ...]) -> tuple[bytes, Error | None]:
    """A frame; or why it cannot be sent, because of one of its requests."""
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


__all__ = ["TRANSITIONS", "Event", "Link", "State"]
