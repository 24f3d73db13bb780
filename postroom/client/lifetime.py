"""How long a transaction lives, and how it ends.

Its states, and what leads from one to the next (``TRANSITIONS``)::

    open ─── send ──▶ committing ─┬─ made ─────▶ committed
                                  ├─ refused ──▶ not committed
                                  └─ lost ──┐
                                            ▼
    asking ◀─────────── send ──────────── unknown      asking: made, refused or lost, as above
    open, unknown ─── give up ──▶ rolled back
    open ─── refused (its time is over), made (there was nothing to send)

Only in *open* it takes calls; the last three are ends. *Unknown* is what ``CommitUnknown`` leaves:
the commit may have happened, and another one with the same id tells whether it has. That one must
not be asked for more than the first one was: if that has happened, nothing else does.

Its time is counted twice: ``began`` is a timestamp, which the store compares when it commits; the
end is a moment of the client's own monotonic clock, which nobody can set.
"""

from __future__ import annotations

from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final

import msgspec

from postroom.client.sender import Sender, post
from postroom.errors import TransactionClosed
from postroom.ranges.requests import ReleaseLocks
from postroom.ranges.transactions import expired


class State(IntEnum):
    """Where a transaction is between its beginning and its end."""

    OPEN = auto()
    COMMITTING = auto()
    UNKNOWN = auto()
    ASKING = auto()
    COMMITTED = auto()
    NOT_COMMITTED = auto()
    ROLLED_BACK = auto()


class Event(IntEnum):
    """What happens to it."""

    SEND = auto()
    """Its commit is sent."""
    MADE = auto()
    """It is committed; or it had nothing to commit."""
    REFUSED = auto()
    """It is not, and will not be."""
    LOST = auto()
    """No answer: nobody knows."""
    GIVE_UP = auto()
    """It is rolled back."""


TRANSITIONS: Final = MappingProxyType({
    State.OPEN: {
        Event.SEND: State.COMMITTING,
        Event.MADE: State.COMMITTED,
        Event.REFUSED: State.NOT_COMMITTED,
        Event.GIVE_UP: State.ROLLED_BACK,
    },
    State.COMMITTING: {
        Event.MADE: State.COMMITTED,
        Event.REFUSED: State.NOT_COMMITTED,
        Event.LOST: State.UNKNOWN,
    },
    State.UNKNOWN: {
        Event.SEND: State.ASKING,
        Event.MADE: State.COMMITTED,
        Event.GIVE_UP: State.ROLLED_BACK,
    },
    State.ASKING: {
        Event.MADE: State.COMMITTED,
        Event.REFUSED: State.NOT_COMMITTED,
        Event.LOST: State.UNKNOWN,
    },
    State.COMMITTED: {},
    State.NOT_COMMITTED: {},
    State.ROLLED_BACK: {},
})  # fmt: skip
"""What each event leads to; what is not in it cannot happen."""

_SAID: Final = {
    State.OPEN: "",
    State.UNKNOWN: "sent to be committed",
    State.COMMITTING: "being committed",
    State.ASKING: "being committed",
    State.COMMITTED: "committed",
    State.NOT_COMMITTED: "not committed",
    State.ROLLED_BACK: "rolled back",
}


class Lifetime(msgspec.Struct, eq=False, gc=False):
    """The state and the time of one transaction, and whether the store keeps something for it.

    A struct, since those are made in few steps.

    Attributes:
        state: see above.
        closed: why it takes no calls, in words; empty while it does.
        timeout: seconds that it may take.
        began: the timestamp at which its time began.
        expires: the moment, of the client's monotonic clock, at which its time is over.
        holds: whether the leaseholder may keep locks or claims for it.
    """

    _sender: Sender
    _id: bytes
    timeout: float
    began: int
    expires: float
    holds: bool = False
    state: State = State.OPEN
    closed: str = ""

    # --- state

    def to(self, event: Event) -> None:
        """Goes to the next state. Whatever ends without a commit lets go of what it holds."""
        self.state = state = TRANSITIONS[self.state][event]
        self.closed = _SAID[state]

    def end(self, event: Event) -> None:
        """Goes to a state that is an end, and has the store forget what it keeps."""
        self.to(event)
        self.release()

    @property
    def is_unknown(self) -> bool:
        """Whether a commit was sent whose outcome is not known."""
        return self.state is State.UNKNOWN or self.state is State.ASKING

    @property
    def may_end(self) -> bool:
        """Whether it can be committed, or rolled back."""
        return self.state is State.OPEN or self.state is State.UNKNOWN

    def check_may_end(self) -> None:
        """Before a commit, or a rollback."""
        if not self.may_end:
            self.check_open()

    def release(self) -> None:
        """Has the store forget its locks and claims."""
        if self.holds:
            post(self._sender, ReleaseLocks(self._id))

    # --- time

    def start_clock(self) -> None:
        """Its time begins now."""
        self.began = self._sender.reading()
        self.expires = self._sender.monotonic() + self.timeout

    def remaining(self) -> float:
        """Seconds that are left; 0 if it is over."""
        return max(self.expires - self._sender.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self._sender.monotonic() > self.expires

    # --- whether it takes a call

    def check_open(self) -> None:
        """Before what only gathers: an expired transaction hears of it at the next read or
        commit.
        """
        if self.closed:
            first = ""
            if self.state is State.UNKNOWN:
                first = "commit it again, which tells what became of it, or roll it back, and "
            raise TransactionClosed(
                f"the transaction was {self.closed} already; nothing was changed by this call: "
                f"{first}begin a new one"
            )

    def check_still_open(self) -> None:
        """After what locks: granted to a transaction that has ended meanwhile, it is given back."""
        if self.closed:
            self.release()
            self.check_open()

    def check_alive(self) -> None:
        """Before what asks the store."""
        if self.closed:
            self.check_open()
        if self._sender.monotonic() > self.expires:
            raise expired(self.timeout)


__all__ = ["TRANSITIONS", "Event", "Lifetime", "State"]
