"""Mutations of transactions over several ranges, and of the reads in them."""

from __future__ import annotations

from typing import Any

import msgspec

from postroom.client.reading import Reads
from postroom.ranges.transactions.coordinator import CommitRun
from postroom.ranges.transactions.intents import IntentTable
from postroom.ranges.transactions.one_range import check_reads
from postroom.ranges.transactions.prepared import Participation
from postroom.ranges.transactions.push import Pushes
from postroom.ranges.transactions.requests import Prepared
from postroom.ranges.transactions.resolver import Resolver
from tests.sim.cluster.broken import Patch


def no_record_of_what_was_only_read() -> Patch:
    """Check what was read in a range that nothing is written in, and keep nobody away from it."""
    prepare = Participation.prepare

    def without(self: Participation, ctx: Any, request: Any, *, is_checked: bool = False) -> Any:
        if request.writes:
            return prepare(self, ctx, request, is_checked=is_checked)
        self._intents.check_transaction(request)
        check_reads(ctx, request)
        return Prepared(ctx.timestamp, [])

    return Participation, "prepare", without


def record_goes_below_the_commit() -> Patch:
    """Let the record of what was only read go before the clock has passed the commit."""
    resolve = Participation.resolve

    def early(self: Participation, ctx: Any, request: Any) -> Any:
        intent = self._intents.by_transaction.get(request.transaction_id)
        if intent is not None and not intent.written and intent.ballot == request.ballot:
            self._end(ctx, intent, commits=True)
            return None
        return resolve(self, ctx, request)

    return Participation, "resolve", early


def any_ballot_is_resolved() -> Patch:
    """Resolve a record, whatever run of the commit has prepared it."""
    resolve = Participation.resolve

    def anyhow(self: Participation, ctx: Any, request: Any) -> Any:
        intent = self._intents.by_transaction.get(request.transaction_id)
        if intent is not None:
            timestamp = request.timestamp and max(request.timestamp, intent.timestamp)
            request = msgspec.structs.replace(request, ballot=intent.ballot, timestamp=timestamp)
        return resolve(self, ctx, request)

    return Participation, "resolve", anyhow


def run_that_is_over_commits() -> Patch:
    """Let a run commit that has taken too long, was wounded, or was begun under another lease."""
    return CommitRun, "is_over", property(lambda _: False, lambda _, __: None)


def readers_wait_for_no_intent() -> Patch:
    """Let readers pass by what transactions over several ranges are about to write."""
    return IntentTable, "check_reader", lambda self, concern, at, age=(0, b""): None


def commits_wait_for_no_intent() -> Patch:
    """Let commits change what transactions over several ranges have read or will write."""
    return IntentTable, "check_transaction", lambda self, request: None


def push_moves_no_clock() -> Patch:
    """Say that a transaction will commit later, without passing over that timestamp."""
    begin = Pushes.__init__

    def without(self: Pushes, pass_over: Any, monotonic: Any) -> None:
        begin(self, lambda _: None, monotonic)

    return Pushes, "__init__", without


def timestamp_never_moves_up() -> Patch:
    """Read in a further range at the timestamp of the first one, whatever is newer there."""

    async def stay(self: Reads, latest: int) -> None:
        self.timestamp = self.timestamp or latest

    return Reads, "_move", stay


def timestamp_moves_without_a_check() -> Patch:
    """Move the timestamp up without a look at what was read before."""

    async def move(self: Reads, latest: int) -> None:
        self.timestamp = max(self.timestamp, latest)

    return Reads, "_move", move


def ranges_hear_of_no_commit() -> Patch:
    """Forget which ranges have to hear of a commit, before they have."""

    def forget(self: Resolver, name: bytes, commit: Any) -> None:
        del commit
        self._heard[name] = None
        self._wake()

    return Resolver, "tell", forget
