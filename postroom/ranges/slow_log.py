"""The log of slow commits and locks, of what they waited for, and of commits that have lost.

While it is on (``--slow``, or the setting ``slow``), a replica puts calls into others that take
their times.

::

    arrived ───────────────────▶ in a proposal ──────────▶ synced ─────────────▶ answered
            commits of others,                  the sync          with other members:
            or a lock (from the                 of this node      a majority
            first time in line for one)

A majority of others may have it before this node has. Then only the majority is told.

Lines have no values and no payloads, and keys are shortened. Their number is bounded
(:mod:`postroom.log_once`): the rest is counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from postroom.errors import TransactionConflict, shorten
from postroom.log_once import LogOnce
from postroom.ranges.calls import Call, Proposal
from postroom.ranges.ports import Onlooker, SeenRange
from postroom.ranges.requests import CommitTransaction, GetForUpdate, Lock

if TYPE_CHECKING:
    from postroom.ranges.held_answers import HeldAnswers

_SHOWN_KEY_BYTES: Final = 16
_TIMED: Final = frozenset((CommitTransaction, GetForUpdate, Lock))

_log: Final = logging.getLogger("postroom.slow")


class SlowLog:
    """The log of slow and lost transactions of one node.

    Args:
        monotonic: returns the time in seconds.
        onlookers: the onlookers of the node, one of which it is while it is on.

    Attributes:
        is_on: whether it takes times.
        timed: the calls whose times it takes, by those in whose place they are.
        proposed: those of them that are in a proposal of this turn.
    """

    def __init__(self, monotonic: Callable[[], float], onlookers: list[Onlooker]) -> None:
        self._monotonic = monotonic
        self._onlookers = onlookers
        self._seconds = math.inf
        self._slow, self._lost = LogOnce(), LogOnce()
        self.is_on = False
        self.timed: dict[Call, TimedCall] = {}
        self.proposed: list[TimedCall] = []

    def change(self, seconds: float) -> None:
        """Log what takes this long from now on; infinity: nothing is logged."""
        was_on, self._seconds, self.is_on = self.is_on, seconds, seconds < math.inf
        if self.is_on and not was_on:
            self._onlookers.append(self.in_time)
        elif was_on and not self.is_on:
            self._onlookers.remove(self.in_time)

    def in_time(self, at: SeenRange, call: Call) -> Call:
        """Return a call that takes the times of ``call``; that itself if it is of another kind."""
        if type(call.request) not in _TIMED or type(call) is TimedCall:
            return call
        self.timed[call] = timed = TimedCall(
            call, self._monotonic, self._has_ended, has_peers=len(at.group.members) > 1
        )
        return timed

    def taken_out(self, call: Call) -> Call:
        """Return the call that is in place of ``call``, whose times are not taken any more."""
        return self.timed.pop(call, call)

    def proposes(self, proposal: Proposal) -> None:
        """Note that calls are in a proposal."""
        now = self._monotonic()
        for call, _, _ in proposal.results:
            if type(call) is TimedCall:
                call.proposed_at, call.synced_at = now, None
                self.proposed.append(call)

    def is_durable(self) -> None:
        """Note that the proposals of this turn are synced on this node."""
        now = self._monotonic()
        for call in self.proposed:
            call.synced_at = now
        self.proposed.clear()

    def _has_ended(self, call: TimedCall, error: BaseException | None) -> None:
        """Log a call that has ended, if it was slow or has lost."""
        self.timed.pop(call.original, None)
        now = self._monotonic()
        if isinstance(error, TransactionConflict):
            self._log_lost(call, error, now)
        if now - call.arrived_at >= self._seconds:
            name = call.request.transaction_id.hex()
            self._slow.log(
                _log, (name, call.arrived_at), now, "slow: %s of transaction %s took %.3f s: %s%s",
                _told(call.request), name, now - call.arrived_at, call.waits(now),
                "" if error is None else f"; it failed: {type(error).__name__}",
            )  # fmt: skip

    def _log_lost(self, call: TimedCall, error: TransactionConflict, now: float) -> None:
        found = [shorten(key, _SHOWN_KEY_BYTES) for key in error.keys[:1]]
        found += [_told_span(*span) for span in error.spans[:1]]
        where = found[0] if found else _told(call.request)
        self._lost.log(
            _log, (type(call.request), where), now,
            "conflict at %s: %s of transaction %s has lost to another one after %.3f s",
            where, _told(call.request), call.request.transaction_id.hex(), now - call.arrived_at,
        )  # fmt: skip


class TimedCall(Call):
    """A call in place of another one, with the times at which it went on.

    Attributes:
        arrived_at: when it came.
        proposed_at: when its last proposal began; ``None``: there was none.
        synced_at: when this node had synced that; ``None``: not yet.
    """

    __slots__ = (
        "_has_peers", "_now", "_token", "_waited_for", "_waits_since", "arrived_at", "ended",
        "original", "owner", "principal", "proposed_at", "synced_at",
    )  # fmt: skip

    def __init__(
        self,
        original: Call,
        now: Callable[[], float],
        ended: Callable[[TimedCall, BaseException | None], None],
        *,
        has_peers: bool,
    ) -> None:
        self._now = now
        self._waited_for: object = None
        self._waits_since = 0.0
        super().__init__(original.request, urgent=original.urgent)
        self.original, self.within = original, original.within
        self.owner, self.principal = original.owner, original.principal
        self.ended = ended
        self._has_peers = has_peers
        self.arrived_at = now()
        self.proposed_at: float | None = None
        self.synced_at: float | None = None

    @property
    def token(self) -> object:
        """Return the token for which it is in line."""
        return self._token

    @token.setter
    def token(self, token: object) -> None:
        self._token = token
        if token is not None and self._waited_for is None:
            self._waited_for, self._waits_since = token, self._now()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Hand the answer on, then note the end."""
        self.original.complete(result, error)
        self.ended(self, error)

    def complete_after(self, names: Sequence[bytes], result: Any, held: HeldAnswers) -> None:
        """Hand the answer on, then note the end: of the time that is held nobody is told."""
        self.original.complete_after(names, result, held)
        self.ended(self, None)

    def waits(self, now: float) -> str:
        """Return what it has waited for, and for how long."""
        proposed_at = now if self.proposed_at is None else self.proposed_at
        if self._waited_for is not None and proposed_at < self._waits_since:
            proposed_at = now  # it was refused in line
        lock = 0.0 if self._waited_for is None else proposed_at - self._waits_since
        others = proposed_at - self.arrived_at - lock
        told = (
            []
            if self._waited_for is None
            else [f"{lock:.3f} s for the lock of {_told_token(self._waited_for)}"]
        )
        told.append(f"{others:.3f} s for commits of others")
        if not self._has_peers:
            told.append(f"{now - proposed_at:.3f} s for the sync")
        elif self.synced_at is None or self.synced_at < proposed_at:
            told.append(f"{now - proposed_at:.3f} s for a majority")
        else:
            told.append(f"{self.synced_at - proposed_at:.3f} s for the sync")
            told.append(f"{now - self.synced_at:.3f} s for a majority")
        return ", ".join(told)


def _told(request: CommitTransaction[Any] | GetForUpdate | Lock) -> str:
    match request:
        case CommitTransaction():
            return f"commit at {shorten(request.anchor, _SHOWN_KEY_BYTES)}"
        case GetForUpdate():
            return f"lock of {shorten(request.key, _SHOWN_KEY_BYTES)}"
    return f"locks of {len(request.keys)} keys and {len(request.spans)} spans"


def _told_token(token: object) -> str:
    if isinstance(token, bytes):
        return shorten(token, _SHOWN_KEY_BYTES)
    return _told_span(*token) if isinstance(token, tuple) and len(token) == 2 else "other keys"


def _told_span(start: bytes, end: bytes | None) -> str:
    last = "the last key" if end is None else shorten(end, _SHOWN_KEY_BYTES)
    return f"the keys from {shorten(start, _SHOWN_KEY_BYTES)} to {last}"
