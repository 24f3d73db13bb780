"""What was proposed here and has not ended: every proposal ends, exactly once.

::

    propose ──▶ queued ── not the leader ─────────────────────────▶ SUPERSEDED
                  │
                  ▼ appended at (index, term)
               pending ── that entry is applied ──────────────────▶ APPLIED
                  ├────── an entry of a later term is applied ────▶ SUPERSEDED
                  ├────── a snapshot covers its index ────────────▶ UNKNOWN
                  └────── leadership lost, and silence since ─────▶ UNKNOWN

That an entry is cut from this log proves nothing: another member may hold it, lead, and commit it
after all (figure 8 of the paper). What proves it is an entry of a *later term* that is committed
at or before its place: terms never fall along a log, and every later leader has the committed
entry (section 5.4.3).

Invariant: pending proposals stand in the order in which they were appended, so their terms never
fall, and within a term their indices rise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from postroom.raft.outcome import Outcome

logger = logging.getLogger(__name__)

Command: TypeAlias = bytes | msgspec.Struct
"""What is proposed. A struct is encoded as MessagePack, and only if its entry is written."""

Done: TypeAlias = Callable[[Outcome], None]
Queued: TypeAlias = tuple[Command, object, Done]

_encode = msgspec.msgpack.Encoder().encode


def encoded(command: Command) -> bytes:
    """``command`` as it is replicated."""
    return command if isinstance(command, bytes) else _encode(command)


class Proposals:
    """The proposals of one group on this node."""

    def __init__(self) -> None:
        """Nothing is proposed yet."""
        self.queued: deque[Queued] = deque()
        self.ended: list[tuple[Done, Outcome]] = []
        self._pending: deque[tuple[int, int, object, Done]] = deque()
        self.give_up_at: float | None = None
        """When pending proposals of a deposed leader end as unknown."""

    def appended(self, index: int, term: int, context: object, done: Done) -> None:
        """A proposal has become the entry (``index``, ``term``)."""
        self._pending.append((index, term, context, done))

    def applied(self, index: int, term: int) -> object | None:
        """The entry (``index``, ``term``) is being applied: its context, if it is one of these."""
        pending = self._pending
        while pending and pending[0][1] < term:
            self.ended.append((pending.popleft()[3], Outcome.SUPERSEDED))
        if not pending or pending[0][:2] != (index, term):
            return None
        _, _, context, done = pending.popleft()
        self.ended.append((done, Outcome.APPLIED))
        return context

    def is_pending(self, index: int, term: int) -> bool:
        """Whether the entry (``index``, ``term``) is one of these."""
        return any(entry[:2] == (index, term) for entry in self._pending)

    def covered(self, index: int) -> None:
        """A snapshot stands for the entries up to ``index``: nobody can tell which they were."""
        for entry in [entry for entry in self._pending if entry[0] <= index]:
            self._pending.remove(entry)
            self.ended.append((entry[3], Outcome.UNKNOWN))

    def leadership_lost(self, give_up_at: float) -> None:
        """What is pending may still be applied by another leader, for a while."""
        if self._pending and self.give_up_at is None:
            self.give_up_at = give_up_at

    def tick(self, now: float) -> None:
        """Give up on what has been pending too long since leadership was lost."""
        if self.give_up_at is not None and now >= self.give_up_at:
            self.give_up_at = None
            self._give_up()

    def refuse(self) -> None:
        """This member does not lead: what is queued never becomes an entry."""
        while self.queued:
            self.ended.append((self.queued.popleft()[2], Outcome.SUPERSEDED))

    def abandon(self) -> None:
        """The group stops, and what this turn staged is not known to be durable."""
        self.ended = [
            (done, Outcome.UNKNOWN if outcome is Outcome.APPLIED else outcome)
            for done, outcome in self.ended
        ]
        self._give_up()
        self.refuse()

    def tell(self) -> None:
        """Call everybody whose proposal has ended. One that raises does not silence the others."""
        ended, self.ended = self.ended, []
        for done, outcome in ended:
            try:
                done(outcome)
            except Exception:
                logger.exception("whoever made a proposal failed when told that it was %s", outcome)

    def _give_up(self) -> None:
        while self._pending:
            self.ended.append((self._pending.popleft()[3], Outcome.UNKNOWN))
