"""The answers of the store as Arrow batches of exactly the schema that Spark expects.

A *page* offers columns: for each name a function that makes the array. Only those are called that
the schema has, so a narrower one costs less. Keys and values of ``data`` and ``changes`` arrive in
Arrow's own layout, and no object is made for a row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from postroom.errors import WrongType
from postroom.kv.clock import LOGICAL_BITS
from postroom.kv.versions import INTEGER, TOMBSTONE
from postroom.messaging.bulk_requests import PackedColumn, RecordsPage
from postroom.pipeline.decoding import CORRUPT, Decode

Page = Mapping[str, Callable[[pa.Field], pa.Array]]
"""For each column, the function that makes it."""

_FIRST: Final = b"\x00\x00\x00\x00"


def batch(page: Page, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``, in its order and of its types."""
    return pa.RecordBatch.from_arrays([page[field.name](field) for field in schema], schema=schema)


# --- columns that arrive packed -------------------------------------------------------------------


def packed_page(answer: RecordsPage, decode: Decode | None) -> Page:
    """Return the columns of ``data`` and ``changes``."""
    columns, rows = answer.columns, answer.rows
    kinds = np.frombuffer(columns["kind"].data, np.uint8)
    stamps = np.frombuffer(columns["timestamp"].data, ">u8").astype(np.int64)

    def stored() -> pa.Array:
        return _binary(rows, columns["value"], kinds != TOMBSTONE)

    page: Page = {
        "key": lambda field: as_type(_binary(rows, columns["key"]), field),
        "value": lambda field: as_type(stored(), field),
        "deleted": lambda _: pa.array(kinds == TOMBSTONE),
        "timestamp": lambda _: pa.array(stamps),
        "time": lambda field: _times(stamps, field),
        "range": lambda _: pa.array(np.full(rows, answer.range_id, np.int64)),
    }
    if decode is None:
        return page
    keys = _binary(rows, columns["key"])
    return {**page, **_decoded("value", decode, stored, keys, (kinds == INTEGER).tolist())}


def _decoded(
    name: str,
    decode: Decode,
    stored: Callable[[], pa.Array],
    keys: pa.Array,
    integers: Sequence[bool],
) -> Page:
    """Return the column of decoded values and that of corrupt ones, decoded once for both."""
    columns = functools.cache(lambda: decode.columns(stored(), keys, integers))
    return {name: lambda _: columns()[0], CORRUPT: lambda _: columns()[1]}


def _binary(rows: int, column: PackedColumn, there: Any = None) -> pa.Array:
    validity = None
    if there is not None and not there.all():
        validity = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(_FIRST + column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _times(stamps: Any, field: pa.Field) -> pa.Array:
    return pa.array((stamps >> LOGICAL_BITS) * 1000).cast(field.type)


def as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return ``array`` as bytes or text, by the type of a field.

    Raises:
        WrongType: these bytes are no text.
    """
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise WrongType(
            f"the column {field.name!r} holds bytes that are no UTF-8: read it as binary"
        ) from error


# --- columns of records ---------------------------------------------------------------------------

Getter = Callable[[Any], Any]


def records_page(records: Sequence[Any], getters: Mapping[str, Getter]) -> Page:
    """Return the columns of records, each made by its getter."""

    def column(get: Getter) -> Callable[[pa.Field], pa.Array]:
        return lambda field: _column([get(record) for record in records], field)

    return {name: column(get) for name, get in getters.items()}


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        micros = [None if each is None else (each >> LOGICAL_BITS) * 1000 for each in values]
        return pa.array(micros, pa.int64()).cast(field.type)
    if values and pa.types.is_string(field.type) and any(type(v) is bytes for v in values):
        return as_type(pa.array(values, pa.binary()), field)
    return pa.array(values, field.type)


def with_values(page: Page, name: str, keys: Iterable[bytes], decode: Decode | None) -> Page:
    """Return ``page`` with the column of values decoded."""
    if decode is None or name not in page:
        return page

    stored, keyed = page[name](pa.field(name, pa.binary())), pa.array(keys, pa.binary())
    return {**page, **_decoded(name, decode, lambda: stored, keyed, [False] * len(stored))}


def headers_text(headers: Mapping[str, Any] | None) -> str:
    """Return headers as JSON, with bytes as hexadecimal text."""
    return json.dumps(headers or {}, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
