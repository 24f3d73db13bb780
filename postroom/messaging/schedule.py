"""What waits in the outboxes for its time, or was postponed: listed, and cancelled.

::

    outbox   due commit position ── listed in the order of due, both outboxes together
                    │
                    ├── its time comes ──▶ delivered, or executed
                    └── cancelled ───────▶ gone; counted as dead, discarded and cancelled

Cancelling is a write like any other: it deletes the entry and counts it in one write set. So of a
cancellation and a delivery that come at the same time one happens, and the answer tells which: an
entry that has left its outbox is not there to be cancelled, and neither is a ``DeleteRange`` that
has begun to delete.

The name of an entry is due, commit timestamp, position and outbox, in that order: names sort as
entries are due, and a name says where its entry is. They end when the entry moves on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.messaging.outbox import Outbox, Outboxes
from postroom.messaging.requests import (
    CancelScheduled,
    Deliverable,
    Executable,
    ListScheduled,
    Scheduled,
    SchedulePage,
)
from postroom.messaging.tokens import QUIET
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.registry import Registry
from postroom.ranges.requests import DeleteRange

LOOKED_AT_ONCE: Final = 1000
LOOKED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""One answer looks at so much of the outboxes, whether or not it is what was asked for."""

_FEW: Final = 256

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
        """Adds it to ``registry``."""
        registry.reads[ListScheduled] = self.list_scheduled
        registry.writes[CancelScheduled] = self.cancel
        registry.may_be_long[CancelScheduled] = lambda write: len(write.ids) > _FEW

    def list_scheduled(self, view: View, request: ListScheduled) -> SchedulePage:
        """``ListScheduled``."""
        found: list[Scheduled] = []
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
                found.append(Scheduled(name, message, update))
        return SchedulePage(found, None)

    def _from(self, view: View, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names and stored entries after the one of that name, those that are due left out."""
        first_due = keys.u64(view.now + 1)
        both = []
        for kind, outbox in self._outboxes.items():
            place, last_kind = after[:-1], after[-1:]
            # Of two entries alike but for their outbox, the name of the first ends with the less.
            lower = max(first_due, place + b"\x00" if kind <= last_kind else place)
            both.append(_named(view, outbox, kind, lower))
        return heapq.merge(*both)

    def cancel(self, ctx: Evaluation, request: CancelScheduled) -> Generator[None, None, int]:
        """``CancelScheduled``; over several turns, if there are many."""
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
    """Whether the entry is an update that has been carried out in part."""
    entry = _decoders[name[-1:]](stored)
    return isinstance(entry, Executable) and bool(entry.began)


def _named(view: View, outbox: Outbox, kind: bytes, lower: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = len(outbox.prefix)
    for key, stored in view.iterate(outbox.prefix + lower, keys.after_prefix(outbox.prefix)):
        yield key[start:] + kind, stored


def _is_within(entry: Deliverable | Executable, start: bytes, end: bytes | None) -> bool:
    """Whether the entry is about a key of the span."""
    about = entry if isinstance(entry, Deliverable) else entry.request
    if isinstance(about, DeleteRange):
        return (end is None or about.start < end) and (about.end is None or about.end > start)
    return about.key >= start and (end is None or about.key < end)
