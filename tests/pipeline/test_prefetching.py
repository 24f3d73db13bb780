"""Small batches of a stream, sent with their plan: what is sent, and when nothing is."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths, read_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from postroom.pipeline import change_stream, connections
from postroom.pipeline.change_stream import ChangeReader
from postroom.pipeline.offsets import position_of
from postroom.ranges.feed import size_of
from postroom.ranges.partitions import ReadPartitions
from postroom.ranges.requests import CommittedChange, Protect, ScanChanges
from tests.client.stores import Store
from tests.pipeline.readers import batches, only, source
from tests.pipeline.test_change_stream import ALL, SCHEMA, Offset, reader


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(connections, "database", lambda _: store.db)
    return store


def requests_of(store: Store) -> list[type]:
    """Return a list of the types of requests from now on."""
    asked: list[type] = []
    send = store.driver.send

    def noted(request: Any, timeout_seconds: float | None = None) -> Any:
        asked.append(type(request))
        return send(request, timeout_seconds)

    store.driver.send = noted  # type: ignore[method-assign]
    return asked


def told(of: Any, start: Offset, end: Offset, schema: StructType) -> tuple[int, io.BytesIO]:
    """Return what PySpark sends to the JVM for a plan: the number of partitions, and the rest."""
    question, answer = io.BytesIO(), io.BytesIO()
    for each in (start, end):
        write_with_length(json.dumps(each).encode(), question)
    question.seek(0)
    runner.partitions_func(of, None, schema, 10_000, question, answer)  # type: ignore[arg-type]
    answer.seek(0)
    parts = read_int(answer)
    for _ in range(parts):
        answer.read(read_int(answer))
    return parts, answer


def test_pyspark_sends_the_rows_of_a_small_batch_with_its_plan(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    for number in range(3):
        store.db.put(b"k%d" % number, b"%d" % number)
    end = of.latestOffset(start, ALL)
    parts, answer = told(of, start, end, SCHEMA)
    assert parts == 1
    assert read_int(answer) == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert read_int(answer) == SpecialLengths.START_ARROW_STREAM
    sent = batches(pa.ipc.open_stream(answer), SCHEMA)
    (part,) = of.partitions(start, end)
    assert sent == batches(pickle.loads(pickle.dumps(of)).read(part), SCHEMA)
    assert [row["key"] for row in sent] == [b"k0", b"k1", b"k2"]


def test_a_batch_asks_the_store_three_times_and_its_plan_never(store: Store) -> None:
    of = reader()
    start = of.initialOffset()
    store.db.put(b"a", b"1")
    end = of.latestOffset(start, ALL)
    store.db.put(b"a", b"2")
    asked = requests_of(store)
    last = of.latestOffset(end, ALL)
    told(of, end, last, SCHEMA)
    asked = [each for each in asked if each.__name__ != "Unprotect"]
    assert asked == [Protect, ScanChanges, ReadPartitions]


def test_pyspark_knows_what_the_reader_can(store: Store) -> None:
    answer = io.BytesIO()
    runner.check_support_func(reader(), answer)
    answer.seek(0)
    both = runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert read_int(answer) == both
    store.db.put(b"a", b"1")
    of = reader(max_rows=5)
    assert of.getDefaultReadLimit() == ReadMaxRows(5)
    start = of.initialOffset()
    runner.prepare_for_trigger_available_now_func(of, io.BytesIO())
    store.db.put(b"a", b"later")
    assert of.latestOffset(start, ALL) == start  # later changes do not belong to it


def test_the_rows_of_other_batches_are_not_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = reader()
    start = of.initialOffset()
    store.db.put(b"a", b"1")
    end = of.latestOffset(start, ALL)
    store.db.put(b"a", b"2")
    assert of.prefetched(start, end) is not None
    assert pickle.loads(pickle.dumps(of)).prefetched(start, end) is None  # nor by a restart
    assert reader().prefetched(start, end) is None
    assert of.prefetched(start, start) is None  # Spark asks so after a restart
    later = of.latestOffset(end, ALL)
    assert of.prefetched(start, end) is None
    assert of.prefetched(start, later) is None
    assert of.prefetched(end, later) is not None
    monkeypatch.setattr(change_stream, "PREFETCHED_BYTES_MAX", 20)
    again = reader()
    large = again.latestOffset(end, ALL)
    assert position_of(large) == position_of(later)
    assert again.prefetched(end, large) is None  # it is too large


def test_small_batches_of_a_long_backlog_are_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer holds more than a small batch: what fits is kept of it, by whole commits."""
    of = reader(max_rows=3)
    limit, start = of.getDefaultReadLimit(), of.initialOffset()
    for number in range(30):
        with store.db.begin() as tx:
            for name in (b"a", b"b"):
                tx.put(name, b"%d" % number)
    size = size_of(CommittedChange(1, b"a", b"1"))
    monkeypatch.setattr(change_stream, "PREFETCHED_BYTES_MAX", 5 * size)
    found: list[bytes] = []
    for _ in range(30):
        end = of.latestOffset(start, limit)
        sent = of.prefetched(start, end)
        assert sent is not None
        found += [row["value"] for row in batches(sent, SCHEMA)]
        start = end
    assert found == [b"%d" % number for number in range(30) for _ in "ab"]
    for number in range(3):
        with store.db.begin() as tx:
            for name in b"abc":
                tx.put(bytes([name]), b"%d" % number)
    end = of.latestOffset(start, ALL)
    assert of.prefetched(start, end) is None  # its second commit is there in part only
    (part,) = of.partitions(start, end)
    assert len(batches(of.read(part), SCHEMA)) == 9


@pytest.mark.parametrize(
    ("schema", "options", "sent"),
    [
        (only(SCHEMA, "timestamp", "key"), {}, True),
        (StructType([StructField("key", StringType())]), {}, True),
        (StructType([StructField("key", BinaryType(), True, {"a": "b"})]), {}, False),
        (StructType([StructField("key", BinaryType(), False)]), {}, False),
        (only(SCHEMA, "value"), {"format": "msgpack"}, False),
    ],
)
def test_columns_that_the_jvm_would_not_take_are_read_in_tasks(
    store: Store, schema: StructType, options: dict[str, str], sent: bool
) -> None:
    """The JVM wants to find exactly the schema of the stream in what Arrow says of the rows."""
    made = source(connect="127.0.0.1:1", insecure="true", table="changes", at=1, **options)
    of = made.streamReader(schema)
    start = of.initialOffset()
    store.db.put(b"a", b"\x01")
    end = of.latestOffset(start, ALL)
    answer = told(of, start, end, schema)[1]
    found = read_int(answer) != runner.PREFETCHED_RECORDS_NOT_FOUND
    assert found == sent


def test_without_the_wrapper_of_pyspark_all_is_read_in_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_stream, "_Wrapper", None)
    assert type(reader()) is ChangeReader
