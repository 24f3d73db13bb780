"""Breaks promises on purpose, to see that the simulation finds each of them.

``python -m tests.sim.cluster.mutations`` (``make mutations``) runs seeds under each mutation until
one fails, and says which one it was, and what told. Each states within how many seeds it has to be
seen; one that is not means that a fault, a workload or a checker is missing. Each replaces one
function of the product while it is in force.

What needs a cluster to go wrong (elections, replication, leases, snapshots) is looked for in
simulated clusters; what a single leaseholder does (messages, garbage, the feed, locks, protections)
in simulated embedded stores, which are quicker.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from postroom.kv import keys, versions
from postroom.messaging import inbox as inboxes
from postroom.messaging.claims import Claims, Free
from postroom.messaging.dead_letters import DeadLetters
from postroom.messaging.delivery import Delivery
from postroom.messaging.execution import AddingUp, Execution
from postroom.messaging.inbox import Inboxes
from postroom.messaging.outbox import Outbox
from postroom.raft import group as raft_group
from postroom.raft.election import Elections
from postroom.raft.journal import Journal
from postroom.raft.messages import Append
from postroom.raft.replication import Feeding, Following
from postroom.ranges import lease as leases
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import Collector, GarbageLists
from postroom.ranges.lease import Lease
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.locks import LockTable
from postroom.ranges.protections import Protections
from postroom.ranges.replica import Replica
from postroom.ranges.requests import Changes
from postroom.ranges.state import RangeState, decode_command
from postroom.ranges.transactions import Committer
from postroom.server.node import Node
from tests.sim.cluster.simulation import EVENTS, ClusterSimulation
from tests.sim.runs import CLUSTER, EMBEDDED
from tests.sim.simulation import STEPS, Simulation

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
    return LeaseHolder, "serves", lambda self, now: self.serves_from != 0


def lease_starts_too_early() -> Patch:
    """A new lease starts by its holder's own clock, wherever the one before it ends."""

    def successor(self: LeaseHolder) -> Lease:
        return leases.successor(self.lease, self._node_id, self._clock.now(), self._seconds)

    return LeaseHolder, "successor", successor


def lease_not_checked() -> Patch:
    """What a deposed leaseholder proposed takes effect under its successor's lease."""
    apply = RangeState.apply

    def unchecked(self: RangeState, index: int, *rest: Any) -> None:
        lease = self._lease_holder.lease
        command, context = rest[1], rest[2]
        decided = getattr(context, "command", None) or decode_command(command)
        self._lease_holder.lease = _with_sequence(lease, decided.lease_sequence)
        before = self._lease_holder.lease
        apply(self, index, *rest)
        if self._lease_holder.lease is before:
            self._lease_holder.lease = lease

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
        have = {peer.id: core.match_index[peer] for peer in core.voters}
        have[core.node_id] = core.journal.last_index
        core.commit_index = max(core.commit_index, core.majority_value(have))

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


# --- messages -------------------------------------------------------------------------------------


def peek_ignores_later_reaps() -> Patch:
    """In the past, what has been reaped since is missing."""
    return inboxes, "_reaped_since", lambda view, key, at: []


def peek_shows_later_messages() -> Patch:
    """In the past, messages are there that came later."""

    class Early:
        def decode(self, stored: bytes) -> Any:
            return inboxes.Delivered(0, b"", None)

    return inboxes, "_delivered", Early()


def peek_leaves_out_the_last() -> Patch:
    """A page ends one message early, and says that it was the last one."""
    fill = inboxes.fill

    def shorter(entries: Any, entries_max: int, bytes_max: int) -> Any:
        found, more = fill(entries, entries_max, bytes_max)
        return (found if more else found[:2]), more

    return inboxes, "fill", shorter


def claims_nobody() -> Patch:
    """What one transaction has been handed, the next one is handed too."""
    return Claims, "free", lambda self, key, oldest, now: Free(oldest, {})


def claims_for_ever() -> Patch:
    """What a transaction that was rolled back had taken is not free again."""
    return Claims, "release", lambda self, transaction_id: []


def free_mark_stays() -> Patch:
    """A message that comes in below the free mark is stepped over."""
    return Claims, "arrived", lambda self, key, first: None


def reaps_what_is_gone() -> Patch:
    """A commit does not mind that another one has reaped the message."""
    find = Inboxes._find

    def blind(self: Inboxes, ctx: Any, request: Any, mail: Any) -> Any:
        prefix = keys.inbox_prefix(request.key)
        there = [id_ for id_ in request.ids if ctx.get(prefix + id_) is not None]
        return find(self, ctx, type(request)(request.key, there), mail)

    return Inboxes, "_find", blind


def index_forgets_the_first() -> Patch:
    """The index of inboxes names the newest message instead of the oldest one."""
    announce = Inboxes._announce

    def newest(self: Inboxes, ctx: Any, key: bytes, messages: int, oldest: bytes) -> None:
        announce(self, ctx, key, messages, oldest)
        mail = inboxes._mail.decode(ctx.writes[keys.mail_key(key)])
        ctx.writes[keys.mail_key(key)] = inboxes._encode(inboxes.Mail(mail.messages, oldest))

    return Inboxes, "_announce", newest


def delivers_twice() -> Patch:
    """What was scheduled stays in the outbox when it is delivered."""
    deliver_due = Delivery.deliver_due

    def without_erasing(self: Delivery, ctx: Any, request: Any) -> Any:
        erase, ctx_type = Evaluation.erase, type(ctx)
        ctx_type.erase = lambda ctx, key: None
        try:
            return deliver_due(self, ctx, request)
        finally:
            ctx_type.erase = erase

    return Delivery, "deliver_due", without_erasing


def outbox_head_runs_ahead() -> Patch:
    """The head cursor passes over what is stored while later entries are taken."""
    store = Outbox.store

    def forgetful(self: Outbox, *rest: Any) -> None:
        head = self._coming_head
        store(self, *rest)
        self._coming_head = head

    return Outbox, "store", forgetful


def adds_up_across() -> Patch:
    """Increments are added up across a write to the same key, which came between."""
    return AddingUp, "_flush", lambda self, key: None


def one_dies_all_die() -> Patch:
    """If a sum cannot be made, only its first part becomes a dead letter; the others are gone."""
    failed = Execution._failed

    def first_only(self: Execution, ctx: Any, parts: Any, error: Any) -> None:
        failed(self, ctx, parts[:1], error)

    return Execution, "_failed", first_only


def buries_nothing() -> Patch:
    """What can never succeed is just gone."""
    return DeadLetters, "bury", lambda self, *_: None


# --- garbage, the feed, locks, services -----------------------------------------------------------


def collection_ignores_protections() -> Patch:
    """What a snapshot still reads is removed."""
    return Protections, "limit", lambda self, threshold: threshold


def collects_too_early() -> Patch:
    """Versions and COMMIT records go at once, whoever may still ask for them."""
    init = Collector.__init__

    def hasty(self: Collector, *rest: Any) -> None:
        init(self, *rest)
        self._age = 0

    return Collector, "__init__", hasty


def collection_is_not_told() -> Patch:
    """Reads below the threshold are answered from what is left."""

    def advance(self: GarbageLists, ctx: Any, last: bytes) -> None:
        ctx.after.append(lambda: self._skip_to(last))

    return GarbageLists, "_advance", advance


def collects_heads() -> Patch:
    """A head goes although it holds a newer value than the tombstone that was listed."""

    def remove(self: GarbageLists, ctx: Any, garbage: list[bytes], stamp: bytes) -> int:
        for key in garbage:
            ctx.writes[key] = None
        return len(garbage)

    return GarbageLists, "_remove", remove


def garbage_is_not_listed() -> Patch:
    """Tombstones stay for ever."""
    delete_version = Evaluation.delete_version

    def unlisted(self: Evaluation, key: bytes) -> bool:
        before = len(self.garbage)
        deleted = delete_version(self, key)
        if deleted:
            del self.garbage[before:]
        return deleted

    return Evaluation, "delete_version", unlisted


def feed_forgets() -> Patch:
    """The feed remembers only the last change of each proposal."""
    remember = ChangeFeed._remember
    return ChangeFeed, "_remember", lambda self, changes: remember(self, changes[-1:])


def feed_promises_too_much() -> Patch:
    """An answer says that it is complete farther than it is."""
    feed = sys.modules["postroom.ranges.feed"]
    bounded = feed._bounded

    def further(changes: Any, until: int) -> Changes:
        told: Changes = bounded(changes[:2], until)
        return told

    return feed, "_bounded", further


def feed_begins_late() -> Patch:
    """Of the versions only the newest of each key are told."""
    found = versions.changes

    def newest(*rest: Any) -> Any:
        return list({key: (at, key, value) for at, key, value in found(*rest)}.values())

    return versions, "changes", newest


def locks_everybody() -> Patch:
    """A lock is granted to everybody."""
    return LockTable, "acquire", lambda self, token, transaction_id, now, expires: True


def wakes_nobody() -> Patch:
    """Who waits for a lock or a message is looked at again only when a deadline has passed."""
    wake = Replica.wake

    def only_services(self: Replica, tokens: list[object]) -> None:
        wake(self, [token for token in tokens if not isinstance(token, bytes)])

    return Replica, "wake", only_services


def collector_ends() -> Patch:
    """A service ends after its first round."""

    async def run(self: Collector) -> None:
        await self._sleep(self._interval_seconds)

    return Collector, "run", run


class Mutation(NamedTuple):
    """What is broken, and within how many seeds, of which kind of simulation, it has to be seen."""

    breaks: Callable[[], Patch]
    seeds: int
    kind: str = CLUSTER

    @property
    def name(self) -> str:
        """Of the mutation."""
        return self.breaks.__name__


MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(lease_margin_off, 300),
    Mutation(lease_not_waited_for, 300),
    Mutation(lease_never_ends, 300),
    Mutation(lease_starts_too_early, 300),
    Mutation(lease_not_checked, 300),
    Mutation(vote_not_stored, 300),
    Mutation(votes_for_anybody, 300),
    Mutation(sends_everything_early, 300),
    Mutation(cuts_blindly, 300),
    Mutation(commits_earlier_terms, 300),
    Mutation(commits_without_majority, 300),
    Mutation(never_syncs, 300),
    Mutation(commits_twice, 300),
    Mutation(reads_not_checked, 300),
    Mutation(snapshot_lies, 300),
    Mutation(peek_ignores_later_reaps, 100, EMBEDDED),
    Mutation(peek_shows_later_messages, 100, EMBEDDED),
    Mutation(peek_leaves_out_the_last, 100, EMBEDDED),
    Mutation(claims_nobody, 100, EMBEDDED),
    Mutation(claims_for_ever, 100, EMBEDDED),
    Mutation(free_mark_stays, 100, EMBEDDED),
    Mutation(reaps_what_is_gone, 100, EMBEDDED),
    Mutation(index_forgets_the_first, 100, EMBEDDED),
    Mutation(delivers_twice, 100, EMBEDDED),
    Mutation(outbox_head_runs_ahead, 100, EMBEDDED),
    Mutation(adds_up_across, 100, EMBEDDED),
    Mutation(one_dies_all_die, 100, EMBEDDED),
    Mutation(buries_nothing, 100, EMBEDDED),
    Mutation(collection_ignores_protections, 100, EMBEDDED),
    Mutation(collects_too_early, 100, EMBEDDED),
    Mutation(collection_is_not_told, 100, EMBEDDED),
    Mutation(collects_heads, 100, EMBEDDED),
    Mutation(garbage_is_not_listed, 100, EMBEDDED),
    Mutation(feed_forgets, 100, EMBEDDED),
    Mutation(feed_promises_too_much, 100, EMBEDDED),
    Mutation(feed_begins_late, 100, EMBEDDED),
    Mutation(locks_everybody, 100, EMBEDDED),
    Mutation(wakes_nobody, 100),
    Mutation(collector_ends, 100, EMBEDDED),
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


def first_failure(mutation: Mutation, length: int = 0) -> tuple[int, Exception] | None:
    """The first seed that fails under a mutation, and what told.

    Args:
        mutation: with the number of seeds.
        length: of each run; that of its kind if not given.
    """
    with in_force(mutation.breaks):
        for seed in range(mutation.seeds):
            try:
                if mutation.kind == CLUSTER:
                    ClusterSimulation(seed, length or EVENTS).run()
                else:
                    Simulation(seed, length or STEPS).run()
            except Exception as error:
                return seed, error
    return None


def main() -> int:
    """Tries the mutations that the command line names, or all; 1 if one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutations (default: all)")
    parser.add_argument("--runs", type=int, help="seeds for each, instead of those that it states")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    not_found = []
    for mutation in MUTATIONS:
        if wanted.names and mutation.name not in wanted.names:
            continue
        began = time.monotonic()
        found = first_failure(mutation._replace(seeds=wanted.runs or mutation.seeds))
        if found is None:
            not_found.append(mutation.name)
        told = "NOT FOUND" if found is None else f"seed {found[0]}: {str(found[1])[:160]!r}"
        told = f"{mutation.name} ({mutation.kind}, {mutation.seeds} seeds): {told}"
        print(f"{told} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
    print(f"not found: {' '.join(not_found) or 'none'}")  # noqa: T201
    return 1 if not_found else 0


if __name__ == "__main__":
    sys.exit(main())
