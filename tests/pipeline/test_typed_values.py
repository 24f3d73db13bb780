"""Values of columns become JSON or MessagePack, and are the same when they come back."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from postroom.errors import Invalid
from postroom.pipeline.typed_values import NotThatType, decoder, encoder

BERLIN = datetime.timezone(datetime.timedelta(hours=1))
MOMENT = datetime.datetime(2013, 1, 31, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
NESTED = pa.struct([
    ("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ("at", pa.timestamp("us", tz="UTC")),
])  # fmt: skip
CASES: list[tuple[Any, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int8(), -7, -7),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.string(), "é\x00", "é\x00"),
    (pa.float64(), 1.5, 1.5),
    (pa.float64(), math.inf, "Infinity"),
    (pa.float64(), -math.inf, "-Infinity"),
    (pa.decimal128(10, 2), Decimal("12.30"), "12.30"),
    (pa.binary(), b"\x00\xff", "AP8="),
    (pa.date32(), datetime.date(2013, 1, 31), "2013-01-31"),
    (pa.timestamp("us", tz="UTC"), MOMENT, "2013-01-31T12:00:00.250000+00:00"),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=None), "2013-01-31T12:00:00.250000"),
    (pa.list_(pa.date32()), [datetime.date(1, 1, 1), None], ["0001-01-01", None]),
    (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
    (pa.map_(pa.int64(), pa.string()), [(1, "x")], {"1": "x"}),
    (pa.map_(pa.bool_(), pa.string()), [(True, "x")], {"true": "x"}),
    (
        NESTED,
        {"tags": [("x", [1, 2])], "at": MOMENT},
        {"tags": {"x": [1, 2]}, "at": "2013-01-31T12:00:00.250000+00:00"},
    ),
]


@pytest.mark.parametrize(("type_", "value", "written"), CASES, ids=lambda each: str(each)[:40])
def test_a_value_comes_back_from_json(type_: pa.DataType, value: Any, written: Any) -> None:
    encoded = encoder("c", type_, "json")(value)
    assert encoded == written
    unpacked = json.loads(json.dumps(encoded, allow_nan=False))
    assert decoder("c", type_, "json")(unpacked) == value
    pa.array([decoder("c", type_, "json")(unpacked)], type_)


@pytest.mark.parametrize(
    ("type_", "value"), [case[:2] for case in CASES if case[2] != {"true": "x"}],
    ids=lambda each: str(each)[:40],
)  # fmt: skip
def test_a_value_comes_back_from_messagepack(type_: pa.DataType, value: Any) -> None:
    packed = msgpack.packb(encoder("c", type_, "msgpack")(value))
    unpacked = msgpack.unpackb(packed, strict_map_key=False)
    assert decoder("c", type_, "msgpack")(unpacked) == value


def test_nan_is_text_in_json_and_comes_back() -> None:
    assert encoder("c", pa.float64(), "json")(math.nan) == "NaN"
    assert math.isnan(decoder("c", pa.float64(), "json")("NaN"))
    assert math.isnan(decoder("c", pa.float32(), "msgpack")(math.nan))


def test_null_stays_null() -> None:
    for format_ in ("json", "msgpack"):
        assert encoder("c", NESTED, format_)(None) is None
        assert decoder("c", NESTED, format_)({"tags": None}) == {"tags": None, "at": None}


@pytest.mark.parametrize(
    "type_",
    [
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.map_(pa.date32(), pa.string()),
        pa.map_(pa.binary(), pa.string()),
        pa.struct([("inner", pa.list_(pa.duration("us")))]),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_a_type_without_a_form_is_refused_by_the_name_of_its_column(
    type_: pa.DataType, make: Any, format_: str
) -> None:
    with pytest.raises(Invalid, match="the column 'price"):
        make("price", type_, format_)


@pytest.mark.parametrize(
    ("type_", "found"),
    [
        (pa.int64(), True),
        (pa.int64(), 1.0),
        (pa.bool_(), 1),
        (pa.string(), 7),
        (pa.float64(), "nan"),
        (pa.decimal128(10, 2), "twelve"),
        (pa.binary(), "A*"),
        (pa.date32(), "31.1.2013"),
        (pa.timestamp("us", tz="UTC"), "2013-01-31T12:00:00"),
        (pa.timestamp("us"), "2013-01-31T12:00:00+00:00"),
        (pa.list_(pa.int64()), {"a": 1}),
        (pa.map_(pa.int64(), pa.string()), {"a": "x"}),
        (pa.map_(pa.string(), pa.string()), [["a", "x"]]),
    ],
    ids=str,
)
def test_a_stored_value_of_another_type_is_told(type_: pa.DataType, found: Any) -> None:
    with pytest.raises(NotThatType):
        decoder("c", type_, "json")(found)


def test_a_moment_of_another_zone_is_the_same_moment() -> None:
    text = encoder("c", pa.timestamp("us", tz="UTC"), "json")(MOMENT.astimezone(BERLIN))
    assert decoder("c", pa.timestamp("us", tz="UTC"), "json")(text) == MOMENT
