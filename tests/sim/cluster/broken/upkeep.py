"""Mutations of garbage, the feed, locks and services."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from postroom.kv import versions
from postroom.ranges.commit_waits import CommitWaits
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.garbage import Collector, GarbageLists
from postroom.ranges.locks import LockTable, Token
from postroom.ranges.long_checks import LongChecks
from postroom.ranges.memory import LeaseMemory
from postroom.ranges.protections import Protections
from postroom.ranges.requests import CommittedChanges
from postroom.ranges.waiting import Spans, UserSpan
from postroom.server.cluster.answer_queue import AnswerQueue
from tests.sim.cluster.broken import Patch


def collection_ignores_protections() -> Patch:
    """Remove what a snapshot still reads."""
    return Protections, "limit", lambda self, threshold: threshold


def collects_too_early() -> Patch:
    """Collect versions and COMMIT records at once, whoever may still ask for them."""
    return Collector, "_age", property(lambda _: 0)


def collection_is_not_told() -> Patch:
    """Answer reads below the threshold from what is left."""

    def advance(self: GarbageLists, ctx: Any, last: bytes) -> None:
        ctx.after.append(lambda: self._skip_to(last))

    return GarbageLists, "_advance", advance


def collects_heads() -> Patch:
    """Remove a head although it holds a newer value than the tombstone that was listed."""

    def remove(self: GarbageLists, ctx: Any, garbage: list[bytes], stamp: bytes) -> int:
        for key in garbage:
            ctx.writes[key] = None
        return len(garbage)

    return GarbageLists, "_remove", remove


def garbage_is_not_listed() -> Patch:
    """List no tombstones, so that they stay for ever."""
    delete_version = Evaluation.delete_version

    def unlisted(self: Evaluation, head: bytes, old: bytes | None) -> bool:
        before = len(self.garbage)
        deleted = delete_version(self, head, old)
        if deleted:
            del self.garbage[before:]
        return deleted

    return Evaluation, "delete_version", unlisted


def feed_forgets() -> Patch:
    """Remember only the last change of each proposal."""
    remember = ChangeFeed._remember
    return ChangeFeed, "_remember", lambda self, changes, last: remember(self, changes[-1:], last)


def watches_are_not_found() -> Patch:
    """Wake none of the watches of spans at a commit."""
    holding = Spans.holding

    def points(self: Spans, key: bytes) -> list[UserSpan]:
        return [span for span in holding(self, key) if span.end == span.start + b"\x00"]

    return Spans, "holding", points


def long_checks_hear_nothing() -> Patch:
    """Do not compare writes beside a check with what it has seen."""
    return LongChecks, "hear", lambda self, written: None


def feed_promises_too_much() -> Patch:
    """Answer that a feed is complete farther than it is."""
    feed = sys.modules["postroom.ranges.feed"]
    bounded = feed._bounded

    def further(changes: Any, until: int) -> CommittedChanges:
        told: CommittedChanges = bounded(changes[:2], until)
        return told

    return feed, "_bounded", further


def feed_begins_late() -> Patch:
    """Tell only the newest version of each key."""
    found = versions.changes

    def newest(*rest: Any) -> Any:
        seen: set[bytes] = set()
        for change in found(*rest):
            if change is None or change.key in seen:
                yield None
            else:
                seen.add(change.key)
                yield change

    return versions, "changes", newest


def locks_everybody() -> Patch:
    """Grant a lock to everybody."""
    acquire = LockTable.acquire

    def one_each(self: LockTable, token: Token, transaction_id: bytes, now: int = 0) -> None:
        acquire(self, token, transaction_id, now)

    return LockTable, "acquire", one_each


def writers_wait_for_no_lock() -> Patch:
    """Let a client that writes a locked key without asking not wait."""

    def nothing(*_: Any, takes: bool = False) -> None:
        del takes

    return CommitWaits, "blocker", nothing


def wakes_nobody() -> Patch:
    """Look at those who wait for a lock or a message only when a deadline has passed."""
    wake = LeaseMemory.wake

    def only_services(self: LeaseMemory, tokens: Iterable[object]) -> None:
        wake(self, [token for token in tokens if not isinstance(token, bytes)])

    return LeaseMemory, "wake", only_services


def collector_ends() -> Patch:
    """End a service after its first round."""

    async def run(self: Collector) -> None:
        await self.sleep(self.interval_seconds())

    return Collector, "run", run


def nobody_reads_on() -> Patch:
    """Read from a client not again, before there is something to send to it."""
    return AnswerQueue, "nudge", lambda self: None
