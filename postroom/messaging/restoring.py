"""The restore of an image into an empty store, entry by entry.

::

    never ── BeginRestore ─▶ opening ── again, still empty ─▶ restoring ── EndRestore ─▶ done
                                │                              │     ▲
                                ▼                              ▼     └─ another run, after a kill
                              never                        abandoning ── all is removed ─▶ never

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
from itertools import pairwise
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.errors import ConditionFailed, Invalid, Unavailable, shorten
from postroom.kv import keys
from postroom.kv.clock import Timestamp, from_seconds
from postroom.kv.engine import Reader
from postroom.messaging import image_entries as entries
from postroom.messaging import images
from postroom.messaging.image_requests import (
    AbandonRestore,
    BeginRestore,
    EndPart,
    EndRestore,
    ReadRestore,
    Restoration,
    RestoreEntries,
)
from postroom.ranges.applied import read_applied
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View, check_size
from postroom.ranges.garbage import COLLECTED_RECORD
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry

RECORD: Final = "restored"
OPENING: Final = "opening"
RESTORING: Final = "restoring"
ABANDONING: Final = "abandoning"
DONE: Final = "done"
CLOSED: Final = frozenset({OPENING, RESTORING, ABANDONING})
RETRY_SECONDS: Final = 1.0


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The stored state of a restore.

    Attributes:
        state: one of the states of the module's drawing.
        run: the run that may add entries.
        image, timestamp: the image that is restored.
        removed: the engine key before which nothing is left, while the restore is abandoned.
        opened: the timestamp of the last step, when it is done.
    """

    state: str
    run: bytes
    image: bytes
    timestamp: int
    removed: bytes = b""
    opened: int = 0


_encode = msgspec.msgpack.encode
_records = msgspec.msgpack.Decoder(Record)
_rows = msgspec.msgpack.Decoder(int)


class Restoring:
    """The restore of one range.

    Args:
        range_id: the id of the range.
        protections: the protections of the range.
        pass_over: a function that lets the clock go on above a timestamp.
        refresh: a function that begins memory anew, from the stored state.
    """

    def __init__(
        self,
        range_id: int,
        protections: Protections,
        pass_over: Callable[[int], None],
        refresh: Callable[[], None],
    ) -> None:
        self._range_id = range_id
        self._protections = protections
        self._pass_over = pass_over
        self._refresh = refresh
        self._record = keys.record_key(range_id, RECORD)
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
        packed = stored.get(self._record)
        record = None if packed is None else _records.decode(packed)
        self._registry.replaced_at = 0 if record is None else record.opened
        self._registry.is_whole = record is None or record.state not in {RESTORING, ABANDONING}
        self._protections.replaced = (0, 0) if record is None else (record.timestamp, record.opened)
        if record is not None and record.state in CLOSED:
            self._close(record)
        else:
            self._registry.open()

    def _close(self, record: Record) -> None:
        self._registry.close(lambda: _is_closed(record))

    # --- requests

    def read(self, view: View, _: ReadRestore) -> Restoration:
        """Evaluate ``ReadRestore``."""
        packed = view.get(self._record)
        if packed is None:
            return Restoration()
        record = _records.decode(packed)
        parts = {
            int.from_bytes(place[len(self._parts) :], "big"): _rows.decode(rows)
            for place, rows in view.iterate(self._parts, keys.after_prefix(self._parts))
        }
        view.steps += len(parts)
        return Restoration(record.state, record.image, record.timestamp, parts)

    def begin(self, ctx: Evaluation, request: BeginRestore) -> str:
        """Evaluate ``BeginRestore``.

        Raises:
            Invalid: the store is not empty, or another image is being restored, or was; or the
                image is from the future.
        """
        record = self._known(ctx)
        if record is None:
            self._check_empty(ctx)
            _check_time(ctx, request.timestamp)
            opening = Record(OPENING, request.run, request.image, request.timestamp)
            self._put(ctx, opening)
            ctx.after.append(lambda: self._close(opening))
            return OPENING
        if record.image != request.image or record.timestamp != request.timestamp:
            raise Invalid(
                f"another export is restored here ({record.state}), that of "
                f"{Timestamp(record.timestamp).datetime:%Y-%m-%d %H:%M:%S}; nothing was changed: "
                "restore into a new store"
            )
        if record.state == DONE:
            return DONE
        if record.state == ABANDONING:
            raise Invalid(
                "this restore is being abandoned; nothing was changed: let that come to its end, "
                "and begin anew"
            )
        if record.state == OPENING and not self._is_empty(ctx):
            ctx.writes[self._record] = None
            ctx.after.append(self._registry.open)
            return ""
        # Nothing else is evaluated any more. All later writes are after the image.
        self._pass_over(record.timestamp)
        self._put(ctx, msgspec.structs.replace(record, state=RESTORING, run=request.run))
        return RESTORING

    def _check_empty(self, ctx: Evaluation) -> None:
        if not self._is_empty(ctx):
            raise Invalid(
                "the store is not empty; nothing was changed: restore into a new store (what was "
                "deleted counts until it is collected)"
            )

    def _is_empty(self, ctx: Evaluation) -> bool:
        """Return whether the range has no entry of an image, and no older version either."""
        for span in images.spans(self._range_id, b"", None, of_range=False):
            if next(ctx.iterate(*span), None) is not None:
                return False
        (span,) = images.spans(self._range_id, b"", None, of_range=True)
        return all(stored is None for _, _, stored in images.walk(ctx, span))

    def restore(self, ctx: Evaluation, request: RestoreEntries) -> Generator[None, None, None]:
        """Evaluate ``RestoreEntries``, over as many turns as it takes.

        Raises:
            Invalid: another run has begun, or none; or these are no entries of the image.
            ConditionFailed: an entry is there with another value.
            TransactionTooLarge: the chunk is too large.
        """
        until = keys.u64(self._of_run(ctx, request.run).timestamp)
        names, values = request.names, request.stored
        if not names or len(names) != len(values):
            raise Invalid("a chunk has names, and a value for each; nothing was changed")
        if not all(one < other for one, other in pairwise(names)):
            raise Invalid("the names of a chunk rise; nothing was changed: sort them first")
        size = sum(map(len, names)) + sum(map(len, values)) + len(names) * WRITE_BYTES
        check_size(size, "restore it in smaller chunks")
        ctx.grow(size)
        places = [entries.place_of(name, self._range_id) for name in names]
        sums: bytes | None = None
        between = ctx.iterate(places[0], places[-1] + b"\x00")
        is_new = next(between, None) is None
        for name, place, stored in zip(names, places, values, strict=True):
            entries.check(name, stored, until)
            value = entries.meant(name, stored, self._range_id)
            if name == entries.COUNTERS_NAME:
                sums = value
            elif is_new or not _is_there(ctx, name, place, value):
                ctx.writes[place] = value
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
        self._of_run(ctx, request.run)
        ctx.writes[self._parts + keys.u32(request.part)] = _encode(request.rows)

    def end(self, ctx: Evaluation, request: EndRestore) -> None:
        """Evaluate ``EndRestore``.

        Raises:
            Invalid: another run has begun, or none; or parts or entries are missing.
        """
        record = self._known(ctx)
        if record is not None and record.state == DONE and record.run == request.run:
            return
        record = self._of_run(ctx, request.run)
        marks = list(ctx.iterate(self._parts, keys.after_prefix(self._parts)))
        rows = sum(_rows.decode(each) for _, each in marks)
        if len(marks) != request.parts or rows != request.rows:
            raise Invalid(
                f"{len(marks)} parts with {rows} entries are there, not {request.parts} with "
                f"{request.rows}; the store stays closed: restore the others first"
            )
        for place, _ in marks:
            ctx.writes[place] = None
        ctx.steps += len(marks)
        ctx.grow(sum(len(place) for place, _ in marks))
        collected = int.from_bytes(ctx.get(self._collected) or b"", "big")
        ctx.writes[self._collected] = keys.u64(max(collected, record.timestamp))
        self._put(ctx, msgspec.structs.replace(record, state=DONE, opened=ctx.timestamp))
        ctx.after.append(self._refresh)

    def abandon(self, ctx: Evaluation, _: AbandonRestore) -> bool:
        """Evaluate ``AbandonRestore``; return whether there is more to remove.

        Raises:
            Invalid: nothing is being restored.
        """
        record = self._known(ctx)
        if record is None or record.state == DONE:
            raise Invalid(
                "nothing is being restored here; nothing was changed"
                + ("" if record is None else ": the restore is complete, and the store in use")
            )
        if record.state == OPENING:
            # These entries were committed when the store was closed, and are not of the image.
            ctx.writes[self._record] = None
            ctx.after.append(self._registry.open)
            return False
        removed, last = self._remove_some(ctx, record.removed)
        if removed:
            left = msgspec.structs.replace(record, state=ABANDONING, run=b"", removed=last)
            self._put(ctx, left)
            return True
        ctx.writes[self._record] = None
        ctx.after.append(self._refresh)
        return False

    def _remove_some(self, ctx: Evaluation, after: bytes) -> tuple[int, bytes]:
        """Remove the first entries after an engine key; return how many, and the last of them."""
        removed, last = 0, after
        for span in self._spans():
            if last >= span.upper:
                continue
            lower = max(span.lower, last + b"\x00")
            for place, _ in ctx.iterate(lower, span.upper):
                if removed >= limits.RESTORE_REMOVED_AT_ONCE_MAX:
                    return removed, last
                if entries.name_of(place) == entries.COUNTERS_NAME:
                    ctx.sums = b""
                elif self._is_restored(place):
                    ctx.writes[place] = None
                    ctx.grow(len(place))
                    removed, last = removed + 1, place
                ctx.steps += 1
        return removed, last

    def _spans(self) -> list[keys.KeySpan]:
        """Return the spans in which restored entries may be, in order."""
        return [
            span
            for of_range in (True, False)
            for span in images.spans(self._range_id, b"", None, of_range=of_range)
        ]

    def _is_restored(self, place: bytes) -> bool:
        return place.startswith(self._parts) or (
            entries.table_of(entries.name_of(place)) is not None
        )

    # --- records

    def _known(self, ctx: Evaluation) -> Record | None:
        packed = ctx.get(self._record)
        return None if packed is None else _records.decode(packed)

    def _of_run(self, ctx: Evaluation, run: bytes) -> Record:
        record = self._known(ctx)
        if record is None or record.state != RESTORING or record.run != run:
            raise Invalid(
                "this restore is over, or was abandoned, or another run of it has begun; nothing "
                "was changed: this task is late"
            )
        return record

    def _put(self, ctx: Evaluation, record: Record) -> None:
        ctx.writes[self._record] = stored = _encode(record)
        ctx.grow(len(self._record) + len(stored))


def _is_there(ctx: Evaluation, name: bytes, place: bytes, value: bytes) -> bool:
    there = ctx.get(place)
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


def _is_closed(record: Record) -> Unavailable:
    return Unavailable(
        "the store is being restored, and serves nobody until that is complete; nothing was "
        "changed: let the job 'restore' go on, or abandon it (the export is of "
        f"{Timestamp(record.timestamp).datetime:%Y-%m-%d %H:%M:%S} UTC)",
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
