"""The ranges of a node, in which no commit over several ranges is under way for a moment.

::

    BeStill ─▶ no commit over several ranges begins ─▶ any under way? ─ yes ─▶ waits
                                                          │ no                   │ one has ended
                                                          └─▶ answered ◀─────────┘

Clients that may read everything may ask for this, as often as they like. Commits therefore have at
least as much time between two pauses as the first one has taken. The clock moves ahead by a limited
time in all, however often ranges are protected: it falls back by a little all the time (its *lead*,
:mod:`postroom.kv.clock`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from postroom.errors import SnapshotTooOld, Unavailable
from postroom.kv.clock import LEAD_LOST, seconds_until
from postroom.limits import WHOLE_AHEAD_SECONDS_MAX, WHOLE_LEAD_SECONDS_MAX


class RangeOfNode(Protocol):
    """A range of a node that may have to be protected as a whole."""

    def is_busy(self) -> bool:
        """Return whether transactions over several ranges are under way here."""

    @property
    def look(self) -> Callable[[], None]:
        """Return a function that has the reads which wait look again."""


class RangesOfNode:
    """The ranges of a node, which are still together before they are protected as a whole.

    The first one that is protected has the clock of the node pass over the timestamp. A
    transaction that is under way in another one would commit above that.
    """

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, RangeOfNode] = WeakValueDictionary()
        self._still_until = 0
        self._paused_at = self._commits_until = -math.inf
        self._lead = 0.0
        self._lead_at = -math.inf
        self._waiting: dict[int, int] = {}
        self._is_looking = False

    def __setitem__(self, range_id: int, of_node: RangeOfNode) -> None:
        self._by_id[range_id] = of_node

    def update(self, other: RangesOfNode) -> None:
        """Add the ranges of ``other``."""
        self._by_id.update(other._by_id)

    def be_still(self, at: int, now: int, monotonic: float) -> None:
        """Let no commit over several ranges begin before a timestamp.

        Args:
            at: the timestamp.
            now: about now, as a timestamp.
            monotonic: now, on the monotonic clock.

        Raises:
            SnapshotTooOld: it is the turn of commits.
        """
        if at <= max(now, self._still_until):
            return
        is_new = not self.are_still(now)
        paused_at = monotonic if is_new else self._paused_at
        ends_at = monotonic + seconds_until(at, now)
        is_too_long = ends_at > paused_at + WHOLE_AHEAD_SECONDS_MAX
        if is_too_long or (is_new and monotonic < self._commits_until):
            raise SnapshotTooOld(
                "commits over several ranges have waited for others that protect everything, and "
                "go on now; nothing was protected: try again with a later timestamp"
            )
        self._still_until, self._paused_at = at, paused_at
        self._commits_until = 2 * ends_at - paused_at

    def are_still(self, now: int) -> bool:
        """Return whether no commit over several ranges may begin now."""
        return self._still_until > now

    def pass_over(self, at: int, now: int, monotonic: float) -> None:
        """Note that the clock of the node is about to pass over a timestamp; a pause may end so.

        Args:
            at, now, monotonic: see :meth:`be_still`.

        Raises:
            Unavailable: it has moved by too much.
        """
        passed = monotonic - self._lead_at
        lead = max(self._lead - LEAD_LOST * passed, 0.0) if self._lead else 0.0
        lead += seconds_until(at, now)
        if lead > WHOLE_LEAD_SECONDS_MAX:
            raise Unavailable(
                "everything was protected so often that the clock is "
                f"{WHOLE_LEAD_SECONDS_MAX:g} s ahead; nothing was protected: try again later",
                retry_after=(lead - WHOLE_LEAD_SECONDS_MAX) / LEAD_LOST,
            )
        self._lead, self._lead_at = lead, monotonic
        if now < self._still_until <= at:
            self._commits_until = 2 * monotonic - self._paused_at

    def wait(self, range_id: int, at: int) -> None:
        """Note that a range waits until none of them is busy."""
        self._waiting[range_id] = max(at, self._waiting.get(range_id, 0))

    def are_busy(self) -> bool:
        """Return whether transactions over several ranges are under way."""
        return any(each.is_busy() for each in self._by_id.values())

    def look_again(self, now: int) -> None:
        """Have those that wait look again, if none of them is busy or their time has come."""
        waiting = self._waiting
        if not waiting or self._is_looking or (min(waiting.values()) > now and self.are_busy()):
            return
        self._waiting, self._is_looking = {}, True
        try:
            for each in [self._by_id[each] for each in waiting if each in self._by_id]:
                each.look()
        finally:
            self._is_looking = False
