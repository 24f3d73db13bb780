"""The evaluator of ``ScanRecords``: one loop for the records of all tables.

A page ends where it is full, or where its turn is used up; so it may be empty and yet not the last.
The next one begins at its *cursor*: how many records of an entry are known, and the engine key of
that entry, without the id of the range. Cursors come back from clients, so a walk is confined to
the span of its request in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from operator import itemgetter
from typing import Any

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import columns, keys
from postroom.kv.engine import Reader
from postroom.limits import LIST_MAX, READ_BYTES_MAX
from postroom.messaging import bulk_requests as forms
from postroom.messaging.bulk_requests import (
    ColumnKind,
    PackedColumn,
    RecordsPage,
    ScanRecords,
    pack,
)
from postroom.messaging.image_entries import engine_key_of, name_of
from postroom.messaging.record_tables import TABLES, Needs, RecordTable, RecordValues, ScanScope
from postroom.messaging.requests import Peek, Peeked
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry

PAGE_BYTES = 1024 * 1024
"""The size of a page if the request does not say."""
_RECORD_BYTES = 32
"""The size of a record without the values whose sizes vary, about."""
_COUNT_BYTES = 4
_STAMP_BYTES = 8

Results = Generator[None, None, RecordsPage]


class RecordScans:
    """The scans of records of one range.

    Args:
        range_id: the id of the range.
        check_age: a function that refuses timestamps that cannot be read at.
        snapshot: a function that returns the stored state at a timestamp that is protected as a
            whole.
        peek: a function that reads an inbox as of a timestamp.
    """

    def __init__(
        self,
        range_id: int,
        check_age: Callable[[View, int], None],
        snapshot: Callable[[Reader, int], Reader],
        peek: Callable[[View, Peek], Generator[None, None, Peeked]],
    ) -> None:
        self._range_id = range_id
        self._check_age = check_age
        self._snapshot = snapshot
        self._peek = peek

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[ScanRecords] = self.scan

    def scan(self, view: View, request: ScanRecords) -> RecordsPage | Results:
        """Evaluate ``ScanRecords``.

        Raises:
            Invalid: there is no such table, column or queue.
            SnapshotTooOld: the timestamp, or the one after which records are wanted, is collected;
                or it is not protected as a whole, for a table that needs that.
        """
        table = TABLES.get(request.table)
        if table is None:
            raise Invalid(f"there is no table {request.table!r} of records: {', '.join(TABLES)}")
        for name in request.columns:
            if name not in forms.TABLES[request.table]:
                raise Invalid(f"the table {request.table!r} has no column {name!r}")
        if table.walk is None:
            self._reader(view, request, table)
            return self._blocks(view, request)
        return self._walk(view, request, table)

    def _reader(self, view: View, request: ScanRecords, table: RecordTable) -> Reader:
        """Return the stored state to read, if the table is protected as it needs.

        Raises:
            SnapshotTooOld: it is not.
        """
        if table.needs is Needs.SNAPSHOT:
            return self._snapshot(view, request.timestamp)
        self._check_age(view, request.timestamp)
        if table.needs is Needs.HISTORY:
            self._check_age(view, request.filter.after)
        return view

    def _blocks(self, view: View, request: ScanRecords) -> RecordsPage:
        """Return a page of versions, which are read in blocks.

        Its cursor is a key, and a timestamp: the changes of the key up to that are known.
        """
        cursor, after = request.cursor, keys.u64(request.filter.after)
        bounds = columns.Bounds(
            max(request.start, cursor[_STAMP_BYTES:]),
            request.end,
            keys.u64(request.timestamp),
            after,
            max(after, cursor[:_STAMP_BYTES]),
        )
        room = columns.PageLimits(page_bytes(request.bytes_max), limits.TURN_STEPS_MAX)
        read = columns.changes if request.table == "changes" else columns.as_of
        found = read(view, bounds, room)
        view.steps += found.steps
        made = {
            "key": lambda: PackedColumn(*columns.packed(found.keys)),
            "value": lambda: PackedColumn(*columns.packed(found.payloads)),
            "timestamp": lambda: PackedColumn(b"".join(found.stamps)),
            "kind": lambda: PackedColumn(bytes(found.kinds)),
        }
        wanted = request.columns or made
        resume = None if found.resume is None else found.resume_after + found.resume
        packed = {name: made[name]() for name in made if name in wanted}
        return RecordsPage(self._range_id, len(found.keys), packed, resume)

    def _walk(self, view: View, request: ScanRecords, table: RecordTable) -> Results:
        """Return a page of the records that a walk finds."""
        assert table.walk is not None
        scope, vary = self._scope(view, request, table), _VARYING[request.table]
        known, last = int.from_bytes(request.cursor[:_COUNT_BYTES], "big"), b""
        found: list[Any] = []  # the values of all records, one record after the other
        rows, left = 0, scope.bytes_left
        for each in table.walk(scope):
            if each is None:
                yield
                self._reader(view, request, table)
                continue
            raw, entry = each
            records: Sequence[RecordValues] = (entry,) if type(entry) is tuple else entry or ()
            number = 0
            if known and raw == scope.lower:
                number, records = known, records[known:]
            for record in records:
                if rows and (left <= 0 or rows >= LIST_MAX):
                    engine_key = raw if number else last + b"\x00"
                    return self._page(request, found, number, engine_key)
                found += record
                rows += 1
                number += 1
                left -= sum(map(len, vary(record) if vary else record), _RECORD_BYTES)
                scope.bytes_left = left
            last = raw
            view.steps += number or 1
            if view.is_used_up():
                return self._page(request, found, 0, last + b"\x00")
        return self._page(request, found, 0, None)

    def _scope(self, view: View, request: ScanRecords, table: RecordTable) -> ScanScope:
        engine_key = engine_key_of(request.cursor[_COUNT_BYTES:], self._range_id)
        return ScanScope(
            self._range_id, self._reader(view, request, table), view, request.start, request.end,
            engine_key, request.filter.after, request.timestamp, request.filter.queue,
            page_bytes(request.bytes_max), self._peek,
        )  # fmt: skip

    def _page(
        self, request: ScanRecords, found: list[Any], known: int, engine_key: bytes | None
    ) -> RecordsPage:
        """Return a page; the next begins at ``engine_key``, where so many records are known."""
        kinds = forms.TABLES[request.table]
        packed = {
            name: pack(kind, found[number :: len(kinds)])
            for number, (name, kind) in enumerate(kinds.items())
            if not request.columns or name in request.columns
        }
        resume = None if engine_key is None else keys.u32(known) + name_of(engine_key)
        return RecordsPage(self._range_id, len(found) // len(kinds), packed, resume)


def _varying(kinds: dict[str, ColumnKind]) -> Callable[[RecordValues], tuple[Any, ...]] | None:
    """Return a function that returns the values of a record whose sizes vary; `None`: all do."""
    indexes = [index for index, kind in enumerate(kinds.values()) if not kind.width]
    return None if len(indexes) == len(kinds) else itemgetter(*indexes)


_VARYING = {name: _varying(kinds) for name, kinds in forms.TABLES.items()}


def page_bytes(asked: int) -> int:
    """Return about how many bytes a page has."""
    return min(asked or PAGE_BYTES, READ_BYTES_MAX)
