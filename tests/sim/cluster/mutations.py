"""Breaks promises on purpose, to see that the simulation finds each of them.

``python -m tests.sim.cluster.mutations`` runs seeds under each mutation until one fails, and says
which one it was, and what told. A mutation that none of the seeds finds means that a fault, a
workload or a checker is missing. Each replaces one function of the product while it is in force.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.raft import group as raft_group
from postroom.raft.election import Elections
from postroom.raft.journal import Journal
from postroom.raft.messages import Append
from postroom.raft.replication import Feeding, Following
from postroom.ranges import lease as leases
from postroom.ranges.lease import Lease
from postroom.ranges.state import RangeState, decode_command
from postroom.ranges.tenure import Tenure
from postroom.ranges.transactions import Committer
from postroom.server.node import Node
from tests.sim.cluster.simulation import EVENTS, ClusterSimulation

Patch = tuple[Any, str, Any]
"""Where, what, and by what it is replaced."""


def lease_margin_off() -> Patch:
    """A successor waits less than the holder serves, by a tenth."""
    return leases, "DRIFT_SHARE", -0.1


def lease_not_waited_for() -> Patch:
    """A new leader takes the lease at once."""
    return Lease, "wait_seconds", lambda self, node_id: 0.0


def lease_never_ends() -> Patch:
    """A holder serves until it hears of another lease."""
    return Tenure, "serves", lambda self, now: self.serves_from != 0


def lease_starts_too_early() -> Patch:
    """A new lease starts by its holder's own clock, wherever the one before it ends."""

    def successor(self: Tenure) -> Lease:
        return leases.successor(self.lease, self._node_id, self._clock.now(), self._seconds)

    return Tenure, "successor", successor


def lease_not_checked() -> Patch:
    """What a deposed leaseholder proposed takes effect under its successor's lease."""
    apply = RangeState.apply

    def unchecked(self: RangeState, index: int, *rest: Any) -> None:
        lease = self._tenure.lease
        command, context = rest[1], rest[2]
        decided = getattr(context, "command", None) or decode_command(command)
        self._tenure.lease = _with_sequence(lease, decided.lease_sequence)
        before = self._tenure.lease
        apply(self, index, *rest)
        if self._tenure.lease is before:
            self._tenure.lease = lease

    return RangeState, "apply", unchecked


def vote_not_stored() -> Patch:
    """A vote is given, and is forgotten with the power."""

    def set_term(self: Journal, term: int, vote: Any) -> None:
        entered = term > self.term
        self.term, self.vote = term, vote
        if entered:
            self._hard_state_changed = self.needs_sync = self.enters_term = True

    return Journal, "set_term", set_term


def votes_for_anybody() -> Patch:
    """A candidate's log need not be up to date (section 5.4.1)."""
    return Elections, "_is_up_to_date", lambda self, asking: True


def sends_everything_early() -> Patch:
    """Votes, and answers to votes and appends, leave before they are durable."""

    def early(self: raft_group.Group) -> list[Any]:
        taken, self.core.outbox = self.core.outbox, []
        return taken

    return raft_group.Group, "take_early_messages", early


def cuts_blindly() -> Patch:
    """A follower cuts its log after the entry before the new ones, also where they agree."""

    def take(self: Following, message: Append) -> None:
        core, log = self._core, self._core.journal
        first = max(message.prev_index, core.commit_index, log.base_index) + 1
        if first <= log.last_index:
            log.cut(first)
        for index, (term, payload) in enumerate(message.entries, message.prev_index + 1):
            if index == log.last_index + 1:
                log.add(payload, index, term)
        core.adopt_members()

    return Following, "_take", take


def commits_earlier_terms() -> Patch:
    """A leader commits by counting also what an earlier leader had appended (section 5.4.2)."""

    def advance_commit(self: Feeding) -> None:
        core = self._core
        have = [core.match_index[peer] for peer in core.voters]
        if core.is_voter:
            have.append(core.journal.last_index)
        majority_has = sorted(have, reverse=True)[core.quorum - 1]
        core.commit_index = max(core.commit_index, majority_has)

    return Feeding, "advance_commit", advance_commit


def commits_without_majority() -> Patch:
    """One member less than a majority is enough."""

    def advance_commit(self: Feeding) -> None:
        core = self._core
        core.commit_index = max(core.commit_index, core.journal.last_index)

    return Feeding, "advance_commit", advance_commit


def never_syncs() -> Patch:
    """Answers leave before what they speak of is durable."""

    def write_turn(self: Node, writes: Any, *, sync: bool) -> None:
        del sync
        with self._one_write_at_a_time:
            self._storage.write_turn(writes, sync=False)

    return Node, "_write_turn", write_turn


def commits_twice() -> Patch:
    """A commit that is sent again is not recognised by its transaction's id."""
    return Committer, "_may_be_known", lambda self, request: False


def reads_not_checked() -> Patch:
    """A transaction commits whatever has changed since it read."""
    return sys.modules["postroom.ranges.transactions"], "_check_reads", lambda ctx, request: None


def snapshot_lies() -> Patch:
    """A snapshot claims the entries that its turn has applied and not written yet."""
    open_snapshot = RangeState.open_snapshot

    def claims_more(self: RangeState) -> Any:
        snapshot = open_snapshot(self)
        return type(snapshot)(self._applied, snapshot.chunks)

    return RangeState, "open_snapshot", claims_more


MUTATIONS: Final[tuple[Callable[[], Patch], ...]] = (
    lease_margin_off,
    lease_not_waited_for,
    lease_never_ends,
    lease_starts_too_early,
    lease_not_checked,
    vote_not_stored,
    votes_for_anybody,
    sends_everything_early,
    cuts_blindly,
    commits_earlier_terms,
    commits_without_majority,
    never_syncs,
    commits_twice,
    reads_not_checked,
    snapshot_lies,
)


def _with_sequence(lease: Lease, sequence: int) -> Lease:
    return Lease(sequence, lease.holder, lease.start, lease.expiration, lease.seconds)


@contextmanager
def in_force(mutation: Callable[[], Patch]) -> Iterator[None]:
    """The product is broken meanwhile."""
    where, name, replacement = mutation()
    original = getattr(where, name)
    setattr(where, name, replacement)
    try:
        yield
    finally:
        setattr(where, name, original)


def first_failure(
    mutation: Callable[[], Patch], seeds: range, events: int = EVENTS
) -> tuple[int, Exception] | None:
    """The first seed that fails under a mutation, and what told."""
    with in_force(mutation):
        for seed in seeds:
            try:
                ClusterSimulation(seed, events).run()
            except Exception as error:
                return seed, error
    return None


def main() -> int:
    """Tries the mutations that the command line names, or all; 1 if one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutations (default: all)")
    parser.add_argument("--runs", type=int, default=300, help="seeds for each at most")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    not_found = 0
    for mutation in MUTATIONS:
        if wanted.names and mutation.__name__ not in wanted.names:
            continue
        began = time.monotonic()
        found = first_failure(mutation, range(wanted.runs))
        not_found += found is None
        told = "NOT FOUND" if found is None else f"seed {found[0]}: {str(found[1])[:160]!r}"
        seconds = time.monotonic() - began
        print(f"{mutation.__name__}: {told} ({seconds:.0f} s)", flush=True)  # noqa: T201
    return 1 if not_found else 0


if __name__ == "__main__":
    sys.exit(main())
