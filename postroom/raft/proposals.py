"""The way of proposals through the log to the state; every proposal ends, exactly once.

::

    propose ──▶ queued ── not the leader ─────────────────────────▶ SUPERSEDED
                  │
                  ▼ appended at (index, term)
               pending ── that entry is applied ──────────────────▶ APPLIED
                  ├────── an entry of a later term is applied ────▶ SUPERSEDED
                  ├────── a snapshot covers its index ────────────▶ UNKNOWN
                  └────── leadership lost, and silence since ─────▶ UNKNOWN

The cut of an entry from this log proves nothing: another member may contain it, lead, and commit it
after all (figure 8 of the paper). An entry of a *later term* that is committed at or before its
place is the proof. Terms never fall along a log, and every later leader has the committed entry
(section 5.4.3).

Invariant: pending proposals stand in the order in which they were appended. Their terms never
fall, and within a term their indices rise.

Entries are appended, applied, and dropped::

    proposals queued ─ append ─▶ log ─ commit (:mod:`.replication`) ─▶ apply ─▶ state ─ truncate

A group of one does all of that in one step (``decide_alone``).

:class:`MemberChanges` are entries that change the members, in place of the state.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

from postroom.kv.engine import WriteSet
from postroom.limits import COMMAND_BYTES_MAX
from postroom.raft.interface import CommittedEntry, StateMachine
from postroom.raft.membership import Change, FinishReplacement, Members, changed
from postroom.raft.replication import FollowerReplication, LeaderReplication
from postroom.raft.stored_log import (
    COMMAND,
    ENTRIES_VERSION_MIN,
    KIND_VERSIONS,
    MEMBERSHIP,
    NOOP,
    membership_payload,
)
from postroom.raft.syncobj_core import LEADER, Core
from postroom.raft.transfer import LeadershipTransfer


class ProposalOutcome(enum.Enum):
    """The way in which a proposal ended. Every proposal ends, exactly once."""

    APPLIED = "applied"
    """The proposal is committed and applied here, durably."""

    SUPERSEDED = "superseded"
    """The proposal certainly never takes effect, on any replica."""

    UNKNOWN = "unknown"
    """The proposal may or may not take effect, now or later."""


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
        pending, wanted = self._pending, (index, term)
        if pending and pending[0][:2] == wanted:  # mostly, if it is
            return True
        return any(entry[:2] == wanted for entry in pending)

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
            tell(done, outcome)

    def _give_up(self) -> None:
        while self._pending:
            self.ended.append((self._pending.popleft()[3], ProposalOutcome.UNKNOWN))


def tell(done: Done, outcome: ProposalOutcome) -> None:
    """Call ``done`` of a proposal that has ended; an error of it concerns no other one."""
    try:
        done(outcome)
    except Exception:
        logger.exception("an error of the maker of a proposal, when told that it was %s", outcome)


_COMMAND_KIND: Final = COMMAND[0]
_NOOP_KIND: Final = NOOP[0]
_VIEWED_BYTES: Final = 64 * 1024
REPLAYED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the entries that are applied at a time when the group is opened."""


class LogApplication:
    """The appending and applying of entries, for one member.

    Attributes:
        goes_on: whether committed entries are left to apply: a large entry takes more than one
            turn.
    """

    def __init__(  # the readers and the writers of the log
        self,
        core: Core,
        proposals: Proposals,
        state_machine: StateMachine,
        feeding: LeaderReplication,
        following: FollowerReplication,
        transfer: LeadershipTransfer,
    ) -> None:
        """Create it over the log of ``core``."""
        self._core = core
        self._proposals = proposals
        self._state_machine = state_machine
        self._feeding = feeding
        self._following = following
        self._transfer = transfer
        self.goes_on = False

    def decide_alone(self, writes: WriteSet) -> None:
        """Append, commit, apply and truncate in one step, as a group of one."""
        core, proposals = self._core, self._proposals
        if len(core.journal):
            core.commit_index = core.journal.last_index
            self.apply(writes)
            core.journal.drop(core.applied_index)
        if not proposals.queued or self.goes_on:
            return
        self._state_machine.apply(self._decided_alone(), writes)

    def _decided_alone(self) -> Iterator[CommittedEntry]:
        """Yield the queued proposals as entries."""
        core, proposals, journal = self._core, self._proposals, self._core.journal
        index, term = core.applied_index, core.term
        while proposals.queued:
            index += 1
            command, context, done = proposals.queued[0]
            payload = b"" if context is not None and not journal.replays else command
            if type(payload) is not bytes:
                payload = encoded(payload)
            if journal.replays:
                journal.write_only(payload, index, term)
            yield index, term, b"" if context is not None else payload, context
            del proposals.queued[0]
            proposals.ended.append((done, ProposalOutcome.APPLIED))
            core.applied_alone(index)
            journal.pass_over(index, term)

    def note_alone(self, writes: WriteSet) -> Done:
        """Append, commit and apply one proposal, if the log is at rest.

        The log nearly always is: on a node with many groups, each proposal is a turn of its own.
        If this raises, nothing was staged.

        Returns:
            The function that is to be told that the proposal is applied.
        """
        core, queued = self._core, self._proposals.queued
        command, context, done = queued[0]
        index, term = core.applied_index + 1, core.term
        payload = command if type(command) is bytes else encoded(command)
        applied = payload if context is None else b""
        self._state_machine.apply(((index, term, applied, context),), writes)
        core.journal.note(payload, index, term, writes)
        del queued[0]
        core.applied_alone(index)
        return done

    def append_queued(self) -> None:
        """Append the queued proposals as a leader, or refuse them as another member."""
        core, proposals = self._core, self._proposals
        if core.role != LEADER:
            proposals.refuse()
        while proposals.queued:
            command, context, done = proposals.queued[0]
            payload = COMMAND + encoded(command)
            if len(payload) > COMMAND_BYTES_MAX:
                raise ValueError(f"a command of {len(payload)} bytes, over {COMMAND_BYTES_MAX}")
            index = core.journal.last_index + 1
            core.journal.add(payload, index, core.term)
            del proposals.queued[0]
            proposals.appended(index, core.term, context, done)

    def apply(self, writes: WriteSet) -> None:
        """Apply the committed entries, those that a turn has room for in one pass."""
        core = self._core
        if core.installing:
            return
        self.goes_on = False
        if core.applied_index < core.commit_index:
            self._state_machine.apply(self._committed(), writes)
        if not core.is_voter and core.role == LEADER and self._has_applied_members():
            # A leader that is no longer a member steps down once its removal is committed (section
            # 6).
            self._transfer.depart()
            core.become_follower(core.term, None)

    def _committed(self) -> Iterator[CommittedEntry]:
        """Yield the committed entries up to one that needs another turn."""
        core, proposals, journal = self._core, self._proposals, self._core.journal
        for payload, index, term in journal.entries(core.applied_index + 1, core.commit_index):
            kind = payload[0]
            if kind == _COMMAND_KIND and not (
                proposals.is_pending(index, term)
                or self._state_machine.prepare(index, term, memoryview(payload)[1:])
            ):
                self.goes_on = True
                return
            context = proposals.applied(index, term)
            command = _command_of(payload) if kind == _COMMAND_KIND else None
            if kind > _NOOP_KIND:
                journal.members_applied(index)
            yield index, term, command, context
            core.applied_index = index

    def _has_applied_members(self) -> bool:
        return self._core.applied_index >= self._core.journal.members_index

    def replay(self) -> Iterator[WriteSet]:
        """Yield the writes that the state lacks of the committed entries, when the group is opened.

        Each piece is written before the next one is asked for. An only voter has committed all that
        its log contains; another member's entries are committed as far as its log says.
        """
        core = self._core
        known = core.journal.last_index if core.is_only_voter else core.journal.committed_index
        while core.applied_index < known and not core.installing:
            entries = core.journal.batch(core.applied_index + 1, REPLAYED_BYTES)
            core.commit_index = min(entries[-1][1], known)
            writes: WriteSet = {}
            core.journal.begin(writes)
            self.apply(writes)
            yield writes
        if core.is_only_voter:
            core.journal.drop(core.applied_index)

    def truncate(self) -> None:
        """Drop entries that no member wants, or of which there are too many."""
        core, log, options = self._core, self._core.journal, self._core.options
        if log.base_index == core.applied_index:
            return
        entries_max, bytes_max = options.log_entries_max, options.log_bytes_max
        keeps, factor = core.applied_index, options.log_catching_up_factor
        kept = log.last_index - log.base_index
        if kept <= entries_max and log.bytes_kept <= bytes_max:
            wanted = self._feeding.all_have() if core.role == LEADER else None
            keeps = self._following.leader_base_index if wanted is None else wanted
        elif kept <= entries_max * factor and log.bytes_kept <= bytes_max * factor:
            keeps = self._feeding.all_that_answer_have() if core.role == LEADER else keeps
        log.drop(min(core.applied_index, keeps))


def _command_of(payload: bytes) -> bytes | memoryview:
    """Return the command in a payload, without copying a large one."""
    return payload[1:] if len(payload) < _VIEWED_BYTES else memoryview(payload)[1:]


class MemberChanges:
    """The changes that were asked of one member of a group.

    A change takes effect at every member as soon as its entry is in the log, committed or not. It
    is undone if the entry is cut. A change that is asked for at a wrong moment is refused, not
    kept: the caller knows what to do next.

    A replacement takes two entries, the joint members and the new ones (section 4.3). The leader
    appends the second one, without a request, as soon as it has applied the first.
    """

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
