"""The transfer of leadership on purpose (dissertation, section 3.10).

::

    asked ──▶ no new entries, the target is fed ──▶ it has all: TimeoutNow ──▶ it campaigns at once
                     │                                      │
                     └──────── an election time-out ────────┴──▶ given up: this leader goes on

Proposals that come meanwhile wait. They are appended if the transfer is given up, and end as
superseded, never having been entries, when leadership is lost.

The target asks for votes without a straw poll, and says that the leader wants it; voters that hear
the leader then answer all the same. The votes make the new leader legitimate; the transfer only
chooses the moment and the candidate.
"""

from __future__ import annotations

from pysyncobj.node import Node

from postroom.raft.interface import NodeId
from postroom.raft.messages import TimeoutNow
from postroom.raft.replication import LeaderReplication
from postroom.raft.syncobj_core import LEADER, Core


class LeadershipTransfer:
    """The transfer of one group's leadership by its leader, at most one at a time."""

    def __init__(self, core: Core, feeding: LeaderReplication) -> None:
        """Create it without a transfer under way."""
        self._core = core
        self._feeding = feeding
        self._target: Node | None = None
        self._give_up_at = 0.0
        self._ask_at = 0.0

    @property
    def is_under_way(self) -> bool:
        """Return whether new entries are kept back."""
        return self._target is not None

    def deadline(self) -> float | None:
        """Return when the transfer is given up, or ``None`` if none is under way."""
        return None if self._target is None else self._give_up_at

    def begin(self, to: NodeId | None) -> None:
        """Begin to hand over to ``to``, or to the voter that has most, if that is possible."""
        core = self._core
        if core.role != LEADER:
            return
        target = self._best() if to is None else core.voter(to)
        if target is not None and not self._feeding.is_installing(target):
            self._target = target
            self._ask_at = core.now
            self._give_up_at = core.now + core.options.election_seconds_max

    def tick(self) -> None:
        """Give up after an election time-out, or when the transfer has become impossible."""
        core, target = self._core, self._target
        if target is not None and (
            core.role != LEADER or core.now >= self._give_up_at or target not in core.voters
        ):
            self._target = None

    def send(self) -> None:
        """Tell the target to campaign once it has all entries, and again if that may be lost."""
        core, target = self._core, self._target
        if target is None or core.match_index[target] != core.journal.last_index:
            return
        if core.now >= self._ask_at:
            self._ask_at = core.now + core.options.heartbeat_seconds
            core.send(target.id, TimeoutNow(core.term))

    def depart(self) -> None:
        """Have the best voter campaign, if it has all entries, before stepping down for good."""
        core, best = self._core, self._best()
        if best is not None and core.match_index[best] == core.journal.last_index:
            core.send(best.id, TimeoutNow(core.term))

    def _best(self) -> Node | None:
        """Return the voter that has most, of those that have answered lately."""
        core = self._core
        since = core.now - core.options.election_seconds_min
        able = [
            peer
            for peer in core.voters
            if core.answered_at[peer] >= since and not self._feeding.is_installing(peer)
        ]
        return max(able, key=lambda peer: core.match_index[peer], default=None)
