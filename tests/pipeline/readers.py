"""The source and its readers, used as Spark uses them, but in this process and without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from postroom.pipeline.driver_service import DriverLink
from postroom.pipeline.source import PostroomSource


def source(line: DriverLink | None = None, **options: object) -> PostroomSource:
    """Return a data source as a session makes it."""
    kind = type("Source", (PostroomSource,), {"line": line})
    found: PostroomSource = kind(options={name: str(value) for name, value in options.items()})
    return found


def only(schema: StructType, *names: str) -> StructType:
    return StructType([schema[name] for name in names]) if names else schema


def rows(
    made: PostroomSource, *names: str, filters: Iterable[Filter] = (), schema: Any = None
) -> list[dict[str, Any]]:
    """Return all rows of a batch, and check each batch to be exactly of the schema."""
    schema = schema or only(made.schema(), *names)
    reader = made.reader(schema)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    partitions = reader.partitions()
    # A task has nothing but what was pickled.
    reader = pickle.loads(pickle.dumps(reader))
    return [row for each in partitions for row in batches(reader.read(_sent(each)), schema)]


def _sent(partition: InputPartition) -> InputPartition:
    found: InputPartition = pickle.loads(pickle.dumps(partition))
    return found


def batches(found: Iterable[pa.RecordBatch], schema: StructType) -> list[dict[str, Any]]:
    expected, told = to_arrow_schema(schema, timezone="UTC"), []
    for batch in found:
        assert batch.schema.equals(expected), (batch.schema, expected)
        batch.validate(full=True)
        assert batch.num_rows
        told += batch.to_pylist()
    return told
