"""Small batches of a stream go to Spark with their plan, and need no task in Python.

The process that makes offsets has seen the changes of a small batch when it has found its end. A
task in Python would cost Spark about 50 ms, and ask the store once more for what is known here::

    latestOffset ── changes ──▶ end of the batch
         └─────────── kept ──▶ partitions ──▶ JVM, which keeps the rows as a block of its own
                                                └── lost, or a restart ──▶ read() in a task

Spark offers that for sources without partitions (``SimpleDataSourceStreamReader``), which however
know no limits. Its wrapper around them asks for rows in ``getCache``. This is such a wrapper,
around a reader that plans and reads like any other. It sends the rows that a task would read, since
changes between two offsets never change. A batch that is repeated after a restart, without the kept
rows, has equal rows.

The wrapper is no public class: if PySpark lacks it, all batches are read in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

_Wrapper = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)


class Prefetched(Protocol):
    """A stream reader that may know the rows of a batch before it is read."""

    def prefetched(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a batch of one partition; ``None``: they have to be read."""


def with_prefetch(reader: Any) -> DataSourceStreamReader:
    """Return ``reader``, whose small batches need no task in Python.

    Args:
        reader: a ``DataSourceStreamReader`` with limits that is ``Prefetched``, too.
    """
    return reader if _Wrapper is None else _WithPrefetch(reader)


class _WithPrefetch(_Wrapper or DataSourceStreamReader):  # type: ignore[misc]
    """The wrapper: see the module. Everything but ``getCache`` is the reader's own."""

    def __init__(self, reader: Any) -> None:
        self.simple_reader = reader  # PySpark looks here for the method that prepares availableNow

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Return the offset at which a new query begins."""
        offset: dict[str, Any] = self.simple_reader.initialOffset()
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch reads at most."""
        return self.simple_reader.getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        offset: dict[str, Any] = self.simple_reader.latestOffset(start, limit)
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts of the batch between two offsets."""
        parts: list[InputPartition] = self.simple_reader.partitions(start, end)
        return parts

    def getCache(  # noqa: N802
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a batch, if they are known."""
        of: Prefetched = self.simple_reader
        return of.prefetched(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        yield from self.simple_reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a batch is done."""
        self.simple_reader.commit(end)

    def stop(self) -> None:
        """Note that the query has ended."""
        self.simple_reader.stop()


__all__ = ["Prefetched", "with_prefetch"]
