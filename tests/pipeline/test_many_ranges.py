"""The batch reader over many ranges: each row once, whatever splits between plan and tasks."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, In

import postroom
from postroom.messaging.handover.sending import SendingService
from postroom.pipeline.driver_service import DriverService
from postroom.pipeline.tables import SCHEMAS
from postroom.server.loopback import LoopbackServer
from tests.client.test_bulk_of_several_ranges import CUTS, KEYS, fill
from tests.pipeline.readers import batches, only, rows, source

MORE_CUTS = (b"a", b"b", b"m\x00\x00", b"m\x01", b"y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that has something in each table, at each key."""
    made = tmp_path_factory.mktemp("ranges") / "store"
    with postroom.open(str(made)) as db:
        fill(db)
        db.create_queue("kept", archive=True)
        for key in KEYS:
            with db.begin() as tx:
                tx.enqueue("kept", b"work", key=key)
        db.queue("kept").acknowledge(list(db.queue("kept").claim(5)))
        db.queue("q").acknowledge(list(db.queue("q").claim(2)))
        db.queue("q").reject(list(db.queue("q").claim(2)), dead=True)
    return made


class Served:
    """A copy of the store, which is served, and the line to a driver."""

    def __init__(self, folder: Path, copy: Path) -> None:
        shutil.copytree(folder, copy)
        self.server = LoopbackServer(copy)
        self.service = DriverService(lambda: False, time.monotonic)
        self.db = postroom.connect(self.server.address, insecure=True)

    def source(self, table: str, **options: object) -> Any:
        store = {"connect": self.server.address, "insecure": "true"}
        return source(self.service.line, **store, table=table, **options)

    def split(self, *cuts: bytes) -> None:
        for key in cuts:
            self.db.split(key)

    def close(self) -> None:
        self.db.close()
        self.service.close()
        self.server.close()


@pytest.fixture
def served(folder: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(folder, tmp_path / "copy")
    yield made
    made.close()


def in_order(found: list[dict[str, Any]], table: str) -> list[tuple[Any, ...]]:
    """Return rows in order, without what a split changes."""
    moved = {"range"} if table in {"changes", "beside"} else set()
    return sorted(
        (tuple((name, value) for name, value in row.items() if name not in moved) for row in found),
        key=repr,
    )


def test_tables_of_many_ranges_have_the_rows_of_one_range(served: Served) -> None:
    compared = sorted(set(SCHEMAS) - {"counters"})  # each range has its own counters
    one = {table: in_order(rows(served.source(table)), table) for table in compared}
    served.service.close()
    served.service = DriverService(lambda: False, time.monotonic)
    served.split(*CUTS)
    many = {table: in_order(rows(served.source(table)), table) for table in compared}
    for table in compared:
        expected = one[table]
        if table == "places":  # it tells the range in which a message lies
            expected, many[table] = _without(expected, "range"), _without(many[table], "range")
        assert many[table] == expected, table
        assert expected, table


def _without(found: list[tuple[Any, ...]], name: str) -> list[Any]:
    return sorted((tuple(each for each in row if each[0] != name) for row in found), key=repr)


@pytest.mark.parametrize("table", sorted(SCHEMAS))
def test_a_task_whose_range_has_split_since_its_plan_reads_each_row_once(
    served: Served, table: str
) -> None:
    """A task that is repeated reads the same, though others write meanwhile."""
    served.split(*CUTS)
    made = served.source(table, part_bytes=1)
    schema = only(made.schema())
    reader = made.reader(schema)
    partitions = reader.partitions()
    expected = [row for each in partitions for row in batches(reader.read(each), schema)]
    for key in MORE_CUTS:
        served.split(key)
        served.db.put(key, b"later")
        with served.db.begin() as tx:
            tx.enqueue_message(key, b"later")
            tx.enqueue("q", b"later", key=key)
    task = pickle.loads(pickle.dumps(reader))
    found = [row for each in partitions for row in batches(task.read(each), schema)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert expected or table == "archive"


def test_a_task_reads_small_ranges_together_and_a_filter_chooses_ranges(served: Served) -> None:
    served.split(*CUTS)
    made = served.source("data")
    reader = made.reader(made.schema())
    (planned,) = (each.value for each in reader.partitions())
    ranges = served.db.ranges()
    assert planned.range_ids == tuple(each.id for each in ranges)
    assert planned.spans == tuple((each.start, each.end) for each in ranges)
    one = served.source("data")
    assert [row["key"] for row in rows(one, filters=[EqualTo(("key",), b"m")])] == [b"m"]
    few = [In(("key",), (b"a", b"m\x00", b"x"))]
    reader = one.reader(one.schema())
    reader.pushFilters(few)
    apart: Any = [each.value for each in reader.partitions()]
    assert len({each.range_ids for each in apart}) == len(apart) == 3
    assert [row["key"] for row in rows(one, filters=few)] == [b"a", b"m\x00", b"x"]


def test_small_ranges_of_a_queue_are_read_by_one_task(served: Served) -> None:
    served.split(*CUTS)
    made = served.source("queue", queue="q")
    reader = made.reader(made.schema())
    planned: Any = [each.value for each in reader.partitions()]
    assert [each.state for each in planned] == ["", "done", "archived", "dead"]
    spans = tuple((each.start, each.end) for each in served.db.ranges())
    assert {each.spans for each in planned} == {spans}
    apart = served.source("queue", queue="q", part_bytes=1)
    assert len(apart.reader(apart.schema()).partitions()) > 4


def test_a_message_on_its_way_to_another_range_is_no_row_of_two_tables(served: Served) -> None:
    served.split(b"m")
    for number in range(1, 21):
        with served.db.begin() as tx:
            tx.put(b"a", b"1")
            tx.enqueue_message(b"n", b"over")
        outbox = served.source("outbox")
        waiting = [row["message"] for row in rows(outbox)]
        arrived = [row["value"] for row in rows(served.source("inbox", at=outbox.at))]
        assert (waiting + arrived).count(b"over") == number


def test_a_change_of_a_queue_on_its_way_is_a_request_of_the_outbox(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SendingService, "send_batches", lambda _: 3600.0)
    served.split(b"m")
    with served.db.begin() as tx:
        tx.put(b"a", b"1")
        tx.enqueue("q", b"payload", key=b"n")
    (row,) = [
        row for row in rows(served.source("outbox")) if row["key"] == b"n" and not row["message"]
    ]
    assert row["message"] is None
    told = json.loads(row["request"])
    assert (told["request"], told["queue"]) == ("PlaceMessage", "q")
    assert told["message"]["payload"] == b"payload".hex()
