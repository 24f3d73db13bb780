"""The states and the time of a transaction.

The states, and what leads from one to the next (``TRANSITIONS``)::

    open ─── send ──▶ committing ─┬─ made ─────▶ committed
                                  ├─ refused ──▶ not committed
                                  └─ lost ──┐
                                            ▼
    asking ◀─────────── send ──────────── unknown      asking: made, refused or lost, as above
    open, unknown ─── give up ──▶ rolled back
    open ─── refused (its time is over), made (there was nothing to send)

A transaction accepts calls only while it is *open*; the last three are ends. ``CommitUnknown``
leaves it *unknown*: the commit may have happened, and another one with the same id tells whether it
has. The other one must not request more than the first one did: if the first one has happened, the
rest is ignored.

Its time is counted twice. ``began`` is a timestamp, which the store compares when it commits. The
end is a time on the client's own monotonic clock, which cannot be set.
"""

from __future__ import annotations

from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final

import msgspec

from postroom.client.sender import Sender, post
from postroom.errors import Invalid, TransactionClosed
from postroom.ranges.requests import ReleaseLocks
from postroom.ranges.transactions.one_range import expired


class TransactionState(IntEnum):
    """A state of a transaction between its beginning and its end."""

    OPEN = auto()
    COMMITTING = auto()
    UNKNOWN = auto()
    ASKING = auto()
    COMMITTED = auto()
    NOT_COMMITTED = auto()
    ROLLED_BACK = auto()


class Event(IntEnum):
    """An event that changes the state of a transaction."""

    SEND = auto()
    """The transaction's commit is sent."""
    MADE = auto()
    """The transaction is committed, or had nothing to commit."""
    REFUSED = auto()
    """The transaction is not committed, and will not be."""
    LOST = auto()
    """The commit got no answer: its outcome is unknown."""
    GIVE_UP = auto()
    """The transaction is rolled back."""


TRANSITIONS: Final = MappingProxyType({
    TransactionState.OPEN: {
        Event.SEND: TransactionState.COMMITTING,
        Event.MADE: TransactionState.COMMITTED,
        Event.REFUSED: TransactionState.NOT_COMMITTED,
        Event.GIVE_UP: TransactionState.ROLLED_BACK,
    },
    TransactionState.COMMITTING: {
        Event.MADE: TransactionState.COMMITTED,
        Event.REFUSED: TransactionState.NOT_COMMITTED,
        Event.LOST: TransactionState.UNKNOWN,
    },
    TransactionState.UNKNOWN: {
        Event.SEND: TransactionState.ASKING,
        Event.MADE: TransactionState.COMMITTED,
        Event.GIVE_UP: TransactionState.ROLLED_BACK,
    },
    TransactionState.ASKING: {
        Event.MADE: TransactionState.COMMITTED,
        Event.REFUSED: TransactionState.NOT_COMMITTED,
        Event.LOST: TransactionState.UNKNOWN,
    },
    TransactionState.COMMITTED: {},
    TransactionState.NOT_COMMITTED: {},
    TransactionState.ROLLED_BACK: {},
})  # fmt: skip
"""The next state for each state and event; an event that is missing cannot happen."""

_SAID: Final = {
    TransactionState.OPEN: "",
    TransactionState.UNKNOWN: "sent to be committed",
    TransactionState.COMMITTING: "being committed",
    TransactionState.ASKING: "being committed",
    TransactionState.COMMITTED: "committed",
    TransactionState.NOT_COMMITTED: "not committed",
    TransactionState.ROLLED_BACK: "rolled back",
}


class Lifetime(msgspec.Struct, eq=False, gc=False):
    """The state and the time of one transaction, and whether the store keeps something for it.

    It is a struct, since a struct is made in few steps.

    Attributes:
        state: see the module.
        closed: why it accepts no calls, in words; empty while it does.
        timeout: seconds that it may take.
        began: the timestamp at which its time began.
        expires: the time at which its time is over, on the client's monotonic clock.
        holds: whether the leaseholder may keep locks or claims for it.
        age: the timestamp at which its first try began, if it is tried again; else 0.
        ended_by: the one that ends it in place of its user, as errors name it; empty: its user.
    """

    _sender: Sender
    _id: bytes
    timeout: float
    began: int
    expires: float
    holds: bool = False
    age: int = 0
    state: TransactionState = TransactionState.OPEN
    closed: str = ""
    ended_by: str = ""

    # --- state

    def to(self, event: Event) -> None:
        """Go to the next state.

        An interrupt in between leaves the state as it was, so that whoever catches it goes on.
        """
        state = TRANSITIONS[self.state][event]
        self.closed = _SAID[state]
        self.state = state

    def end(self, event: Event) -> None:
        """Go to a state that is an end, and have the store forget what it keeps."""
        self.to(event)
        self.release()

    @property
    def is_unknown(self) -> bool:
        """Return whether a commit was sent whose outcome is not known."""
        return self.state is TransactionState.UNKNOWN or self.state is TransactionState.ASKING

    @property
    def may_end(self) -> bool:
        """Return whether it can be committed, or rolled back."""
        return self.state is TransactionState.OPEN or self.state is TransactionState.UNKNOWN

    def check_is_users(self) -> None:
        """Check that its user may end it.

        Raises:
            Invalid: only its worker may end it.
        """
        if self.ended_by:
            raise Invalid(
                f"this transaction is ended by its {self.ended_by}: it commits when the function "
                "returns, and rolls back when the function raises something "
                "(postroom.Reject(reason, delay=...), postroom.Discard(reason)); nothing was "
                "changed by this call"
            )

    def abandon(self) -> None:
        """Accept no more calls, wherever its function is; :meth:`release` comes later."""
        if self.may_end:
            self.to(Event.GIVE_UP)
            self.closed = f"given up by its {self.ended_by}"

    def check_may_end(self) -> None:
        """Check that it can be committed or rolled back.

        Raises:
            TransactionClosed: it has ended, or is being committed.
        """
        if not self.may_end:
            self.check_open()

    def release(self) -> None:
        """Have the store forget its locks and claims."""
        if self.holds:
            post(self._sender, ReleaseLocks(self._id))
            self.holds = False  # last, since an interrupt may come before

    # --- time

    def start_clock(self) -> None:
        """Begin its time now."""
        self.began = self._sender.reading()
        self.expires = self._sender.monotonic() + self.timeout

    def remaining(self) -> float:
        """Return how many seconds are left; 0 if its time is over."""
        return max(self.expires - self._sender.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        """Return whether its time is over."""
        return self._sender.monotonic() > self.expires

    # --- taking calls

    def check_open(self) -> None:
        """Check that it accepts calls, before a call that only gathers.

        The next read or commit tells whether its time is over.

        Raises:
            TransactionClosed: it has ended, or its commit was sent.
        """
        if self.closed:
            first = ""
            if self.state is TransactionState.UNKNOWN:
                first = "commit it again, which tells what became of it, or roll it back, and "
            raise TransactionClosed(
                f"the transaction was {self.closed} already; nothing was changed by this call: "
                f"{first}begin a new one"
            )

    def check_still_open(self) -> None:
        """Check that it is still open, after a call that locks; otherwise give the lock back.

        Raises:
            TransactionClosed: it has ended meanwhile.
        """
        if self.closed:
            self.release()
            self.check_open()

    def check_alive(self) -> None:
        """Check that it is open and has time left, before a call that asks the store.

        Raises:
            TransactionClosed: it has ended, or its commit was sent.
            TransactionExpired: its time is over.
        """
        if self.closed:
            self.check_open()
        if self._sender.monotonic() > self.expires:
            raise expired(self.timeout)
