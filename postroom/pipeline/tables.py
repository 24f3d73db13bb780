"""The tables: their columns and types, and the schemas that a reader may give instead.

Columns are named as the attributes of the Python interface. A timestamp of the store is 64 bits,
and is one column of integers, by which rows can be ordered exactly and read again. Beside it is a
column of Spark's own timestamps, in microseconds, whose name ends with ``time``.

A reader may be given a narrower schema: fewer columns, in any order. Columns of bytes may be read
as text; values as anything, with ``format=``.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from postroom.errors import Invalid
from postroom.pipeline.typed_values import CORRUPT, FAILFAST, PERMISSIVE, decoder, refused

_QUEUE: Final = (
    "queue string, key binary, kind string, id binary, payload binary, headers string, "
    "priority int, group string, created_at bigint, created_time timestamp, "
    "first_scheduled bigint, first_scheduled_time timestamp, scheduled bigint, "
    "scheduled_time timestamp, epoch int, leased_until bigint, leased_until_time timestamp, "
    "last_error string, state string, done_at bigint, done_time timestamp, "
    "fired_at bigint, fired_time timestamp"
)

SCHEMAS: Final = {
    "data": "key binary, value binary, timestamp bigint, time timestamp",
    "inbox": (
        "key binary, id string, value binary, headers string, sent_at bigint, "
        "sent_time timestamp, delivered_at bigint, delivered_time timestamp, sender_range bigint"
    ),
    "reaped": (
        "key binary, id string, value binary, headers string, sent_at bigint, "
        "sent_time timestamp, delivered_at bigint, delivered_time timestamp, reaped_at bigint, "
        "reaped_time timestamp, consumed boolean, attempts int, last_error string, "
        "sender_range bigint"
    ),
    "outbox": (
        "id string, due bigint, due_time timestamp, sent_at bigint, sent_time timestamp, "
        "key binary, request string, message binary, headers string, transaction_id binary, "
        "source_key binary"
    ),
    "queue": _QUEUE,
    "archive": _QUEUE,
    "dead_letters": (
        "id string, reason string, sent_at bigint, sent_time timestamp, key binary, "
        "request string, message binary, headers string, transaction_id binary, source_key binary"
    ),
    "accounting": "prefix binary, metric string, value bigint",
    "changes": (
        "key binary, value binary, deleted boolean, timestamp bigint, time timestamp, range bigint"
    ),
    "counters": "range bigint, queue string, number bigint, counter string, value bigint",
    "inbox_index": "key binary, messages bigint, oldest binary, held binary",
    "places": (
        "range bigint, queue string, number bigint, part string, key binary, kind string, "
        "id binary, seq binary, group string, outstanding bigint"
    ),
    "beside": (
        "range bigint, what string, key binary, number bigint, kind string, id binary, "
        "seq binary, status int, metric string, value bigint"
    ),
}

KEYS: Final = {
    "data": "key", "changes": "key", "inbox": "key", "reaped": "key", "accounting": "prefix",
    "inbox_index": "key", "beside": "key",
}  # fmt: skip
"""The column by which a table is read in spans."""

VALUES: Final = {
    "data": "value",
    "changes": "value",
    "inbox": "value",
    "reaped": "value",
    "outbox": "message",
    "dead_letters": "message",
    "queue": "payload",
    "archive": "payload",
}
"""The column that ``format=`` is about."""

SINCE: Final = frozenset({"changes", "reaped"})
"""The tables that are read from one timestamp up to another."""

UNVERSIONED: Final = frozenset({
    "outbox", "dead_letters", "accounting", "counters", "inbox_index", "places", "beside",
})  # fmt: skip
"""The tables that are read in a snapshot of the engine, since they have no versions."""


_TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}


_VARIANT: Final = '"variant"'
"""The type variant inside the JSON of a type."""


def schema_of(table: str) -> StructType:
    """Return all columns of a table."""
    columns = (column.split() for column in SCHEMAS[table].split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in columns])


def check(schema: StructType, table: str, format_: str, mode: str = FAILFAST) -> None:
    """Check that a table can be read with a schema.

    Raises:
        Invalid: the table has no such column, or none of this type.
    """
    known = {field.name: field.dataType for field in schema_of(table).fields}
    if mode == PERMISSIVE and table in VALUES:
        known[CORRUPT] = BinaryType()
    for field in schema.fields:
        if field.name == VALUES.get(table) and format_:
            decoder(field.name, arrow_type(field), format_)
        if field.name not in known:
            raise Invalid(
                f"the table {table!r} has no column {field.name!r}: its columns are "
                f"{', '.join(known)}"
            )
        kind = known[field.name]
        if field.dataType == kind or (isinstance(kind, BinaryType) and _is_text(field.dataType)):
            continue
        if field.name == VALUES.get(table) and format_:
            continue
        raise Invalid(
            f"the column {field.name!r} of {table!r} is {kind.simpleString()}, not "
            f"{field.dataType.simpleString()}"
            + (": give format=json or msgpack" if field.name == VALUES.get(table) else "")
        )


def arrow_type(field: StructField) -> Any:
    """Return the type of a column as Arrow has it.

    Raises:
        Invalid: Arrow has none.
    """
    try:
        type_ = to_arrow_type(field.dataType, timezone="UTC")
    except PySparkException as error:
        raise refused(field.name, field.dataType.simpleString()) from error
    if _VARIANT in field.dataType.json():  # Arrow takes it for a struct
        raise refused(field.name, field.dataType.simpleString())
    return type_


def is_plain(schema: StructType, table: str) -> bool:
    """Return whether the columns are exactly those of the table, or text.

    Then nothing is decoded, and nothing (like metadata) is lost when rows go to Spark's JVM beside
    tasks.
    """
    known = {field.name: field for field in schema_of(table).fields}
    return all(
        field in {known[field.name], StructField(field.name, _TYPES["string"])}
        for field in schema.fields
    )


def _is_text(kind: object) -> bool:
    return isinstance(kind, StringType)
