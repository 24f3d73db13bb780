"""The entries of the outboxes that wait until they are due, or were postponed; their cancellation.

::

    outbox   due commit ordinal ─── listed in the order of due, both outboxes together
                    │
                    ├── its time comes ──▶ delivered, or executed
                    └── cancelled ───────▶ gone; counted as dead, discarded and cancelled

A cancellation is a write like any other: it deletes the entry and counts it in one write set. If a
cancellation and a delivery come at the same time, one of them happens, and the answer says which.
An entry that has left its outbox cannot be cancelled, nor can a ``DeleteRange`` that has begun to
delete.

The name of an entry is due time, commit timestamp, ordinal and outbox, in that order: it says
where its entry is. The name ends when the entry moves on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.messaging.claims import QUIET
from postroom.messaging.outbox import Outbox, Outboxes
from postroom.messaging.requests import (
    CancelScheduled,
    Deliverable,
    Executable,
    ListScheduled,
    ScheduledEntry,
    SchedulePage,
)
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import DeleteRange

LOOKED_AT_ONCE: Final = 1000
LOOKED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""The size of the entries in the outboxes that one answer looks at, whether they match or not."""


_decoders: Final[dict[bytes, Callable[[bytes], Any]]] = {
    keys.DELIVERABLE: msgspec.msgpack.Decoder(Deliverable).decode,
    keys.EXECUTABLE: msgspec.msgpack.Decoder(Executable).decode,
}


class Schedule:
    """The entries of both outboxes that are not due yet."""

    def __init__(
        self,
        outboxes: Outboxes,
        wake: Callable[[list[object]], None],
        let_go: Callable[[Evaluation, bytes, Deliverable | None], None],
    ) -> None:
        self._let_go = let_go
        self._outboxes: dict[bytes, Outbox] = {
            keys.DELIVERABLE: outboxes.deliverable,
            keys.EXECUTABLE: outboxes.executable,
        }
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.reads[ListScheduled] = self.list_scheduled
        registry.writes[CancelScheduled] = self.cancel

    def list_scheduled(self, view: View, request: ListScheduled) -> SchedulePage:
        """Evaluate ``ListScheduled``."""
        found: list[ScheduledEntry] = []
        size = 0
        last = b""
        for looked_at, (name, stored) in enumerate(self._from(view, request.after)):
            if (
                looked_at >= LOOKED_AT_ONCE
                or size >= min(request.bytes_max, LOOKED_AT_ONCE_BYTES)
                or len(found) >= request.entries_max
                or (looked_at and view.is_used_up())
            ):
                return SchedulePage(found, last)
            view.steps += 1
            size += len(stored)
            last = name
            entry: Deliverable | Executable = _decoders[name[-1:]](stored)
            if _is_within(entry, request.start, request.end):
                message = entry if isinstance(entry, Deliverable) else None
                update = entry if isinstance(entry, Executable) else None
                found.append(ScheduledEntry(name, message, update))
        return SchedulePage(found, None)

    def _from(self, view: View, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over names and stored entries after the one of that name, without those due."""
        both = []
        for kind, outbox in self._outboxes.items():
            # If two entries are alike but for their outbox, that of the lesser kind is first.
            cursor = outbox.cursor_of(outbox.prefix + after[:-1]) if after else b""
            entries = outbox.waiting_after(view, cursor, view.now, included=kind > after[-1:])
            both.append(_placed(outbox, kind, entries))
        return ((name, stored) for _, name, stored in heapq.merge(*both))

    def cancel(self, ctx: Evaluation, request: CancelScheduled) -> Generator[None, None, int]:
        """Evaluate ``CancelScheduled``, over several turns if there are many."""
        cancelled = 0
        for name in request.ids:
            ctx.steps += 1
            if ctx.is_used_up():
                yield
            outbox = self._outboxes.get(name[-1:])
            if outbox is None:
                continue
            key = outbox.prefix + name[:-1]
            stored = ctx.get(key)
            if stored is None or _has_begun(name, stored):
                continue
            ctx.writes[key] = None
            ctx.grow(2 * len(key))
            ctx.count(outbox.pending, -1)
            if name[-1:] == keys.DELIVERABLE:
                self._let_go(ctx, name[8:-1], _decoders[keys.DELIVERABLE](stored))
            for counter in ("dead", "discarded", "cancelled"):
                ctx.count(counter)
            cancelled += 1
        ctx.after.append(self._quiet)
        return cancelled


def _has_begun(name: bytes, stored: bytes) -> bool:
    """Return whether the entry is an update that has been carried out in part."""
    entry = _decoders[name[-1:]](stored)
    return isinstance(entry, Executable) and bool(entry.began)


def _placed(
    outbox: Outbox, kind: bytes, entries: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Iterate over the cursors of entries, their names, and their stored forms."""
    start = len(outbox.prefix)
    for key, stored in entries:
        yield outbox.cursor_of(key) + kind, key[start:] + kind, stored


def _is_within(entry: Deliverable | Executable, start: bytes, end: bytes | None) -> bool:
    """Return whether the entry is about a key of the span."""
    about = entry if isinstance(entry, Deliverable) else entry.request
    if isinstance(about, DeleteRange):
        return (end is None or about.start < end) and (about.end is None or about.end > start)
    return about.key >= start and (end is None or about.key < end)
