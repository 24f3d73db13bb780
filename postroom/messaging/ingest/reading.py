"""The evaluator of ``ReadStaging``: the queries that have published, and how much is staged."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from postroom.limits import STAGED_COUNTED_MAX
from postroom.messaging.ingest.records import StagedRecords, first, queries
from postroom.messaging.staging_requests import ReadStaging, StagedQuery, Staging
from postroom.ranges.evaluation import View

UNFINISHED_AT_ONCE: Final = 100


def read_staging(
    at: StagedRecords, view: View, request: ReadStaging
) -> Generator[None, None, Staging]:
    """Evaluate ``ReadStaging``, over as many turns as it takes."""
    if request.unfinished:
        return _unfinished(view, at, request.begin)
    found: list[StagedQuery] = []

    def told(query: bytes, stored: bytes) -> None:
        record = queries.decode(stored)
        found.append(StagedQuery(query, record.batch, record.cursor is not None, record.dead))

    yield from _looked_at(view, at.queries, request.begin, told)
    counts = []
    for prefix in (at.jobs.prefix, at.task_attempts, at.loads):
        number = yield from _looked_at(view, prefix, b"", lambda _, __: None)
        counts.append(number)
    return Staging(found, *counts)


def _looked_at(
    view: View, prefix: bytes, begin: bytes, look: Callable[[bytes, bytes], None]
) -> Generator[None, None, int]:
    """Look at the first records under a prefix; return how many there are."""
    number, start = 0, begin
    while True:
        for engine_key, stored in first(view, prefix, STAGED_COUNTED_MAX - number, start):
            look(engine_key[len(prefix) :], stored)
            number += 1
            view.steps += 1
            if view.is_used_up():
                start = engine_key[len(prefix) :] + b"\x00"
                break
        else:
            return number
        yield


def _unfinished(view: View, at: StagedRecords, begin: bytes) -> Staging:
    """Return the queries that are being applied: only these have stored winners."""
    prefix, found = at.publications, []
    for engine_key, stored in first(view, prefix, UNFINISHED_AT_ONCE, begin):
        query = engine_key[len(prefix) :]
        known = at.query(view, query)
        assert known is not None, "a publication has no record of its query"
        found.append(StagedQuery(query, known.batch, unfinished=True, dead=known.dead))
        view.steps += 1 + len(stored) // 64
    return Staging(found, 0, 0, 0)
