"""Rows become writes, or an error that names the column and the row."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Invalid
from postroom.kv.clock import from_datetime
from postroom.messaging import due
from postroom.messaging.ingest.staging import rows as decoder
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage
from postroom.pipeline.options import SinkOptions, parse_sink
from postroom.pipeline.sink_rows import RowMaker, check
from postroom.pipeline.sink_staging import CHUNK_BYTES, RowChunks
from postroom.ranges.requests import Delete, Increment, Put

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def options(columns: list[str], **given: str) -> SinkOptions:
    return parse_sink(given, columns)


def made(rows: list[dict[str, Any]], schema: Any = None, **given: str) -> list[Any]:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    ids = (b"id%d" % number for number in itertools.count())
    return RowMaker(options(batch.schema.names, **given), ids.__next__, 7).writes(batch)


def test_puts_deletes_and_increments() -> None:
    pairs = [{"key": b"a", "value": b"1"}, {"key": b"b", "value": b""}]
    assert made(pairs) == [Put(b"a", b"1"), Put(b"b", b"")]
    assert made([{"key": "ä", "value": "ö"}]) == [Put("ä".encode(), "ö".encode())]
    assert made([{"key": b"a"}], mode="delete") == [Delete(b"a")]
    assert made([{"key": b"a", "by": -3}], mode="increment") == [Increment(b"a", -3)]
    assert made([{"key": "a"}], mode="increment") == [Increment(b"a", 1)]


def test_the_column_mode_says_it_of_each_row() -> None:
    rows = [
        {"mode": "put", "key": b"a", "value": b"1", "by": None},
        {"mode": "delete", "key": b"b", "value": None, "by": None},
        {"mode": "increment", "key": b"c", "value": None, "by": 2},
    ]
    assert made(rows) == [Put(b"a", b"1"), Delete(b"b"), Increment(b"c", 2)]


def test_messages() -> None:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.string())),
            ("deliver_at", pa.timestamp("us", tz="UTC")),
        ]
    )
    rows = [
        {"key": b"a", "value": b"1", "headers": {"h": "x"}, "deliver_at": NOON},
        {"key": b"a", "value": b"2", "headers": None, "deliver_at": None},
    ]
    assert made(rows, schema, mode="message") == [
        EnqueueMessage(b"a", b"1", {"h": "x"}, due.at(from_datetime(NOON))),
        EnqueueMessage(b"a", b"2"),
    ]


def test_queue_messages() -> None:
    row = {"queue": None, "kind": "k", "id": "x", "value": b"1", "priority": 3, "group": "g"}
    assert made([row, {**row, "id": None, "queue": "other"}], mode="queue", queue="q") == [
        EnqueueInQueue("q", b"x", "k", b"x", b"1", None, 3, 0, "g"),
        EnqueueInQueue("other", b"id0", "k", b"id0", b"1", None, 3, 0, "g", is_unique=True),
    ]
    keyed = {"key": b"a", "id": b"x", "value": b"1"}
    assert made([keyed], mode="queue", queue="q") == [EnqueueInQueue("q", b"a", "", b"x", b"1")]


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_the_other_columns_are_the_value(format_: str) -> None:
    (put,) = made([{"key": b"a", "n": 1, "t": "x", "none": None}], format=format_)
    decode = json.loads if format_ == "json" else msgspec.msgpack.decode
    assert decode(put.value) == {"n": 1, "t": "x", "none": None}


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        ([{"key": b"a", "value": b""}, {"key": None, "value": b""}], {}, "'key' is null"),
        ([{"key": b"a", "value": b""}, {"key": b"b", "value": None}], {}, "'value' is null"),
        ([{"key": b"", "value": b""}, {"key": b"x" * 9000, "value": b""}], {}, "'key' has 9000"),
        ([{"key": b"a", "by": 1}, {"key": b"b", "by": None}], {"mode": "increment"}, "'by' is"),
        ([{"key": b"a", "by": 1}, {"key": b"b", "by": 2**63}], {"mode": "increment"}, "64-bit"),
        (
            [{"key": b"a", "mode": "delete"}, {"key": b"b", "mode": "remove"}],
            {},
            "'mode' is 'remove'",
        ),
        (
            [{"key": b"a", "n": None}, {"key": b"b", "n": "x" * 2_000_000}],
            {"format": "json"},
            "limit",
        ),
        (
            [{"id": "a", "value": b""}, {"id": "", "value": b""}],
            {"mode": "queue", "queue": "q"},
            "id of a message",
        ),
    ],
)
def test_a_row_that_cannot_be_written(
    rows: list[dict[str, Any]], given: dict[str, str], said: str
) -> None:
    schema = None
    if rows[1].get("by") == 2**63:
        schema = pa.schema([("key", pa.binary()), ("by", pa.uint64())])
    with pytest.raises(Invalid, match=r"row 1 of partition 7 .*" + said):
        made(rows, schema, **given)


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ({"value": "binary"}, {}, "no column 'key'"),
        ({"key": "binary"}, {}, "no column 'value'"),
        ({"key": "binary", "value": "binary", "n": "long"}, {}, "'n' means nothing"),
        ({"key": "binary", "n": "long"}, {"mode": "delete", "format": "json"}, "means nothing"),
        ({"key": "long", "value": "binary"}, {}, "cast it"),
        ({"key": "binary", "value": "long"}, {"format": "json"}, "cast it"),
        ({"key": "binary", "value": "binary"}, {"format": "json"}, "rename the column"),
        ({"value": "binary"}, {"mode": "queue"}, "needs the option queue="),
        (
            {"key": "binary", "value": "binary", "deliver_at": "timestamp_ntz"},
            {"mode": "message"},
            "cast it",
        ),
    ],
)
def test_columns_that_do_not_fit(columns: dict[str, str], given: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        check(columns, options(list(columns), **given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "upsert"}, "mode is one of"),
        ({"mode": "put", "moed": "x"}, "no option 'moed'"),
        ({"format": "xml"}, "format is one of"),
        ({"mode": "put", "load": "x"}, "belongs to mode=load"),
        ({"mode": "put", "query": "x"}, "belong together"),
        ({"mode": "put", "batch": "1"}, "belong together"),
        ({"mode": "put", "query": "x", "batch": "-1"}, "from 0 on"),
        ({"mode": "put", "query": "x" * 513, "batch": "1"}, "512 bytes at most"),
        ({"mode": "load", "query": "x", "batch": "1"}, "not for mode=load"),
    ],
)
def test_options_that_cannot_be(given: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        parse_sink(given, ["key", "value"])
    with pytest.raises(Invalid, match="drop the column"):
        parse_sink({"mode": "put"}, ["key", "mode"])


@given(st.lists(st.lists(st.integers(0, 300_000), max_size=8), max_size=8))
def test_chunks_hold_all_rows_in_order(batches: list[list[int]]) -> None:
    chunks, expected, found = RowChunks(), [], []
    for sizes in batches:
        rows = [Put(b"%d" % len(expected), bytes(size)) for size in sizes]
        expected += rows
        found += chunks.add(rows, sum(sizes))
    found += chunks.rest()
    assert [row for chunk in found for row in decoder.decode(chunk)] == expected
    assert all(len(decoder.decode(c)) == 1 or len(c) < 8 * CHUNK_BYTES for c in found)


@pytest.mark.parametrize(
    ("mode", "columns"),
    [("put", {"key": b"a"}), ("message", {"key": b"a"}), ("queue", {"id": b"a", "queue": "q"})],
)
@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_fields_are_packed_by_their_types_in_values_and_messages(
    mode: str, columns: dict[str, Any], format_: str
) -> None:
    row = {**columns, "counts": [("a", 1)], "day": date(2013, 1, 31), "raw": b"x"}
    types = {"counts": pa.map_(pa.string(), pa.int64()), "day": pa.date32(), "raw": pa.binary()}
    known = {"key": pa.binary(), "id": pa.binary(), "queue": pa.string()}
    schema = pa.schema({**{name: known[name] for name in columns}, **types})
    (write,) = made([row], schema, mode=mode, format=format_)
    packed = write.payload if mode == "queue" else write.value
    if format_ == "json":
        assert json.loads(packed) == {"counts": {"a": 1}, "day": "2013-01-31", "raw": "eA=="}
    else:
        assert msgspec.msgpack.decode(packed) == {
            "counts": {"a": 1}, "day": "2013-01-31", "raw": b"x",
        }  # fmt: skip
