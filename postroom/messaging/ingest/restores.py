"""The restore of an image into an empty store, entry by entry.

::

    none ── BeginRestore ─▶ opening ── again, still empty ─▶ open ── EndRestore ─▶ done
                               │                             │  ▲
                               ▼                             ▼  └─ another run, after a kill
                             none                        removing ── all is removed ─▶ none

Entries go to their places as they are: with their timestamps, ids, attempts and sums. Nothing is
sent or delivered, so nothing that had been delivered comes again. Entries that waited in an outbox
are there again, and are delivered once, when the store is open.

The store is *closed* while it is being restored: all other requests are told to wait. The services
(dispatcher, executor, queues, attempts) have to wait too. Thus nothing is seen half restored, there
are no other writes, and no counter moves. A record of the range says that the store is closed, so
this holds after a restart and under another leader. First the store is closed, then it must be
empty: the second look finds the writes that were under way when it was closed.

The last step opens the store. The leaseholder's memory begins anew from the stored state then, as
with a new lease.

Invariants:

* Everything restored is older than everything that will be written: the clock passes the timestamp
  of the image, and nothing in an image may be later.
* Older versions are not restored, so a read before the image's timestamp is refused. Between that
  timestamp and its opening the store was another one. Its snapshots, watches and positions are
  refused, too.
* The reads of a transaction before the store was open say nothing about its state now, and entries
  are older than those reads: therefore its commit is a conflict.
* Only restored entries are removed by abandoning. There are none while the state is *opening*.
* Each step can be repeated: entries that are there with the same value are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import ConditionFailed, Invalid, Unavailable, shorten
from postroom.kv import keys
from postroom.kv.clock import Timestamp, from_seconds
from postroom.kv.engine import Reader
from postroom.messaging import image_entries as entries
from postroom.messaging import images, trail
from postroom.messaging.ingest.machine import (
    Ingest,
    IngestEvent,
    Ingests,
    IngestState,
    RestoredImage,
    check_sorted,
    is_empty,
    refused,
)
from postroom.messaging.ingest.requests import (
    ABANDONING,
    DONE,
    OPENING,
    RESTORING,
    AbandonRestore,
    BeginRestore,
    EndPart,
    EndRestore,
    ReadRestore,
    Restoration,
    RestoreEntries,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View, check_size
from postroom.ranges.garbage import COLLECTED_RECORD
from postroom.ranges.ports import Registry
from postroom.ranges.protections import Protections
from postroom.ranges.state import read_applied

RECORD: Final = "restored"
_TOLD: Final = {
    IngestState.OPENING: OPENING,
    IngestState.OPEN: RESTORING,
    IngestState.REMOVING: ABANDONING,
    IngestState.DONE: DONE,
}
"""The states, as clients are told."""
_FILLING: Final = frozenset({IngestState.OPEN, IngestState.REMOVING})
_CLOSED: Final = _FILLING | {IngestState.OPENING}
RETRY_SECONDS: Final = 1.0

_encode = msgspec.msgpack.encode
_rows = msgspec.msgpack.Decoder(int)


class Restoring:
    """The restore of one range.

    Args:
        bounds: the bounds of the range.
        protections: the protections of the range.
        pass_over: a function that lets the clock go on above a timestamp.
        refresh: a function that begins memory anew, from the stored state.
    """

    def __init__(
        self,
        bounds: Bounds,
        protections: Protections,
        pass_over: Callable[[int], None],
        refresh: Callable[[], None],
    ) -> None:
        self._bounds = bounds
        self._range_id = range_id = bounds.descriptor.range_id
        self._protections = protections
        self._pass_over = pass_over
        self._refresh = refresh
        self._ingests = Ingests(keys.record_key(range_id, RECORD), RestoredImage)
        self._collected = keys.record_key(range_id, COLLECTED_RECORD)
        self._parts = keys.staging_prefix(range_id, keys.RESTORED_PART)
        self._registry = Registry()

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        self._registry = registry
        registry.reads[ReadRestore] = self.read
        registry.commands |= {
            BeginRestore: self.begin,
            RestoreEntries: self.restore,
            EndPart: self.end_part,
            EndRestore: self.end,
            AbandonRestore: self.abandon,
        }

    def restart(self, stored: Reader) -> None:
        """Open or close the range as its record says."""
        known = self._ingests.read(stored)
        state = IngestState.NONE if known is None else known.state
        opened = known.at if known is not None and state is IngestState.DONE else 0
        self._registry.replaced_at = opened
        self._registry.image_at = _image(known).timestamp if known is not None and opened else 0
        self._registry.is_whole = state not in _FILLING
        self._protections.replaced = (0, 0) if known is None else (_image(known).timestamp, opened)
        if known is not None and state in _CLOSED:
            self._close(_image(known))
        else:
            self._registry.open()

    def _close(self, image: RestoredImage) -> None:
        self._registry.close(lambda: _is_closed(image))

    # --- requests

    def read(self, view: View, _: ReadRestore) -> Restoration:
        """Evaluate ``ReadRestore``."""
        known = self._ingests.read(view)
        if known is None:
            return Restoration()
        image = _image(known)
        parts = {
            int.from_bytes(engine_key[len(self._parts) :], "big"): _rows.decode(rows)
            for engine_key, rows in view.iterate(self._parts, keys.after_prefix(self._parts))
        }
        view.steps += len(parts)
        return Restoration(_TOLD[known.state], image.image, image.timestamp, parts)

    def begin(self, ctx: Evaluation, request: BeginRestore) -> str:
        """Evaluate ``BeginRestore``.

        Raises:
            Invalid: the store is not empty, or has several ranges, or another image is being
                restored, or was; or the image is from the future.
        """
        image = RestoredImage(request.image, request.timestamp)
        known = self._ingests.read(ctx)
        if known is None:
            self._check_empty(ctx)
            _check_time(ctx, image.timestamp)
            self._move(ctx, Ingest(IngestState.NONE, image), IngestEvent.BEGIN, run=request.run)
            ctx.after.append(lambda: self._close(image))
            return OPENING
        if known.source != image:
            raise Invalid(
                f"another export is restored here ({_TOLD[known.state]}), that of "
                f"{Timestamp(_image(known).timestamp).datetime:%Y-%m-%d %H:%M:%S}; nothing was "
                "changed: restore into a new store"
            )
        if known.state is IngestState.DONE:
            return DONE
        if known.state is IngestState.OPENING and not self._is_empty(ctx):
            self._move(ctx, known, IngestEvent.LAST)
            ctx.after.append(self._registry.open)
            return ""
        self._move(ctx, known, IngestEvent.BEGIN, run=request.run)
        # Nothing else is evaluated any more. All later writes are after the image.
        self._pass_over(image.timestamp)
        return RESTORING

    def _check_empty(self, ctx: Evaluation) -> None:
        if not self._bounds.is_whole:
            raise Invalid(
                "the store has several ranges; nothing was changed: restore into a new store, "
                "which may be split when that is done"
            )
        if not self._is_empty(ctx):
            raise Invalid(
                "the store is not empty; nothing was changed: restore into a new store (what was "
                "deleted counts until it is collected, a trail until 'postroom backup --no-trail')"
            )

    def _is_empty(self, ctx: Evaluation) -> bool:
        """Return whether the range has no entry of an image, no older version, and no trail."""
        if ctx.get(keys.record_key(self._range_id, trail.RECORD)) is not None:
            return False
        for span in images.spans_of_keys(self._bounds.start, self._bounds.end):
            if next(ctx.iterate(*span), None) is not None:
                return False
        (span,) = images.spans_of_range(self._range_id)
        return all(entry is None for _, entry in images.walk(ctx, span))

    def restore(self, ctx: Evaluation, request: RestoreEntries) -> Generator[None, None, None]:
        """Evaluate ``RestoreEntries``, over as many turns as it takes.

        Raises:
            Invalid: another run has begun, or none; or these are no entries of the image.
            ConditionFailed: an entry is there with another value.
            TransactionTooLarge: the chunk is too large.
        """
        until = keys.u64(_image(self._ingests.of_run(ctx, b"", request.run)).timestamp)
        names, values = request.names, request.stored
        check_sorted("names", names, values)
        size = sum(map(len, names)) + sum(map(len, values)) + len(names) * WRITE_BYTES
        check_size(size, "restore it in smaller chunks")
        ctx.grow(size)
        engine_keys = [entries.engine_key_of(name, self._range_id) for name in names]
        sums: bytes | None = None
        first, last = engine_keys[0], engine_keys[-1]
        is_new = all(
            is_empty(ctx, max(first, span.lower), min(last + b"\x00", span.upper))
            for span in self._spans()
        )
        for name, engine_key, stored in zip(names, engine_keys, values, strict=True):
            entries.check(name, stored, until)
            value = entries.meant(name, stored, self._range_id)
            if name == entries.COUNTERS_NAME:
                sums = value
            elif is_new or not _is_there(ctx, name, engine_key, value):
                ctx.writes[engine_key] = value
            ctx.steps += 1
            if ctx.is_used_up():
                yield
        if sums is not None:
            self._restore_counters(ctx, sums)

    def _restore_counters(self, ctx: Evaluation, sums: bytes) -> None:
        """Restore the counters of messages, which stand in the applied record of the range."""
        there = read_applied(ctx, self._range_id).sums
        if there and there != sums:
            raise _other_value(entries.COUNTERS_NAME, there)
        ctx.sums = sums

    def end_part(self, ctx: Evaluation, request: EndPart) -> None:
        """Evaluate ``EndPart``.

        Raises:
            Invalid: another run has begun, or none.
        """
        self._ingests.of_run(ctx, b"", request.run)
        ctx.writes[self._parts + keys.u32(request.part)] = _encode(request.rows)

    def end(self, ctx: Evaluation, request: EndRestore) -> None:
        """Evaluate ``EndRestore``.

        Raises:
            Invalid: another run has begun, or none; or parts or entries are missing.
        """
        known = self._ingests.read(ctx)
        if known is not None and known.state is IngestState.DONE and known.run == request.run:
            return
        known = self._ingests.of_run(ctx, b"", request.run)
        done_parts = list(ctx.iterate(self._parts, keys.after_prefix(self._parts)))
        rows = sum(_rows.decode(each) for _, each in done_parts)
        if len(done_parts) != request.parts or rows != request.rows:
            raise Invalid(
                f"{len(done_parts)} parts with {rows} entries are there, not {request.parts} with "
                f"{request.rows}; the store stays closed: restore the others first"
            )
        for engine_key, _ in done_parts:
            ctx.writes[engine_key] = None
        ctx.steps += len(done_parts)
        ctx.grow(sum(len(engine_key) for engine_key, _ in done_parts))
        collected = int.from_bytes(ctx.get(self._collected) or b"", "big")
        ctx.writes[self._collected] = keys.u64(max(collected, _image(known).timestamp))
        self._move(ctx, known, IngestEvent.END)
        ctx.after.append(self._refresh)

    def abandon(self, ctx: Evaluation, _: AbandonRestore) -> bool:
        """Evaluate ``AbandonRestore``; return whether there is more to remove.

        Raises:
            Invalid: nothing is being restored.
        """
        known = self._ingests.read(ctx)
        if known is None:
            raise refused(b"", RestoredImage, IngestEvent.ABORT)
        if known.state is IngestState.DONE:
            reason = refused(b"", known.source, IngestEvent.ABORT)
            raise Invalid(f"{reason}: the restore is complete, and the store in use")
        if known.state is IngestState.OPENING:
            # These entries were committed when the store was closed, and are not of the image.
            self._move(ctx, known, IngestEvent.LAST)
            ctx.after.append(self._registry.open)
            return False
        removed, last = self._remove_some(ctx, known.removed)
        if removed:
            self._move(ctx, known, IngestEvent.ABORT, run=b"", removed=last)
            return True
        self._move(ctx, known, IngestEvent.LAST)
        ctx.after.append(self._refresh)
        return False

    def _remove_some(self, ctx: Evaluation, after: bytes) -> tuple[int, bytes]:
        """Remove the first entries after an engine key; return how many, and the last of them."""
        removed, last = 0, after
        for span in self._spans():
            if last >= span.upper:
                continue
            lower = max(span.lower, last + b"\x00")
            for engine_key, _ in ctx.iterate(lower, span.upper):
                if removed >= limits.RESTORE_REMOVED_AT_ONCE_MAX:
                    return removed, last
                if entries.name_of(engine_key) == entries.COUNTERS_NAME:
                    ctx.sums = b""
                elif self._is_restored(engine_key):
                    ctx.writes[engine_key] = None
                    ctx.grow(len(engine_key))
                    removed, last = removed + 1, engine_key
                ctx.steps += 1
        return removed, last

    def _spans(self) -> list[keys.KeySpan]:
        """Return the spans in which restored entries may be, in order."""
        of_keys = images.spans_of_keys(self._bounds.start, self._bounds.end)
        return [*images.spans_of_range(self._range_id), *of_keys]

    def _is_restored(self, engine_key: bytes) -> bool:
        return engine_key.startswith(self._parts) or (
            entries.table_of(entries.name_of(engine_key)) is not None
        )

    def _move(self, ctx: Evaluation, known: Ingest, event: IngestEvent, **changes: Any) -> None:
        self._ingests.move(ctx, b"", known, event, **changes)


def _image(known: Ingest) -> RestoredImage:
    assert isinstance(known.source, RestoredImage)
    return known.source


def _is_there(ctx: Evaluation, name: bytes, engine_key: bytes, value: bytes) -> bool:
    there = ctx.get(engine_key)
    if there is None:
        return False
    if there != value:
        raise _other_value(name, there)
    return True


def _other_value(name: bytes, there: bytes) -> ConditionFailed:
    return ConditionFailed(
        f"the entry {shorten(name)} is there already, with another value; nothing of this "
        "chunk was stored: the files of two exports are mixed up, or it is in them twice",
        actual=there,
    )


def _is_closed(image: RestoredImage) -> Unavailable:
    return Unavailable(
        "the store is being restored, and serves nobody until that is complete; nothing was "
        "changed: let the restore go on, or abandon it (what is restored is of "
        f"{Timestamp(image.timestamp).datetime:%Y-%m-%d %H:%M:%S} UTC)",
        retry_after=RETRY_SECONDS,
    )


def _check_time(ctx: Evaluation, timestamp: int) -> None:
    ahead = timestamp - ctx.timestamp
    most = limits.RESTORED_AHEAD_SECONDS_MAX
    if ahead > from_seconds(most):
        raise Invalid(
            f"the export was taken more than {most / 3600:g} h after what this node's clock shows "
            "now; nothing was changed: set the clock"
        )


__all__: list[Any] = ["ABANDONING", "DONE", "OPENING", "RESTORING", "Restoring"]
