"""The bulk loads of a range: many new values, straight to their places, into an empty span.

A load has a name, and *runs*: tries of it, of which only the last may add rows. ::

    BeginLoad(name, run, span) ── the span is empty, or this load has begun already
        LoadRows(name, run, sorted keys, values)    many tasks, in any order, as often as they like
    EndLoad(name, run) ── finished. Or given up: another run may go on.

``LoadRows`` inserts: a key that has the same value already is passed over, one that has another
fails. Thus each row takes effect once, whatever is repeated, and no other write is overwritten. It
is quick because a sorted chunk asks the engine one question: whether there is anything between its
first and its last key. If there is nothing, no old version is looked for. Readers see rows as they
come.

Each range that has a part of the span has a record of the load. Both halves of a split have it. A
client begins in the order of the keys, and ends with the first range, which tells whether the load
is done::

    begin ──▶ range 1 (done?) ──▶ range 2 ──▶ range 3
    end       range 1 (done) ◀── range 2 ◀── range 3
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from itertools import islice

import msgspec

from postroom.errors import ConditionFailed, Invalid, shorten
from postroom.kv import keys, versions
from postroom.limits import LOADS_MAX
from postroom.messaging.ingest.machine import (
    Ingest,
    IngestEvent,
    Ingests,
    IngestState,
    LoadedSpan,
    check_sorted,
    ingests,
    is_empty,
)
from postroom.messaging.ingest.requests import BeginLoad, EndLoad, LoadRows
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import KeySet
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.transactions.intents import IntentTable


class BulkLoads:
    """The bulk loads of one range.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        intents: the transactions that are prepared here, for which rows wait.
    """

    def __init__(self, range_id: int, bounds: Bounds, intents: IntentTable) -> None:
        self._loads = Ingests(keys.staging_prefix(range_id, keys.STAGED_LOAD), LoadedSpan)
        self._bounds = bounds
        self._intents = intents

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.writes[BeginLoad] = self.begin
        registry.writes[LoadRows] = self.load
        registry.writes[EndLoad] = self.end

    def begin(self, ctx: Evaluation, request: BeginLoad) -> Generator[None, None, bool]:
        """Evaluate ``BeginLoad``; return whether the load is finished already.

        Raises:
            Invalid: the span is not empty, or the load was begun with another one; or the range has
                too many loads, or no part of the span.
        """
        if request.at < request.start or (request.end is not None and request.at >= request.end):
            raise Invalid(f"the key {shorten(request.at)} is not in the span of the load")
        known, source = self._loads.read(ctx, request.name), LoadedSpan(request.start, request.end)
        if known is None:
            self._check_number(ctx)
            yield from self._check_empty(ctx, request)
            known = Ingest(IngestState.NONE, source)
        elif known.source != source:
            assert isinstance(known.source, LoadedSpan)
            raise Invalid(
                f"the load {shorten(request.name)} was begun with another span, from "
                f"{shorten(known.source.start)} on; nothing was changed: take the same one, or "
                "another name"
            )
        elif known.state is IngestState.DONE and self._bounds.contains(request.start):
            return True
        self._loads.move(ctx, request.name, known, IngestEvent.BEGIN, run=request.run)
        return False

    def load(self, ctx: Evaluation, request: LoadRows) -> Generator[None, None, int]:
        """Evaluate ``LoadRows``.

        Raises:
            Invalid: the load is over, another run has taken its place, or the rows are not in order
                or outside of its span.
            ConditionFailed: a key has another value.
        """
        span = self._loads.of_run(ctx, request.name, request.run).source
        check_sorted("keys", request.keys, request.values)
        assert isinstance(span, LoadedSpan)
        first, last = request.keys[0], request.keys[-1]
        if first < span.start or (span.end is not None and last >= span.end):
            out = first if first < span.start else last
            raise Invalid(
                f"the key {shorten(out)} is outside of the span of the load "
                f"{shorten(request.name)}; nothing was changed: give a span that has all keys"
            )
        request = self._within(request)
        if self._intents.by_transaction:
            self._intents.check_writer(KeySet(tuple(request.keys)))
        upper = keys.data_span(request.keys[-1] + b"\x00", None).lower
        if is_empty(ctx, keys.head_key(first), upper):
            yield from _insert(ctx, request)
        else:
            yield from _insert_one_by_one(ctx, request)
        return len(request.keys)

    def _within(self, request: LoadRows) -> LoadRows:
        """Return the rows before the end of the range."""
        end = self._bounds.end
        if end is None or request.keys[-1] < end:
            return request
        rows = bisect_left(request.keys, end)
        return msgspec.structs.replace(
            request, keys=request.keys[:rows], values=request.values[:rows]
        )

    def end(self, ctx: Evaluation, request: EndLoad) -> bool:
        """Evaluate ``EndLoad``; return whether the run was the present one."""
        known = self._loads.read(ctx, request.name)
        if known is None or known.run != request.run:
            return False
        event = IngestEvent.END if request.done else IngestEvent.ABORT
        # The name of a finished load is kept for a time, to tell clients that repeat the load.
        event = event if request.keep else IngestEvent.LAST
        self._loads.move(ctx, request.name, known, event, run=b"")
        return True

    def _check_number(self, ctx: Evaluation) -> None:
        prefix = self._loads.prefix
        known = islice(ctx.iterate(prefix, keys.after_prefix(prefix)), LOADS_MAX)
        number = sum(1 for _ in known)
        ctx.steps += number
        if number == LOADS_MAX:
            raise Invalid(
                f"a range has {LOADS_MAX} bulk loads, the most that it remembers; nothing was "
                "changed in it: db.staging.sweep(3600) forgets those that are done since an hour"
            )

    def _check_empty(self, ctx: Evaluation, request: BeginLoad) -> Generator[None, None, None]:
        """Check that no key of the span has a value here. Deleted ones do not count."""
        span = keys.data_span(*self._bounds.clip(request.start, request.end))
        at = span.lower
        while at < span.upper:
            found = next(ctx.iterate(at, span.upper), None)
            if found is None:
                return
            key = keys.user_key(found[0])
            if versions.payload(versions.newest(ctx, key)) is not None:
                raise Invalid(
                    f"the span of the load {shorten(request.name)} is not empty: {shorten(key)} "
                    "has a value; nothing was changed: load into an empty span, or write with "
                    "mode=put"
                )
            at = keys.data_span(key + b"\x00", None).lower
            ctx.steps += 3
            if ctx.is_used_up():
                yield

    # --- splits

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> None:
        """Stage the records for a right half. Those of the left half lose what is not theirs."""
        here = self._loads.prefix
        there = keys.staging_prefix(right.range_id, keys.STAGED_LOAD)
        for record, stored in list(ctx.iterate(here, keys.after_prefix(here))):
            span = ingests.decode(stored).source
            assert isinstance(span, LoadedSpan)
            if span.end is None or span.end > right.start:
                ctx.writes[there + record[len(here) :]] = stored
            if span.start >= right.start:
                ctx.writes[record] = None


def _insert(ctx: Evaluation, request: LoadRows) -> Generator[None, None, None]:
    """Insert rows into a span that has nothing."""
    writes, head_key = ctx.writes, keys.head_key
    version = versions.VALUE_KIND + ctx.stamp
    size = 0
    for key, value in zip(request.keys, request.values, strict=True):
        head = head_key(key)
        writes[head] = version + value
        size += len(value) + 2 * len(head)
    ctx.grow(size + len(request.keys) * WRITE_BYTES)
    ctx.steps += len(request.keys)
    if ctx.is_used_up():
        yield


def _insert_one_by_one(ctx: Evaluation, request: LoadRows) -> Generator[None, None, None]:
    for key, value in zip(request.keys, request.values, strict=True):
        head = keys.head_key(key)
        known = ctx.get(head)
        there = versions.payload(known)
        if there is None:
            ctx.put_version(head, known, versions.VALUE_KIND, value)
        elif there != value or versions.is_integer(known):
            raise ConditionFailed(
                f"{shorten(key)} has another value than the load {shorten(request.name)} brings; "
                "nothing of this chunk was changed: either the input has the key twice, or "
                "another client has put it there",
                actual=there,
            )
        ctx.steps += 1
        if ctx.is_used_up():
            yield
