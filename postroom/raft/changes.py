"""Changes of the members on their way into the log: one at a time (dissertation, section 4.1).

A change takes effect as soon as its entry is in the log, committed or not, at the leader as
everywhere; and it goes again if the entry is cut. What is asked for at a wrong moment is turned
down, not kept: whoever asked knows what to do next.
"""

from __future__ import annotations

from postroom.raft.journal import membership_payload
from postroom.raft.membership import Change, changed
from postroom.raft.outcome import Outcome
from postroom.raft.proposals import Done, Proposals
from postroom.raft.syncobj_core import LEADER, Core
from postroom.raft.transfer import Transfer


class MemberChanges:
    """The changes that were asked of one member of a group."""

    def __init__(self, core: Core, proposals: Proposals, transfer: Transfer) -> None:
        """None was asked for."""
        self._core = core
        self._proposals = proposals
        self._transfer = transfer
        self.queued: list[tuple[Change, Done]] = []

    def append(self) -> None:
        """Make entries of those that may be, and turn the others down."""
        core, queued = self._core, self.queued
        if not queued:
            return
        self.queued = []
        for change, done in queued:
            members = changed(core.members, change) if self._may_change() else None
            if members is None:
                self._proposals.ended.append((done, Outcome.SUPERSEDED))
                continue
            index = core.journal.last_index + 1
            core.journal.add(membership_payload(members), index, core.term)
            core.adopt_members()
            self._proposals.appended(index, core.term, None, done)

    def refuse(self) -> None:
        """This replica does nothing any more."""
        self._proposals.ended += [(done, Outcome.SUPERSEDED) for _, done in self.queued]
        self.queued = []

    def _may_change(self) -> bool:
        """One change at a time, and only after an entry of the leader's own term."""
        core = self._core
        if core.role != LEADER or self._transfer.is_under_way:
            return False
        own = core.first_index_of_term
        return own is not None and core.applied_index >= max(own, core.journal.members_index)
