"""Garbage collection: versions, tombstones and COMMIT records that nobody can ask for any more.

Every proposal leaves a list of the engine keys that it made obsolete, under its timestamp. Garbage
is therefore known without looking for it: the collector takes the lists older than its threshold,
removes what they name, and then the lists. A key written a thousand times a second costs its
neighbours nothing. The removals go through the group, so that replicas stay equal.

A proposal that leaves much has several lists, so that a step of the collector is never long.

A range that was split off looks first for garbage of before its beginning (:mod:`.sweep`).

A list names engine keys that go for good (history, COMMIT records, reaped messages), and heads,
which go only if they still contain the tombstone of that time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroom import limits
from postroom.errors import CommitUnknown, Retryable, TransactionTooLarge
from postroom.kv import keys, versions
from postroom.kv.clock import HybridLogicalClock, from_milliseconds, from_seconds
from postroom.kv.engine import Reader, WriteSet
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry, ServiceWakeUp
from postroom.ranges.protection_news import read_news
from postroom.ranges.protections import PositionRecords, Protections
from postroom.ranges.requests import Collected, CollectGarbage
from postroom.ranges.sweep import Sweep
from postroom.ranges.transactions.one_range import RECORD_SECONDS

COLLECTED_RECORD: Final = "collected"
KEYS_PER_COLLECTION: Final = 2000

_encode = msgspec.msgpack.Encoder().encode
_lists = msgspec.msgpack.Decoder(list[bytes])


class GarbageLists:
    """The lists of garbage, one for each proposal, and the evaluation of ``CollectGarbage``."""

    def __init__(
        self, range_id: int, protections: Protections, positions: PositionRecords, bounds: Bounds
    ) -> None:
        self._is_root = range_id == ROOT_ID
        self._prefix = keys.garbage_prefix(range_id)
        self._end = keys.after_prefix(self._prefix)
        self._record = keys.record_key(range_id, COLLECTED_RECORD)
        self._protections = protections
        self._positions = positions
        self._bounds = bounds
        self._sweep = Sweep(range_id, bounds)
        self._from = self._prefix
        self._has_lists = False

    def register(self, registry: Registry) -> None:
        """Register the collection."""
        registry.commands[CollectGarbage] = self.collect

    def restart(self, stored: Reader) -> None:
        """Begin with a new lease."""
        self._from = self._prefix
        self._protections.collected = int.from_bytes(stored.get(self._record) or b"", "big")
        left = self._prefix + keys.u64(self._protections.collected)  # behind deleted lists
        self._has_lists = next(iter(stored.iterate(left, self._end)), None) is not None
        if self._is_root and (news := read_news(stored)) is not None:
            self._protections.inherited = news.oldest
        self._sweep.restart(stored)

    @property
    def has_left_some(self) -> bool:
        """Return whether there may be garbage of before the lease."""
        return self._has_lists or self._sweep.until > 0

    def finish(self, ctx: Evaluation) -> Iterator[None] | None:
        """Stage the list of a proposal, or its lists."""
        garbage = ctx.garbage
        if len(garbage) <= limits.GARBAGE_LIST_KEYS_MAX // 2:  # the rule; as long as keys may be
            if garbage:
                self.stage(ctx.staged, garbage, ctx.stamp)
            return None
        listing = self._list(ctx)
        if len(garbage) > limits.COMPLETED_AT_ONCE_MAX:
            return listing
        for _ in listing:
            pass
        return None

    def stage(self, staged: WriteSet, garbage: list[bytes], stamp: bytes) -> None:
        """Stage the list of a proposal that leaves little."""
        staged[self._prefix + stamp] = _encode(garbage)

    def _list(self, ctx: Evaluation) -> Iterator[None]:
        room = limits.COMPLETED_AT_ONCE_MAX
        for number, listed in enumerate(_lists_of(ctx.garbage)):
            suffix = keys.u32(number) if number else b""
            ctx.staged[self._prefix + ctx.stamp + suffix] = _encode(listed)
            room -= len(listed)
            if room <= 0:
                yield
                room = limits.COMPLETED_AT_ONCE_MAX

    def collect(self, ctx: Evaluation, request: CollectGarbage) -> Collected:
        """Remove what the oldest lists name."""
        self._positions.remove_those_over(ctx)
        self._protections.end_old(ctx.timestamp)
        threshold = self._positions.limit(ctx, request.threshold)
        if 0 < self._sweep.until <= threshold:
            self._advance_to(ctx, self._sweep.until)
            removed, more = self._sweep.go_on(ctx, request.keys_max)
            return Collected(removed, more=more, oldest=self._sweep.until)
        upper = self._prefix + keys.u64(threshold)
        removed, last = 0, b""
        for listed, packed in ctx.iterate(self._from, upper):
            removed += self._remove(ctx, _lists.decode(packed), self._stamp(listed))
            ctx.writes[listed] = None
            last = listed
            if removed >= request.keys_max:
                break
        if last:
            self._advance(ctx, last)
        lists = ctx.iterate(last + b"\x00" if last else self._from, self._end)
        first = next((self._timestamp(listed) for listed, _ in lists), 0)
        oldest = min(self._sweep.until or first, first or self._sweep.until)
        return Collected(removed, more=removed >= request.keys_max, oldest=oldest)

    def _remove(self, ctx: Evaluation, garbage: list[bytes], stamp: bytes) -> int:
        ctx.steps += len(garbage)
        bounds = self._bounds
        for key in garbage:
            if not bounds.is_whole and not bounds.contains_engine_key(key):
                continue  # another range collects it
            if keys.is_head(key):
                head = ctx.get(key)
                if head is None or head[0] != versions.TOMBSTONE or head[1:9] > stamp:
                    continue
            ctx.writes[key] = None
        return len(garbage)

    def _stamp(self, listed: bytes) -> bytes:
        """Return the timestamp in the key of a list. A proposal that left much has several."""
        return listed[len(self._prefix) :][:8]

    def _timestamp(self, listed: bytes) -> int:
        return int.from_bytes(self._stamp(listed), "big")

    def _advance(self, ctx: Evaluation, last: bytes) -> None:
        """Note how far is collected; later passes start there."""
        self._advance_to(ctx, self._timestamp(last))
        ctx.after.append(lambda: self._skip_to(last))

    def _advance_to(self, ctx: Evaluation, collected: int) -> None:
        """Note how far is collected: reads below are refused."""
        collected = max(collected, self._protections.collected)
        ctx.writes[self._record] = keys.u64(collected)
        ctx.grow(len(ctx.writes) * 32)
        # Before it is applied, so that no read slips in below while versions vanish.
        self._protections.collected = collected

    def _skip_to(self, last: bytes) -> None:
        """Start the next pass behind deleted lists, which leave tombstones in the engine."""
        self._from = last


def _lists_of(garbage: list[bytes]) -> Iterator[list[bytes]]:
    """Yield ``garbage`` in lists that can be worked off one by one."""
    listed: list[bytes] = []
    size = 0
    for key in garbage:
        listed.append(key)
        size += len(key)
        if len(listed) >= limits.GARBAGE_LIST_KEYS_MAX or size > limits.GARBAGE_LIST_BYTES_MAX:
            yield listed
            listed, size = [], 0
    if listed:
        yield listed


@dataclass(eq=False)
class Collector:
    """The service that collects, on the leaseholder, a little at a time.

    It sleeps until the oldest garbage is old enough. While nothing is committed and no list is left
    it asks for nothing: a range at rest stays at rest.

    Attributes:
        send: sends a request to the range, as upkeep.
        sleep: waits for a number of seconds.
        wake_up: the wake-up that something may have been committed.
        clock: the node's clock.
        last_commit: returns the last commit of the range.
        gc_ttl_seconds: returns the age from which versions are garbage.
        interval_seconds: returns the time from one collection to the next, at least.
    """

    send: Callable[[CollectGarbage], Awaitable[Collected]]
    sleep: Callable[[float], Awaitable[None]]
    wake_up: ServiceWakeUp
    clock: HybridLogicalClock
    last_commit: Callable[[], int]
    gc_ttl_seconds: Callable[[], float]
    interval_seconds: Callable[[], float]
    _clean_since: int = field(default=-1, init=False)
    _oldest: int = field(default=0, init=False)

    async def run(self) -> None:
        """Collect, for ever."""
        while True:
            await self._pause()
            while not self._has_work():
                await self.wake_up.wait(self._seconds_left())
            with suppress(Retryable, CommitUnknown):  # the next round does it
                await self.collect()

    async def _pause(self) -> None:
        """Sleep for an interval, in steps, since it may change meanwhile.

        A new leaseholder hears of protections in the first step: nothing may shorten that.
        """
        slept = 0.0
        while (left := self.interval_seconds() - slept) > 0:
            step = min(left, limits.GC_INTERVAL_SECONDS)
            await self.sleep(step)
            slept += step

    def _has_work(self) -> bool:
        if self._oldest:
            return self._due <= self.clock.reading()
        return self._clean_since != self.last_commit()

    @property
    def _due(self) -> int:
        return self._oldest + self._age + from_milliseconds(1)

    def _seconds_left(self) -> float:
        return self.clock.seconds_until(self._due) if self._oldest else math.inf

    async def collect(self) -> int:
        """Collect everything that is old enough now; return the number of engine keys removed."""
        removed, more = 0, True
        while more:
            before = self.last_commit()
            answer = await self._collect_some()
            removed += answer.keys
            more = answer.more
            self._clean_since = before
            self._oldest = answer.oldest
        return removed

    @property
    def _age(self) -> int:
        return from_seconds(max(self.gc_ttl_seconds(), RECORD_SECONDS))

    async def _collect_some(self) -> Collected:
        """Collect as much at a time as makes no more than one command: keys may be long."""
        keys_max = KEYS_PER_COLLECTION
        while True:
            try:
                return await self.send(CollectGarbage(self.clock.now() - self._age, keys_max))
            except TransactionTooLarge:
                if keys_max == 1:
                    raise
                keys_max //= 2
