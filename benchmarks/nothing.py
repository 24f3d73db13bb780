"""A source of Spark in Python that reads nothing: it answers rows that it has in memory.

It shows the least cost of a source in Python: the plan, and one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from postroom.pipeline.tables import schema_of

_made: dict[tuple[int, int], pa.RecordBatch] = {}


def _batch(first: int, rows: int) -> pa.RecordBatch:
    """Return rows like those that ``fill`` writes; made once in a process."""
    if (first, rows) not in _made:
        schema = to_arrow_schema(schema_of("data"), timezone="UTC")
        numbers = range(first, first + rows)
        columns = [
            pa.array([b"user/%07d" % each for each in numbers], pa.binary()),
            pa.array([b"value %d" % each for each in numbers], pa.binary()),
            pa.array(numbers, pa.int64()),
            pa.array(numbers, pa.int64()).cast(schema.field("time").type),
        ]
        _made[first, rows] = pa.RecordBatch.from_arrays(columns, schema=schema)
    return _made[first, rows]


class NothingReader(DataSourceReader):
    """A reader of one partition, whatever is asked for."""

    def __init__(self, first: int, rows: int) -> None:
        self._first = first
        self._rows = rows

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Leave all filters to Spark, as for Postroom's answers."""
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield _batch(self._first, self._rows)


class NothingSource(DataSource):
    """The format ``nothing``, with options ``first`` and ``rows``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._first, self._rows = int(options["first"]), int(options["rows"])

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def schema(self) -> StructType:
        """Return the schema of the table ``data``."""
        return schema_of("data")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return NothingReader(self._first, self._rows)
