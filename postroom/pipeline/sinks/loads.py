"""The writer of bulk loads: sorted rows, straight to their places, into an empty span.

::

    driver:  the writer is made ──▶ BeginLoad: the span is empty; this run is the one that counts
    tasks:   rows, sorted in runs of 32 MiB ──▶ LoadRows, chunk by chunk, several under way
    driver:  commit ──▶ EndLoad: finished          abort ──▶ EndLoad: late tasks are refused

A load is no transaction: readers see rows as they come, and a load that fails leaves those that it
had written. Run again under the same name (``load=``) it goes on: what is there is passed over.

The quickest way is rows that are sorted over all tasks, as
``df.repartitionByRange("key").sortWithinPartitions("key")`` has them: then the chunks do not
overlap, and the store need not look at a key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from postroom.client.bulk import Partition
from postroom.client.sync import Database
from postroom.errors import Invalid, shorten
from postroom.messaging.staging_requests import LoadRows
from postroom.pipeline import connections
from postroom.pipeline.filters import after_prefix
from postroom.pipeline.options import StoreAddress
from postroom.pipeline.sinks.options import SinkOptions
from postroom.pipeline.sinks.rows import RowMaker
from postroom.pipeline.sinks.staged import current_task

SORTED_BYTES: Final = 32 * 1024 * 1024
"""About so much of a task's rows is sorted at a time, and held in memory."""
CHUNK_BYTES: Final = 512 * 1024
CHUNK_ROWS: Final = 4096


@dataclass(frozen=True)
class Loaded(WriterCommitMessage):
    """What a task has loaded."""

    rows: int


class LoadWriter(DataSourceArrowWriter):
    """Loads the rows of a data frame. Made by the driver, pickled to the tasks.

    Args:
        store: where, as tasks reach it.
        options: of the sink.

    Raises:
        Invalid: the span is not empty.
    """

    def __init__(self, store: StoreAddress, options: SinkOptions) -> None:
        self._store = store
        self._options = options
        self._run = uuid.uuid4().bytes
        self._name = options.load.encode() or self._run
        start, end = options.prefix, after_prefix(options.prefix)
        db = connections.database(store)
        self._is_done = db.staging.begin_load(self._name, self._run, start, end)
        if not self._is_done:
            prepare(db, start, end)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Loaded:
        """Loads the rows of a task."""
        if self._is_done:
            return Loaded(sum(batch.num_rows for batch in iterator))
        maker = RowMaker(self._options, lambda: uuid.uuid4().bytes, current_task().partition)
        stream = connections.database(self._store).staging.stream()
        rows = 0
        for pairs in _runs(maker, iterator):
            rows += len(pairs)
            for chunk in _chunks(pairs):
                keys, values = zip(*chunk, strict=True)
                stream.send(LoadRows(self._name, self._run, list(keys), list(values)))
        stream.flush()
        return Loaded(rows)

    def commit(self, messages: list[Loaded | None]) -> None:
        """The load is finished."""
        self._end(done=True)

    def abort(self, messages: list[Loaded | None]) -> None:
        """Late tasks are refused. What was loaded stays, for a load of the same name to go on."""
        self._end(done=False)

    def _end(self, *, done: bool) -> None:
        if not self._is_done:
            staging = connections.database(self._store).staging
            staging.end_load(self._name, self._run, done=done, keep=bool(self._options.load))


def prepare(db: Database, start: bytes, end: bytes | None) -> list[Partition]:
    """Makes an empty span ready to be loaded in parallel; answers the parts it has.

    A store of one range has nothing to split, so this only asks. Where there are more ranges, it is
    the place to cut an empty span at the keys that the load will bring.
    """
    return db.partitions(start, end)


def _runs(
    maker: RowMaker, batches: Iterator[pa.RecordBatch]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows of a task, in sorted runs of bounded size."""
    pairs: list[tuple[bytes, bytes]] = []
    size = 0
    for batch in batches:
        pairs += zip(*maker.pairs(batch), strict=True)
        size += batch.nbytes
        if size >= SORTED_BYTES:
            yield _sorted(pairs)
            pairs, size = [], 0
    if pairs:
        yield _sorted(pairs)


def _sorted(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    pairs.sort()  # hardly any work where they are sorted already
    for (one, _), (other, _) in pairwise(pairs):
        if one == other:
            raise Invalid(
                f"the key {shorten(one)} is in the rows twice; a bulk load writes each key once: "
                "drop duplicates, or write with mode=put"
            )
    return pairs


def _chunks(pairs: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        chunk.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= CHUNK_BYTES or len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
