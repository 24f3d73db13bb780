"""The proposals of this member that have not ended. Every proposal ends, exactly once.

::

    propose ──▶ queued ── not the leader ─────────────────────────▶ SUPERSEDED
                  │
                  ▼ appended at (index, term)
               pending ── that entry is applied ──────────────────▶ APPLIED
                  ├────── an entry of a later term is applied ────▶ SUPERSEDED
                  ├────── a snapshot covers its index ────────────▶ UNKNOWN
                  └────── leadership lost, and silence since ─────▶ UNKNOWN

The cut of an entry from this log proves nothing: another member may hold it, lead, and commit it
after all (figure 8 of the paper). An entry of a *later term* that is committed at or before its
place is the proof. Terms never fall along a log, and every later leader has the committed entry
(section 5.4.3).

Invariant: pending proposals stand in the order in which they were appended. Their terms never
fall, and within a term their indices rise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from postroom.raft.outcome import ProposalOutcome

logger = logging.getLogger(__name__)

Command: TypeAlias = bytes | msgspec.Struct
"""The proposed command. A struct is encoded as MessagePack, and only if its entry is written."""

Done: TypeAlias = Callable[[ProposalOutcome], None]
Queued: TypeAlias = tuple[Command, object, Done]

_encode = msgspec.msgpack.Encoder().encode


def encoded(command: Command) -> bytes:
    """Return ``command`` as it is replicated."""
    return command if isinstance(command, bytes) else _encode(command)


class Proposals:
    """The proposals of one group on this node."""

    def __init__(self) -> None:
        """Create an empty set of proposals."""
        self.queued: deque[Queued] = deque()
        self.ended: list[tuple[Done, ProposalOutcome]] = []
        self._pending: deque[tuple[int, int, object, Done]] = deque()
        self.give_up_at: float | None = None
        """The time at which pending proposals of a deposed leader end as unknown."""

    def appended(self, index: int, term: int, context: object, done: Done) -> None:
        """Note that a proposal has become the entry (``index``, ``term``)."""
        self._pending.append((index, term, context, done))

    def applied(self, index: int, term: int) -> object | None:
        """Note that the entry (``index``, ``term``) is being applied.

        Returns:
            Its context, if it was proposed here and is pending.
        """
        pending = self._pending
        while pending and pending[0][1] < term:
            self.ended.append((pending.popleft()[3], ProposalOutcome.SUPERSEDED))
        if not pending or pending[0][:2] != (index, term):
            return None
        _, _, context, done = pending.popleft()
        self.ended.append((done, ProposalOutcome.APPLIED))
        return context

    def is_pending(self, index: int, term: int) -> bool:
        """Return whether the entry (``index``, ``term``) is pending here."""
        return any(entry[:2] == (index, term) for entry in self._pending)

    def covered(self, index: int) -> None:
        """End as unknown the pending proposals up to ``index``, which a snapshot replaces."""
        for entry in [entry for entry in self._pending if entry[0] <= index]:
            self._pending.remove(entry)
            self.ended.append((entry[3], ProposalOutcome.UNKNOWN))

    def leadership_lost(self, give_up_at: float) -> None:
        """Set when pending proposals end, which another leader may still apply for a while."""
        if self._pending and self.give_up_at is None:
            self.give_up_at = give_up_at

    def tick(self, now: float) -> None:
        """End the proposals that have been pending too long since leadership was lost."""
        if self.give_up_at is not None and now >= self.give_up_at:
            self.give_up_at = None
            self._give_up()

    def refuse(self) -> None:
        """Refuse the queued proposals, since this member does not lead; none becomes an entry."""
        while self.queued:
            self.ended.append((self.queued.popleft()[2], ProposalOutcome.SUPERSEDED))

    def abandon(self) -> None:
        """End all proposals, because the group stops and this turn may not become durable."""
        self.ended = [
            (done, ProposalOutcome.UNKNOWN if outcome is ProposalOutcome.APPLIED else outcome)
            for done, outcome in self.ended
        ]
        self._give_up()
        self.refuse()

    def tell(self) -> None:
        """Call ``done`` of each proposal that has ended, even if an earlier one raises."""
        ended, self.ended = self.ended, []
        for done, outcome in ended:
            try:
                done(outcome)
            except Exception:
                logger.exception("whoever made a proposal failed when told that it was %s", outcome)

    def _give_up(self) -> None:
        while self._pending:
            self.ended.append((self._pending.popleft()[3], ProposalOutcome.UNKNOWN))
