"""The batch reader, without Spark: every table, at one timestamp, filtered, narrowed, decoded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import postroom
from postroom.client.bulk import Bulk
from postroom.errors import Error, Invalid, SnapshotTooOld, WrongType
from postroom.limits import KEY_BYTES_MAX
from postroom.pipeline import table_reader
from postroom.pipeline.driver_service import DriverService
from postroom.ranges.requests import Accounting, Increment
from tests.pipeline.readers import only, rows, source

KEY = ("key",)


@pytest.fixture
def filled(db: postroom.Database) -> postroom.Database:
    for number in range(50):
        db.put(b"k%02d" % number, b"%d" % number)
    db.put(b"\x00\xff\x00", b"")
    db.delete(b"k07")
    return db


def keys(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["key"] for row in found]


def test_all_is_read_at_the_timestamp_of_the_source(served: str, filled: postroom.Database) -> None:
    made = source(connect=served, insecure="true")
    expected = dict(filled.scan())
    filled.put(b"k00", b"later")
    filled.delete(b"k01")
    found = rows(made)
    assert {row["key"]: row["value"] for row in found} == expected
    assert rows(made) == found  # another plan of the same data frame
    row = found[5]
    stamp = postroom.Timestamp(row["timestamp"])
    assert row["time"] == stamp.datetime
    assert filled.get(row["key"], at=stamp) == row["value"]
    then = source(connect=served, insecure="true", at=made.at)
    assert rows(then) == found


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ([EqualTo(KEY, b"k03")], [b"k03"]),
        ([In(KEY, (b"k09", b"k01", b"k07", b"nothing", b"k01"))], [b"k01", b"k09"]),
        ([GreaterThan(KEY, b"k47"), IsNotNull(KEY)], [b"k48", b"k49"]),
        ([GreaterThanOrEqual(KEY, b"k48")], [b"k48", b"k49"]),
        ([LessThan(KEY, b"k01")], [b"\x00\xff\x00", b"k00"]),
        ([LessThanOrEqual(KEY, b"k00")], [b"\x00\xff\x00", b"k00"]),
        ([GreaterThanOrEqual(KEY, b"k1"), LessThan(KEY, b"k11")], [b"k10"]),
        ([In(KEY, (b"k01", b"k40")), LessThan(KEY, b"k2")], [b"k01"]),
        ([EqualTo(KEY, "k04")], [b"k04"]),
        ([GreaterThan(KEY, b"z")], []),
        ([GreaterThan(KEY, b"k2"), LessThan(KEY, b"k1")], []),
        ([GreaterThan(KEY, b"k" * 10_000)], []),
    ],
)
def test_filters_on_keys_narrow_what_is_read(
    served: str, filled: postroom.Database, condition: list[Filter], wanted: list[bytes]
) -> None:
    found = rows(source(connect=served, insecure="true"), "key", filters=condition)
    assert keys(found) == wanted  # nothing else was read at all: Spark has filtered nothing yet


def test_filters_on_times_narrow_what_is_read(served: str, filled: postroom.Database) -> None:
    made = source(connect=served, insecure="true")
    every = rows(made)
    last = max(row["timestamp"] for row in every)
    assert [row["timestamp"] for row in rows(made, filters=[EqualTo(("timestamp",), last)])] == [
        last
    ]
    moment = datetime(2000, 1, 1, tzinfo=UTC)
    assert rows(made, filters=[GreaterThan(("time",), moment)]) == every
    assert rows(made, filters=[GreaterThan(("time",), datetime(2200, 1, 1, tzinfo=UTC))]) == []


@pytest.mark.parametrize("table", ["data", "changes", "archive"])
def test_filters_on_times_that_nothing_can_be_of_find_nothing(
    served: str, filled: postroom.Database, table: str
) -> None:
    filled.create_queue("q")
    made = source(connect=served, insecure="true", table=table)
    whole, time = ("done_at", "done_time") if table == "archive" else ("timestamp", "time")
    schema = only(made.schema(), whole)
    for filters in (
        [LessThan((whole,), -5)],
        [EqualTo((whole,), -5)],
        [GreaterThan((whole,), made.at + (1 << 40))],
        [GreaterThan((whole,), (1 << 63) - 1)],
        [LessThan((time,), datetime(1960, 1, 1, tzinfo=UTC))],
        [GreaterThan((time,), datetime(9999, 1, 1, tzinfo=UTC))],
    ):
        found = rows(made, filters=filters, schema=schema)
        assert table == "data" or not found  # Spark takes out data that are too new


def test_filters_on_keys_of_any_length(served: str, db: postroom.Database) -> None:
    longest, highest = b"k" * KEY_BYTES_MAX, b"\xff" * KEY_BYTES_MAX
    for key in (b"a", longest, highest):
        db.put(key, b"1")
    made = source(connect=served, insecure="true")
    for each, expected in (
        (EqualTo(KEY, longest), [longest]),
        (EqualTo(KEY, highest), [highest]),
        (In(KEY, (longest, highest, longest + b"k")), [longest, highest]),
        (LessThanOrEqual(KEY, longest), [b"a", longest]),
        (LessThan(KEY, longest + b"k"), [b"a", longest]),
        (GreaterThan(KEY, longest + b"k"), [longest, highest]),  # Spark takes out the first
    ):
        assert keys(rows(made, "key", filters=[each])) == expected


def test_prefixes_are_an_option(served: str, filled: postroom.Database) -> None:
    found = rows(source(connect=served, insecure="true", prefix="k1"), "key")
    assert keys(found) == [b"k1%d" % number for number in range(10)]


def test_a_narrower_schema_reads_less(served: str, filled: postroom.Database) -> None:
    (row,) = rows(
        source(connect=served, insecure="true"), "time", "key", filters=[EqualTo(KEY, b"k01")]
    )
    assert list(row) == ["time", "key"]


def test_keys_and_values_may_be_text(served: str, filled: postroom.Database) -> None:
    text = StructType([StructField("key", StringType()), StructField("value", StringType())])
    made = source(connect=served, insecure="true", prefix="k")
    assert {"key": "k03", "value": "3"} in rows(made, schema=text)
    with pytest.raises(WrongType, match="UTF-8"):
        rows(source(connect=served, insecure="true"), schema=text)


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_values_are_decoded_where_they_are_read(
    served: str, db: postroom.Database, format_: str
) -> None:
    pack = (lambda v: json.dumps(v).encode()) if format_ == "json" else msgpack.packb
    db.put(b"a", pack({"n": 1, "x": 1.5, "more": [1]}))
    db.put(b"b", pack({"n": 2}))
    kind = StructType([StructField("n", LongType()), StructField("x", DoubleType())])
    schema = StructType([StructField("value", kind), StructField("key", BinaryType())])
    made = source(connect=served, insecure="true", format=format_)
    assert rows(made, schema=schema) == [
        {"value": {"n": 1, "x": 1.5}, "key": b"a"},
        {"value": {"n": 2, "x": None}, "key": b"b"},
    ]
    db.delete_range(b"", None)
    db.increment(b"count", 7)
    numbers = StructType([StructField("value", LongType())])
    made = source(connect=served, insecure="true", format=format_)
    assert rows(made, schema=numbers) == [{"value": 7}]
    db.put(b"broken", b"\xc1 no such thing")
    with pytest.raises(WrongType, match="broken"):
        rows(source(connect=served, insecure="true", format=format_), schema=numbers)
    db.put(b"broken", pack("text"))
    with pytest.raises(WrongType, match="does not fit"):
        rows(source(connect=served, insecure="true", format=format_), schema=numbers)


def test_changes_are_all_versions_between_two_timestamps(
    served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"0")
    before = db.now()
    db.put(b"a", b"1")
    db.delete(b"a")
    db.increment(b"n", 1)
    made = source(connect=served, insecure="true", table="changes", since=before)
    db.put(b"a", b"2")
    found = rows(made)
    assert [(row["key"], row["value"], row["deleted"], row["range"]) for row in found] == [
        (b"a", b"1", False, 1),
        (b"a", None, True, 1),
        (b"n", (1).to_bytes(8, "big"), False, 1),
    ]
    everything = source(connect=served, insecure="true", table="changes")
    assert len(rows(everything)) == 5


def test_messages_are_read_with_what_is_known_of_them(served: str, db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"one", headers={"n": 1, "b": b"\x01"})
        tx.enqueue_message(b"l", b"two")
    (message,) = db.peek(b"k")
    made = source(connect=served, insecure="true", table="inbox")
    with db.begin() as tx:
        tx.reap_queue(b"k")
    first, second = rows(made)
    assert first == {
        "key": b"k",
        "id": message.id,
        "value": b"one",
        "headers": '{"b": "01", "n": 1}',
        "sent_at": message.sent_at,
        "sent_time": message.sent_at.datetime,
        "delivered_at": message.delivered_at,
        "delivered_time": message.delivered_at.datetime,
        "sender_range": 1,
    }
    assert (second["key"], second["headers"]) == (b"l", "{}")
    assert keys(rows(made, "key", filters=[EqualTo(KEY, b"l")])) == [b"l"]


def test_messages_that_left_inboxes_are_read_between_two_timestamps(
    served: str, db: postroom.Database
) -> None:
    with db.begin() as tx:
        for value in (b"one", b"two", b"three"):
            tx.enqueue_message(b"k", value)
    since = db.now()
    with db.begin() as tx:
        (message,) = tx.reap_queue(b"k", 1)
    with db.begin() as tx:
        tx.postpone(tx.reap_queue(b"k", 1), 3600, "not yet")
    made = source(connect=served, insecure="true", table="reaped", since=since)
    with db.begin() as tx:
        tx.reap_queue(b"k", 1)
    second, first = rows(made)  # the last one of each key comes first
    assert (second["value"], second["consumed"]) == (b"two", False)
    assert (first["value"], first["consumed"], first["id"]) == (b"one", True, message.id)
    assert first["sent_at"] == message.sent_at
    assert since < first["reaped_at"] < second["reaped_at"] < made.at
    assert first["reaped_time"] == postroom.Timestamp(first["reaped_at"]).datetime
    assert (first["attempts"], first["last_error"]) == (0, "")
    everything = source(connect=served, insecure="true", table="reaped")
    assert len(rows(everything)) == 3
    later = [GreaterThan(("reaped_at",), second["reaped_at"] + 1)]
    assert [row["value"] for row in rows(everything, filters=later)] == [b"three"]
    none = source(connect=served, insecure="true", table="reaped", since=everything.at)
    assert rows(none) == []


def test_tables_without_versions_are_read_as_of_the_making_of_the_source(
    served: str, db: postroom.Database, service: DriverService
) -> None:
    db.put(b"text", b"no number")
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"later", deliver_at=3600)
        tx.enqueue_update(Increment(b"p", 2), execute_at=3600)
        tx.enqueue_update(Increment(b"text"))
        tx.enqueue_update(Accounting(b"a/b", {"bytes": 3}))
    db.drain()
    tables = ("outbox", "dead_letters", "accounting")
    made = {
        table: source(service.line, connect=served, insecure="true", table=table)
        for table in tables
    }
    waiting, (letter,) = db.scheduled(), db.dead_letters()
    db.cancel([each.id for each in waiting])
    db.discard([letter.id])
    with db.begin() as tx:
        tx.enqueue_update(Accounting(b"a/b", {"bytes": 1}))
    db.drain()
    outbox = rows(made["outbox"])
    assert {row["id"] for row in outbox} == {each.id for each in waiting}
    by_key = {row["key"]: row for row in outbox}
    assert by_key[b"k"]["message"] == b"later"
    assert json.loads(by_key[b"p"]["request"]) == {
        "request": "Increment", "key": b"p".hex(), "by": 2, "packed": False,
    }  # fmt: skip
    (died,) = rows(made["dead_letters"])
    assert (died["id"], died["reason"]) == (letter.id, letter.reason)
    assert rows(made["accounting"]) == [
        {"prefix": b"a", "metric": "bytes", "value": 3},
        {"prefix": b"a/b", "metric": "bytes", "value": 3},
    ]
    with pytest.raises(Invalid, match="register"):
        source(connect=served, insecure="true", table="outbox")
    store = {"connect": served, "insecure": "true"}
    with db.hold(whole=True) as at:
        with db.begin() as tx:
            tx.enqueue_update(Accounting(b"a/b", {"bytes": 1}))
        db.drain()
        then = source(service.line, **store, table="accounting", at=at)
        assert [row["value"] for row in rows(then)] == [4, 4]
    for line in (service.line, None):
        never = source(line, **store, table="outbox", at=int(db.now()))
        with pytest.raises(SnapshotTooOld, match="not protected as a whole"):
            rows(never)


def test_the_records_of_audits_are_read_as_tables(
    served: str, db: postroom.Database, service: DriverService
) -> None:
    db.create_queue("q")
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"hello")
        tx.enqueue_message(b"k", b"later", deliver_at=3600)
        tx.enqueue("q", b"work", id=b"1", key=b"k", kind="mail", group="g")
        tx.enqueue_update(Accounting(b"a/b", {"n": 3}))
    db.drain()
    tables = ("counters", "inbox_index", "places", "beside")
    store = {"connect": served, "insecure": "true"}
    counters, index, places, beside = (
        rows(source(service.line, **store, table=name)) for name in tables
    )
    claimed = {(row["queue"], row["counter"]): row["value"] for row in counters}
    assert (claimed["", "enqueued"], claimed["", "pending_messages"]) == (3, 1)
    assert (claimed["q", "ready"], claimed["q", "moved"]) == (1, 0)
    assert {row["number"] for row in counters} == {0, 1}
    ((message,),) = [[row for row in beside if row["what"] == "message"]]
    assert index == [{"key": b"k", "messages": 1, "oldest": message["id"], "held": b""}]
    by_part = {row["part"]: row for row in places}
    assert set(by_part) == {"message", "ready", "group"}
    ready = by_part["ready"]
    assert (ready["queue"], ready["key"], ready["kind"], ready["id"]) == ("q", b"g", "mail", b"1")
    assert (by_part["group"]["group"], by_part["group"]["outstanding"]) == ("g", 1)
    (body,) = (row for row in beside if row["what"] == "body")
    assert (body["key"], body["number"], body["seq"]) == (b"g", 1, ready["seq"])
    sums = {(row["what"], row["key"], row["metric"]): row["value"] for row in beside
            if row["what"] in {"sum", "posted"}}  # fmt: skip
    assert sums == {
        ("sum", b"a", "n"): 3, ("sum", b"a/b", "n"): 3, ("posted", b"a/b", "n"): 3,
    }  # fmt: skip
    narrow = rows(source(service.line, **store, table="beside"), filters=[EqualTo(KEY, b"k")])
    assert {row["key"] for row in narrow} == {b"k"}


def test_queues_are_read_by_queue_and_state(served: str, db: postroom.Database) -> None:
    db.create_queue("mail", archive=True)
    db.create_queue("other", max_attempts=1)
    with db.begin() as tx:
        for number in range(5):
            tx.enqueue("mail", b"%d" % number, id=f"m{number}", kind="k", headers={"h": 1})
        tx.enqueue("mail", b"later", id="m9", deliver_at=3600, group="g", priority=3)
        tx.enqueue("other", b"x", id="o1")
    claimed = db.queue("mail").claim(2)
    db.queue("mail").acknowledge(claimed)
    made = source(connect=served, insecure="true", table="queue")
    db.queue("mail").acknowledge(db.queue("mail").claim(1))
    found = rows(made)
    states = sorted((row["id"], row["state"]) for row in found)
    assert states == [
        (b"m0", "archived"), (b"m1", "archived"), (b"m2", "ready"), (b"m3", "ready"),
        (b"m4", "ready"), (b"m9", "scheduled"), (b"o1", "ready"),
    ]  # fmt: skip
    later = next(row for row in found if row["id"] == b"m9")
    assert (later["group"], later["priority"], later["payload"]) == ("g", 3, b"later")
    assert (later["done_at"], later["leased_until"], later["queue"]) == (None, None, "mail")
    assert later["scheduled_time"] > later["created_time"]
    (other,) = rows(made, filters=[EqualTo(("queue",), "other")])
    assert other["id"] == b"o1"
    archived = rows(made, "id", filters=[In(("state",), ("archived", "dead"))])
    assert [row["id"] for row in archived] == [b"m0", b"m1"]
    fired = {row["id"]: row["fired_at"] for row in found}
    assert [fired[each.id.encode()] for each in claimed] == [each.fired_at for each in claimed]
    assert fired[b"m4"] is None
    archive = source(connect=served, insecure="true", table="archive", at=made.at)
    assert [row["id"] for row in rows(archive)] == [b"m0", b"m1"]
    with pytest.raises(Invalid, match="no queue"):
        rows(source(connect=served, insecure="true", table="queue", queue="nothing"))


def test_a_large_table_is_read_in_parts(
    served: str, db: postroom.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {b"%06d" % number for number in range(6000)}
    ordered = sorted(wanted)
    for start in range(0, 6000, 500):
        with db.begin() as tx:
            for key in ordered[start : start + 500]:
                tx.put(key, bytes(2000))
    made = source(connect=served, insecure="true", part_bytes=100_000)
    reader = made.reader(made.schema())
    assert len(reader.partitions()) > 20, "though little of it is flushed"
    assert set(keys(rows(made, "key"))) == wanted
    monkeypatch.setattr(table_reader, "KEYS_PER_PART", 7)
    few = ordered[::100]
    assert keys(rows(made, "key", filters=[In(KEY, tuple(few))])) == few


def test_one_percent_of_the_keys_costs_one_task_and_one_page(
    served: str, db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ahead: Any = Bulk._ahead

    def counting(bulk: Bulk, first: object, following: Any, shape: Any) -> Any:
        asked.append(first)

        def noted(request: object, page: object) -> object:
            further = following(request, page)
            asked.extend([further] if further is not None else [])
            return further

        return ahead(bulk, first, noted, shape)

    monkeypatch.setattr(Bulk, "_ahead", counting)
    ordered = [b"%06d" % number for number in range(60_000)]
    for start in range(0, len(ordered), 2000):
        with db.begin() as tx:
            for key in ordered[start : start + 2000]:
                tx.put(key, bytes(80))
    made = source(connect=served, insecure="true", part_bytes=500_000)
    reader = made.reader(made.schema())
    assert len(reader.partitions()) >= 10, "all of it, though it is fresh"
    few: list[Filter] = [GreaterThanOrEqual(KEY, ordered[30_000]), LessThan(KEY, ordered[30_600])]
    assert list(reader.pushFilters(few)) == few
    assert len(reader.partitions()) == 1
    assert keys(rows(made, "key", filters=few)) == ordered[30_000:30_600]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"connect": "a:1", "path": "b"}, "one of connect"),
        ({"connect": "127.0.0.1:1"}, "tls_ca"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "tabel": "data"}, "tabel"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "table": "nothing"}, "table is one of"),
        ({"connect": "127.0.0.1:1", "insecure": "perhaps"}, "true or false"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "at": "-1"}, "whole number"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "at": "1795491160"}, "no timestamp: give"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "at": "yesterday"}, "or text in ISO 8601"),
        ({"connect": "a:1", "insecure": "true", "at": "2026-01-01"}, "'2026-01-01T00:00:00.00:00'"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "start": "1.5"}, "an aware datetime"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "part_bytes": "0"}, "from 1 on"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "format": "xml"}, "json, msgpack"),
        ({"connect": "127.0.0.1:1", "insecure": "true", "start": "then"}, "start"),
        ({"path": "folder"}, "driver"),
    ],
)
def test_impossible_options_are_refused_with_a_word(options: dict[str, str], said: str) -> None:
    with pytest.raises(Error, match=said):
        source(**options)


def test_a_source_that_no_option_names_a_store_for_says_how_a_table_keeps_its_options() -> None:
    with pytest.raises(Invalid, match="Spark keeps the options of a table"):
        source().schema()


def test_the_schema_of_a_table_keeps_its_options_but_no_token(
    served: str, db: postroom.Database
) -> None:
    db.put(b"a/1", b"x")
    db.put(b"b/1", b"y")
    options = {"connect": served, "insecure": "true", "token": "secret"}
    of_catalog = {f"option.{name}": value for name, value in options.items()}
    schema = source(**options, **of_catalog, provider="postroom", owner="me").schema()
    assert schema["key"].metadata == {"postroom.options": {"connect": served, "insecure": "true"}}
    assert keys(rows(source(), schema=schema)) == [b"a/1", b"b/1"]
    assert keys(rows(source(prefix="b"), schema=schema)) == [b"b/1"]
    assert keys(rows(source(connect=served, insecure="true"), schema=schema)) == [b"a/1", b"b/1"]


def test_impossible_schemas_are_refused(served: str) -> None:
    made = source(connect=served, insecure="true")
    with pytest.raises(Invalid, match="no column 'kye'"):
        made.reader(StructType([StructField("kye", BinaryType())]))
    with pytest.raises(Invalid, match="format=json"):
        made.reader(StructType([StructField("value", LongType())]))
    with pytest.raises(Invalid, match="is bigint"):
        made.reader(StructType([StructField("timestamp", StringType())]))
    with pytest.raises(Invalid, match="table=changes"):
        made.streamReader(made.schema())


def test_permissive_reading_keeps_what_cannot_be_decoded_in_a_column_of_its_own(
    db: postroom.Database, served: str
) -> None:
    db.put(b"a", b"7")
    db.put(b"b", b'"text"')
    db.put(b"c", b"{broken")
    db.put(b"d", b"99999999999999999999")
    schema = StructType([
        StructField("key", BinaryType()), StructField("value", LongType()),
        StructField("_corrupt_record", BinaryType()),
    ])  # fmt: skip
    made = source(connect=served, insecure="true", format="json", mode="permissive")
    assert rows(made, schema=schema) == [
        {"key": b"a", "value": 7, "_corrupt_record": None},
        {"key": b"b", "value": None, "_corrupt_record": b'"text"'},
        {"key": b"c", "value": None, "_corrupt_record": b"{broken"},
        {"key": b"d", "value": None, "_corrupt_record": b"99999999999999999999"},
    ]
    with pytest.raises(Invalid, match="give format="):
        source(connect=served, insecure="true", mode="permissive")
    with pytest.raises(Invalid, match="no column '_corrupt_record'"):
        rows(source(connect=served, insecure="true", format="json"), schema=schema)


@pytest.mark.parametrize("kind", [VariantType(), DayTimeIntervalType(), ArrayType(VariantType())])
def test_a_type_without_a_form_is_refused_before_anything_is_read(
    served: str, kind: DataType
) -> None:
    made = source(connect=served, insecure="true", format="json")
    with pytest.raises(Invalid, match="'value' is of the type"):
        made.reader(StructType([StructField("value", kind)]))


def test_a_type_without_a_form_is_refused_before_a_row_is_written() -> None:
    made = source(connect="127.0.0.1:1", insecure="true", mode="put", format="json")
    took = StructField("took", DayTimeIntervalType())
    with pytest.raises(Invalid, match=r"'took' is of the type .*nothing was done"):
        made.writer(StructType([StructField("key", BinaryType()), took]), overwrite=False)
