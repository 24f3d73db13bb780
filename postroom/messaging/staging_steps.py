"""The common parts of the steps of staging: their limits, and the reads and checks of records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

import msgspec

from postroom import limits
from postroom.errors import Invalid, shorten
from postroom.kv import keys
from postroom.limits import STAGED_COUNTED_MAX
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage
from postroom.messaging.staging_records import AttemptRecord, Places, attempts, queries, rows
from postroom.messaging.staging_requests import (
    PublishStaged,
    ReadStaging,
    StagedQuery,
    Staging,
    Winner,
)
from postroom.ranges.checks import check_headers
from postroom.ranges.evaluation import Evaluation, View

UNFINISHED_AT_ONCE: Final = 100


class Room:
    """The room that is left in one step.

    Attributes:
        rows: how many rows it may still carry out.
        dead: how many rows it has made dead letters.
        deletions: how many keys it may still delete.
    """

    def __init__(self, ctx: Evaluation) -> None:
        self.rows = limits.STAGED_STEP_ROWS_MAX
        self.dead = 0
        self.deletions = limits.STAGED_DELETED_AT_ONCE_MAX
        self._ctx = ctx
        self._bytes_end = ctx.bytes + ctx.moved + limits.STAGED_STEP_BYTES_MAX

    def is_left(self) -> bool:
        """Return whether there is room for another row."""
        return self.rows > 0 and self._ctx.bytes + self._ctx.moved < self._bytes_end


def first(
    reader: Evaluation | View, prefix: bytes, most: int, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the first pairs under a prefix, from the key on that ends with ``start``."""
    found: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]] = reader.iterate
    for number, pair in enumerate(found(prefix + start, keys.after_prefix(prefix))):
        if number == most:
            return
        yield pair


def check_rows(packed: bytes) -> None:
    """Check that these are rows, and that they can be carried out.

    Raises:
        Invalid, ValueTooLarge: they are not, or cannot.
    """
    try:
        decoded = rows.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"these are no rows: {error}; nothing was staged") from error
    for row in decoded:
        if isinstance(row, EnqueueMessage | EnqueueInQueue):
            check_headers(row.headers, row.key)


def check_chunks(request: PublishStaged, winner: Winner, stored: bytes | None) -> None:
    """Check that all chunks of an attempt are there, by its record, numbered without gaps.

    Raises:
        Invalid: some are missing.
    """
    known = AttemptRecord(0, 0) if stored is None else attempts.decode(stored)
    if known.chunks != winner.chunks:
        raise Invalid(
            f"of what was staged for batch {request.batch} of {shorten(request.query)}, "
            f"{known.chunks} of {winner.chunks} chunks of a task are there: it was too old, and "
            "deleted; nothing was changed: run the job again"
        )
    if known.end != known.chunks:
        raise Invalid(
            f"the {known.chunks} chunks of a task have gaps in their numbers; nothing was changed: "
            "number them from 0 on, and run the job again"
        )


def read(view: View, at: Places, request: ReadStaging) -> Generator[None, None, Staging]:
    """Evaluate ``ReadStaging``, over as many turns as it takes."""
    if request.unfinished:
        return _unfinished(view, at, request.begin)
    found: list[StagedQuery] = []

    def told(query: bytes, stored: bytes) -> None:
        record = queries.decode(stored)
        found.append(StagedQuery(query, record.batch, record.position is not None, record.dead))

    yield from _looked_at(view, at.queries, request.begin, told)
    counts = []
    for prefix in (at.jobs, at.attempts, at.loads):
        number = yield from _looked_at(view, prefix, b"", lambda _, __: None)
        counts.append(number)
    return Staging(found, *counts)


def _looked_at(
    view: View, prefix: bytes, begin: bytes, look: Callable[[bytes, bytes], None]
) -> Generator[None, None, int]:
    """Look at the first records under a prefix; return how many there are."""
    number, start = 0, begin
    while True:
        for place, stored in first(view, prefix, STAGED_COUNTED_MAX - number, start):
            look(place[len(prefix) :], stored)
            number += 1
            view.steps += 1
            if view.is_used_up():
                start = place[len(prefix) :] + b"\x00"
                break
        else:
            return number
        yield


def _unfinished(view: View, at: Places, begin: bytes) -> Staging:
    """Return the queries that are being applied: only these have stored winners."""
    prefix, found = at.part(keys.STAGED_WINNERS), []
    for place, stored in first(view, prefix, UNFINISHED_AT_ONCE, begin):
        query = place[len(prefix) :]
        record = view.get(at.query(query))
        assert record is not None, "of a publication there is no record"
        known = queries.decode(record)
        found.append(StagedQuery(query, known.batch, unfinished=True, dead=known.dead))
        view.steps += 1 + len(stored) // 64
    return Staging(found, 0, 0, 0)
