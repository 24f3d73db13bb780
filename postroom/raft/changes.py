"""The changes of the members on their way into the log: one at a time (dissertation, chapter 4).

A change takes effect at every member as soon as its entry is in the log, committed or not. It is
undone if the entry is cut. A change that is asked for at a wrong moment is refused, not kept: the
caller knows what to do next.

A replacement takes two entries, the joint members and the new ones (section 4.3). The leader
appends the second one, without a request, as soon as it has applied the first.
"""

from __future__ import annotations

from postroom.raft.journal import (
    ENTRIES_VERSION_MIN,
    KIND_VERSIONS,
    MEMBERSHIP,
    membership_payload,
)
from postroom.raft.membership import Change, FinishReplacement, Members, changed
from postroom.raft.proposals import Done, ProposalOutcome, Proposals
from postroom.raft.replication import LeaderReplication
from postroom.raft.syncobj_core import LEADER, Core
from postroom.raft.transfer import LeadershipTransfer


class MemberChanges:
    """The changes that were asked of one member of a group."""

    def __init__(
        self,
        core: Core,
        proposals: Proposals,
        transfer: LeadershipTransfer,
        feeding: LeaderReplication,
    ) -> None:
        """Create an empty queue of changes."""
        self._core = core
        self._feeding = feeding
        self._proposals = proposals
        self._transfer = transfer
        self.queued: list[tuple[Change, Done]] = []

    def append(self) -> None:
        """Append the queued changes that are allowed now, and refuse the others."""
        queued, self.queued = self.queued, []
        for change, done in queued:
            members = self._changed(change)
            if members is None:
                self._proposals.ended.append((done, ProposalOutcome.SUPERSEDED))
            else:
                self._append_members(members, done)

    def finish_replacement(self) -> None:
        """Append the new members if the joint members are applied."""
        if self._core.members.is_joint:
            members = self._changed(FinishReplacement())
            if members is not None:
                self._append_members(members, _nobody_waits)

    def refuse(self) -> None:
        """Refuse all queued changes, because this replica has stopped."""
        self._proposals.ended += [(done, ProposalOutcome.SUPERSEDED) for _, done in self.queued]
        self.queued = []

    def _changed(self, change: Change) -> Members | None:
        if not self._may_change() or not self.is_readable(MEMBERSHIP):
            return None
        return changed(self._core.members, change)

    def is_readable(self, kind: bytes) -> bool:
        """Return whether every member that is heard can read entries of ``kind``.

        A member that cannot read an entry refuses it and all entries that follow. A silent member
        of an earlier version has to wait until it is upgraded.
        """
        since = KIND_VERSIONS[kind]
        if since <= ENTRIES_VERSION_MIN:
            return True
        heard = [each for each in self._feeding.report().values() if each.is_heard]
        return all(each.entries_version >= since for each in heard)

    def _append_members(self, members: Members, done: Done) -> None:
        core = self._core
        index = core.journal.last_index + 1
        core.journal.add(membership_payload(members), index, core.term)
        core.adopt_members()
        self._proposals.appended(index, core.term, None, done)

    def _may_change(self) -> bool:
        """Return whether a change may be appended now.

        Only one change is made at a time, and only after an entry of the leader's own term is
        applied.
        """
        core = self._core
        if core.role != LEADER or self._transfer.is_under_way:
            return False
        own = core.first_index_of_term
        return own is not None and core.applied_index >= max(own, core.journal.members_index)


def _nobody_waits(_: ProposalOutcome) -> None:
    pass
