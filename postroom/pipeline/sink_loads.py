"""The writer of bulk loads: sorted rows, straight to their places, into an empty span.

::

    driver:  the writer is made ──▶ BeginLoad: the span is empty; this run is the one that counts
    tasks:   rows, sorted in runs of 32 MiB ──▶ LoadRows, chunk by chunk, several under way
    driver:  commit ──▶ EndLoad: finished          abort ──▶ EndLoad: late tasks are refused

A load is no transaction: readers see rows as they come, and a load that fails leaves the rows that
it had written. A load of the same name (``load=``) goes on: rows that are there are passed over.

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

from postroom.client.staging import cut
from postroom.errors import Invalid, shorten
from postroom.messaging.ingest.requests import LoadRows
from postroom.pipeline import connections
from postroom.pipeline.filters import after_prefix
from postroom.pipeline.options import SinkOptions, StoreAddress
from postroom.pipeline.sink_rows import RowMaker
from postroom.pipeline.sink_staging import current_task

SORTED_BYTES: Final = 32 * 1024 * 1024
"""The size of the rows of a task that are sorted at a time, in memory."""
CHUNK_BYTES: Final = 512 * 1024
CHUNK_ROWS: Final = 4096


@dataclass(frozen=True)
class Loaded(WriterCommitMessage):
    """The number of rows that a task has loaded."""

    rows: int


class LoadWriter(DataSourceArrowWriter):
    """The writer of a bulk load. The driver makes it, and tasks get it pickled.

    Args:
        store: the store, as tasks reach it.
        options: the options of the sink.

    Raises:
        Invalid: the span is not empty.
    """

    def __init__(self, store: StoreAddress, options: SinkOptions) -> None:
        self._store = store
        self._options = options
        self._run = uuid.uuid4().bytes
        self._name = options.load.encode() or self._run
        start, end = options.prefix, after_prefix(options.prefix)
        staging = connections.database(store).staging
        self._is_done = staging.begin_load(self._name, self._run, start, end)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Loaded:
        """Load the rows of a task."""
        if self._is_done:
            return Loaded(sum(batch.num_rows for batch in iterator))
        maker = RowMaker(self._options, lambda: uuid.uuid4().bytes, current_task().partition)
        stream = connections.database(self._store).staging.stream()
        rows = 0
        for pairs in _runs(maker, iterator):
            rows += len(pairs)
            for keys, values in cut(pairs, CHUNK_BYTES, CHUNK_ROWS):
                stream.send(LoadRows(self._name, self._run, keys, values))
        stream.flush()
        return Loaded(rows)

    def commit(self, messages: list[Loaded | None]) -> None:
        """Finish the load."""
        self._end(done=True)

    def abort(self, messages: list[Loaded | None]) -> None:
        """Refuse late tasks. The loaded rows stay, so that a load of the same name can go on."""
        self._end(done=False)

    def _end(self, *, done: bool) -> None:
        if not self._is_done:
            staging = connections.database(self._store).staging
            staging.end_load(
                self._name, self._run, self._options.prefix, after_prefix(self._options.prefix),
                done=done, keep=bool(self._options.load),
            )  # fmt: skip


def _runs(
    maker: RowMaker, batches: Iterator[pa.RecordBatch]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Return the rows of a task in sorted runs of bounded size."""
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
