"""The evaluators for those who read everything (:mod:`.bulk_requests`).

What has versions is read as of any protected timestamp. What has none (sums; outboxes and dead
letters, :mod:`postroom.messaging.bulk`) is read in the snapshot of the engine that belongs to a
timestamp protected *as a whole* (:mod:`.protections`), or as it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from postroom import limits
from postroom.kv import columns, keys
from postroom.kv.engine import Engine
from postroom.limits import PARTITIONS_MAX, READ_BYTES_MAX
from postroom.ranges.accounting import read_metrics
from postroom.ranges.bulk_requests import (
    AccountingPage,
    Columns,
    RangePartition,
    ReadPartitions,
    ScanAccounting,
    ScanColumns,
)
from postroom.ranges.evaluation import View
from postroom.ranges.partitions import cuts
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry

GENERATION: Final = 1
"""Of the only range: nothing has split or merged it."""
_BEYOND: Final = keys.QUEUE_BODY
PAGE_BYTES: Final = 1024 * 1024
"""Of a page, if the request does not say."""


class BulkReads:
    """See the module.

    Args:
        range_id: whose.
        engine: of the node.
        protections: of the range.
        check_age: refuses timestamps that cannot be read at.
    """

    def __init__(
        self,
        range_id: int,
        engine: Engine,
        protections: Protections,
        check_age: Callable[[View, int], None],
    ) -> None:
        self._range_id = range_id
        self._engine = engine
        self._protections = protections
        self._check_age = check_age

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.reads |= {
            ReadPartitions: self.read_partitions,
            ScanColumns: self.scan_columns,
            ScanAccounting: self.scan_accounting,
        }

    def read_partitions(
        self, view: View, request: ReadPartitions
    ) -> Generator[None, None, list[RangePartition]]:
        """``ReadPartitions``: over as many turns as it takes."""
        span = keys.data_span(request.start, request.end)
        found: list[bytes] = []
        for cut in cuts(self._engine, span, request.part_bytes):
            if isinstance(cut, bytes):
                found.append(cut)
                continue
            view.steps += cut
            if view.is_used_up():
                yield
        starts = [request.start, *found][:PARTITIONS_MAX]
        ends: list[bytes | None] = [*starts[1:], request.end]
        return [self._partition(*part) for part in zip(starts, ends, strict=True)]

    def _partition(self, start: bytes, end: bytes | None) -> RangePartition:
        size = self._engine.approximate_bytes(*keys.data_span(start, end))
        readable_from = self._protections.readable_from
        return RangePartition(start, end, self._range_id, GENERATION, size, readable_from)

    def scan_columns(self, view: View, request: ScanColumns) -> Columns:
        """``ScanColumns``.

        Raises:
            SnapshotTooOld: the timestamp, or of changes the one after which they are wanted, has
                been collected.
        """
        self._check_age(view, request.timestamp)
        if request.changes:
            self._check_age(view, request.after)
        bounds = columns.Bounds(
            request.start,
            request.end,
            keys.u64(request.timestamp),
            keys.u64(request.after),
            keys.u64(max(request.after, request.first_after)),
        )
        room = columns.PageLimits(page_bytes(request.bytes_max), limits.TURN_STEPS_MAX)
        read = columns.changes if request.changes else columns.as_of
        rows = read(view, bounds, room)
        view.steps += rows.steps
        return _columns(rows, with_values=request.values)

    def scan_accounting(
        self, view: View, request: ScanAccounting
    ) -> Generator[None, None, AccountingPage]:
        """``ScanAccounting``.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        found: list[tuple[bytes, dict[str, int]]] = []
        size, bytes_max = 0, page_bytes(request.bytes_max)
        start: bytes | None = request.start
        while start is not None:
            reader = self._protections.reader(view, request.timestamp)
            first, span = start, keys.data_span(start, request.end)
            start = None
            for raw, end, stored in columns.beside(reader, span, keys.ACCOUNTING, _BEYOND):
                view.steps += 1
                key = keys.unescape(raw[1:end])
                if stored is not None:
                    if size >= bytes_max:
                        return AccountingPage(found, key)
                    found.append((key, read_metrics(stored)))
                    size += len(raw) + len(stored)
                    view.steps += len(stored) // 64
                elif view.is_used_up() and key != first:  # so that each turn comes further
                    start = key if raw[end + 2 : end + 3] < keys.ACCOUNTING else key + b"\x00"
                    break
            if start is not None:
                yield
        return AccountingPage(found, None)


def page_bytes(asked: int) -> int:
    """How many bytes a page has, about."""
    return min(asked or PAGE_BYTES, READ_BYTES_MAX)


def _columns(rows: columns.Rows, *, with_values: bool) -> Columns:
    names, ends = columns.packed(rows.keys)
    values, value_ends = columns.packed(rows.payloads) if with_values else (b"", b"")
    return Columns(
        len(rows.keys),
        rows.resume,
        int.from_bytes(rows.resume_after, "big"),
        names,
        ends,
        values,
        value_ends,
        b"".join(rows.stamps),
        bytes(rows.kinds),
    )
