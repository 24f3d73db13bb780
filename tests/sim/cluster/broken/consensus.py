"""Mutations of leases, elections, replication and commits.

Seen in clusters only: a store of one node elects and replicates nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from postroom.client.routing import links
from postroom.kv.engine import WriteSet
from postroom.raft import group as raft_group
from postroom.raft.election import Elections
from postroom.raft.interface import CommittedEntry
from postroom.raft.journal import Journal
from postroom.raft.messages import Append
from postroom.raft.replication import FollowerReplication, LeaderReplication
from postroom.ranges import lease as leases
from postroom.ranges.lease import LeaseHolder, RangeLease
from postroom.ranges.state import RangeState, decode_command
from postroom.ranges.transactions.one_range import Committer
from postroom.server.turn_writer import TurnWriter
from tests.sim.cluster.broken import Patch


def lease_margin_off() -> Patch:
    """Let a successor wait less than the holder serves, by a tenth."""
    return leases, "DRIFT_SHARE", -0.1


def lease_not_waited_for() -> Patch:
    """Let a new leader take the lease at once."""
    return RangeLease, "wait_seconds", lambda self, node_id: 0.0


def lease_never_ends() -> Patch:
    """Let a holder serve until it hears of another lease."""
    return LeaseHolder, "serves", lambda self, now: self.has_lease


def lease_starts_too_early() -> Patch:
    """Start a new lease by its holder's own clock, wherever the one before it ends."""

    def successor(self: LeaseHolder) -> RangeLease:
        return leases.successor(self.lease, self._node_id, self._clock.now(), self._seconds)

    return LeaseHolder, "successor", successor


def lease_not_checked() -> Patch:
    """Let proposals of a deposed leaseholder take effect under its successor's lease."""
    apply = RangeState.apply

    def unchecked(self: RangeState, entries: Iterable[CommittedEntry], staged: WriteSet) -> None:
        apply(self, _each_under_its_lease(self._lease_holder, entries), staged)

    return RangeState, "apply", unchecked


def _each_under_its_lease(
    holder: LeaseHolder, entries: Iterable[CommittedEntry]
) -> Iterator[CommittedEntry]:
    """Let each command find the lease under which it was proposed."""
    for entry in entries:
        lease, (_, _, command, context) = holder.lease, entry
        decided = getattr(context, "command", None) or (command and decode_command(command))
        holder.lease = proposed = (
            _with_sequence(lease, decided.lease_sequence) if decided else lease
        )
        yield entry
        if holder.lease is proposed:
            holder.lease = lease


def vote_not_stored() -> Patch:
    """Forget a vote with the process."""
    hard_state = Journal._hard_state

    def without_vote(self: Journal, *base: int) -> bytes:
        vote, self.vote = self.vote, None
        try:
            return hard_state(self, *base)
        finally:
            self.vote = vote

    return Journal, "_hard_state", without_vote


def later_vote_not_stored() -> Patch:
    """Forget a vote with the process if the member had entered the term before."""

    def set_term(self: Journal, term: int, vote: Any) -> None:
        entered = term > self.term
        self.term, self.vote = term, vote
        if entered:
            self._hard_state_changed = self.needs_sync = self.enters_term = True

    return Journal, "set_term", set_term


def votes_for_anybody() -> Patch:
    """Vote for a candidate whose log is not up to date (section 5.4.1)."""
    return Elections, "_is_up_to_date", lambda self, asking: True


def sends_everything_early() -> Patch:
    """Send votes, and answers to votes and appends, before they are durable."""

    def early(self: raft_group.RaftGroup) -> list[Any]:
        taken, self.core.outbox = self.core.outbox, []
        return taken

    return raft_group.RaftGroup, "take_early_messages", early


def cuts_blindly() -> Patch:
    """Cut a follower's log after the entry before the new ones, also where they agree."""

    def take(self: FollowerReplication, message: Append) -> None:
        core, log = self._core, self._core.journal
        first = max(message.prev_index, core.commit_index, log.base_index) + 1
        if first <= log.last_index:
            log.cut(first)
        for index, (term, payload) in enumerate(message.entries, message.prev_index + 1):
            if index == log.last_index + 1:
                log.add(payload, index, term)
        core.adopt_members()

    return FollowerReplication, "_take", take


def commits_earlier_terms() -> Patch:
    """Commit by counting also what an earlier leader had appended (section 5.4.2)."""

    def advance_commit(self: LeaderReplication) -> None:
        core = self._core
        have = {peer.id: core.match_index[peer] for peer in core.voters}
        have[core.node_id] = core.journal.last_index
        core.commit_index = max(core.commit_index, core.majority_value(have))

    return LeaderReplication, "advance_commit", advance_commit


def commits_without_majority() -> Patch:
    """Commit with one member less than a majority."""

    def advance_commit(self: LeaderReplication) -> None:
        core = self._core
        core.commit_index = max(core.commit_index, core.journal.last_index)

    return LeaderReplication, "advance_commit", advance_commit


def never_syncs() -> Patch:
    """Send answers before what they speak of is durable."""

    def write_turn(self: TurnWriter, writes: Any, *, sync: bool) -> None:
        del sync
        with self.one_write_at_a_time:
            self.storage.write_turn(writes, sync=False)  # type: ignore[union-attr]

    return TurnWriter, "_write_turn", write_turn


def commits_twice() -> Patch:
    """Do not recognise a commit that is sent again by its transaction's id."""
    return Committer, "_may_be_known", lambda self, request: False


def reads_not_checked() -> Patch:
    """Commit a transaction whatever has changed since it read."""
    return (
        sys.modules["postroom.ranges.transactions.one_range"],
        "check_reads",
        lambda ctx, request: None,
    )


def snapshot_lies() -> Patch:
    """Claim the applied and unwritten entries of a turn for a snapshot."""
    open_snapshot = RangeState.open_snapshot

    def claims_more(self: RangeState) -> Any:
        snapshot = open_snapshot(self)
        return type(snapshot)(self._applied, snapshot.chunks)

    return RangeState, "open_snapshot", claims_more


def leads_unanswered() -> Patch:
    """Let a leader go on although no majority answers it."""
    return Elections, "_majority_answered_at", lambda self: self._core.now


def waits_for_the_silent() -> Patch:
    """Let a client stay with a node that is silent."""
    return links, "SILENT_SECONDS", 1e9


def _with_sequence(lease: RangeLease, sequence: int) -> RangeLease:
    return RangeLease(sequence, lease.holder, lease.start, lease.expiration, lease.seconds)
