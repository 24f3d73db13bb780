"""The options of a table of Spark's catalog, kept in the metadata of its first column.

::

    CREATE TABLE shop USING postroom OPTIONS (path 'data/shop');
    SELECT * FROM shop;

Spark hands the options of such a table to a source when the table is made, and to none that reads
it. It keeps the schema that the source names, with metadata, and hands that to each reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from postroom.pipeline.options import plain

METADATA: Final = "postroom.options"
_SECRET: Final = "token"
"""The option that is not kept: everybody who sees the table's schema could read it."""


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a schema that keeps the options of a table."""
    kept = {name: value for name, value in plain(options).items() if name != _SECRET}
    first, *others = schema.fields
    known = StructField(first.name, first.dataType, first.nullable, {METADATA: kept})
    return StructType([known, *others])


def options_in(schema: StructType) -> dict[str, str]:
    """Return the options that a schema keeps; empty: it is of no table, or has other columns."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found |= field.metadata.get(METADATA, {})
    return found


__all__ = ["options_in", "with_options"]
