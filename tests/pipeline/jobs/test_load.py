"""Loads: what is asked for is checked; each row counts once, or the load says which one cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.errors import Invalid
from postroom.messaging.ingest import staging
from postroom.messaging.ingest.requests import PublishStaged, StageRows, Winner
from postroom.pipeline.jobs import LoadOptions, load
from postroom.pipeline.jobs.job import JobFailed
from postroom.pipeline.jobs.load import check, failure, fields_of, is_done, sink_options
from postroom.ranges.requests import Put


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (LoadOptions(""), "name"),
        (LoadOptions("a/b"), "slash"),
        (LoadOptions("x" * 600), "name"),
        (LoadOptions("x", mode="delete"), "mode"),
        (LoadOptions("x", format="xml"), "format"),
        (LoadOptions("x", key="a/{}"), "braces"),
        (LoadOptions("x", key="a/{b!r}"), "braces"),
        (LoadOptions("x", key="a/{b"), "template"),
        (LoadOptions("x", columns={"by": "1"}), "can be set"),
        (LoadOptions("x", mode="queue", columns={"mode": "1"}), "can be set"),
        (LoadOptions("x", mode="increment", value="a"), "no value"),
        (LoadOptions("x", prefix="a"), "prefix"),
        (LoadOptions("x", cuts=("a",)), "cuts"),
    ],
)
def test_options_that_cannot_be(options: LoadOptions, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        check(options, ["a.csv"])


def test_options_of_a_load_become_options_of_the_sink() -> None:
    assert check(LoadOptions("x"), ["dir/a.NDJSON"]).format == "json"
    assert check(LoadOptions("x", format="csv"), ["dir/a.txt"]).format == "csv"
    with pytest.raises(Invalid, match="no files"):
        check(LoadOptions("x"), [])
    with pytest.raises(Invalid, match="the name 'dir/people' tells none"):
        check(LoadOptions("x"), ["dir/people"])
    assert fields_of("a/{b}-{c}") == [("a/", "b"), ("-", "c")]
    assert fields_of("{{a}}") == [("{", None), ("a}", None)]
    assert sink_options(LoadOptions("x", mode="queue", queue="q")) == {
        "mode": "queue", "query": "load/x", "batch": "0", "queue": "q",
    }  # fmt: skip
    assert sink_options(LoadOptions("x", mode="load", prefix="p/"))["load"] == "load/x"


def test_a_load_is_known_however_many_names_are(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGED_COUNTED_MAX", 3)  # the most that are told at once
    for number in range(10):
        db.staging.publish(b"load/n%d" % number, 0, bytes(24), [])
    assert len(db.staging.read().queries) == 3
    for number in range(10):
        assert is_done(db, LoadOptions(f"n{number}"))
    for other in ("n", "n10", "n55", "o"):
        assert not is_done(db, LoadOptions(other))


def test_a_failure_of_spark_becomes_one_line() -> None:
    said = "x\n at y\npostroom.errors.Invalid: row 3 of partition 1 cannot be written: z\n  at a"
    assert str(failure(Exception(said))) == "row 3 of partition 1 cannot be written: z"
    assert "no such thing" in str(failure(Exception("no such thing\nmore")))


def test_a_load_that_was_killed_while_it_took_effect_is_finished(db: postroom.Database) -> None:
    rows = [[Put(b"%05d" % (first + n), b"x") for n in range(4000)] for first in (0, 4000, 8000)]
    job, attempt = bytes(24), bytes(16)
    sender = db.sender
    for number, chunk in enumerate(rows):
        write = StageRows(b"load/x", 0, job, b"", attempt, number, packed(chunk))
        sender.run(repeat_one(sender, write))
    options = LoadOptions("x")
    assert not is_done(db, options)
    published = PublishStaged(b"load/x", 0, job, [Winner(attempt, 3)])
    assert sender.run(repeat_one(sender, published)) == [True, True]
    assert len(list(db.scan())) < 12_000
    assert is_done(db, options)
    assert len(list(db.scan())) == 12_000


def test_files_are_loaded_once(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        lines = [f"{number}{n:03d},name {n}," for n in range(300)]
        (folder / f"{number}.csv").write_text("\n".join(["id,name,note", *lines]))
    wanted = LoadOptions("people", format="csv", key="person/{id}", value="json")
    told: list[Any] = []
    done = load(spark, store, [str(folder)], wanted, progress=lambda *now: told.append(now))
    assert (done.rows, done.bad, done.done_before) == (600, 0, False)
    assert told[-1] == ("loading rows", 600, 600)
    value = db.get(b"person/0007")
    assert json.loads(value) == {"id": "0007", "name": "name 7", "note": None}
    db.delete(b"person/0007")
    assert load(spark, store, [str(folder)], wanted).done_before
    assert db.get(b"person/0007") is None
    assert len(list(db.scan())) == 599


def test_a_load_tells_how_many_rows_became_dead_letters(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    db.put(b"text", b"no integer")
    (tmp_path / "a.csv").write_text("key,by\ntext,1\nn,2\n")
    wanted = LoadOptions("counts", mode="increment")
    store = {"connect": served, "insecure": "true"}
    done = load(spark, store, [str(tmp_path / "a.csv")], wanted)
    assert (done.rows, done.dead) == (2, 1)
    assert len(db.dead_letters()) == 1


def test_a_row_that_cannot_be_loaded(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    db.create_queue("work")
    store = {"connect": served, "insecure": "true"}
    rows = [{"id": f"m{n}", "at": 5, "n": n} for n in range(20)]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "work.json").write_text("\n".join([*lines, '{"id": "broken', '{"n": 1}']))
    wanted = LoadOptions(
        "work", mode="queue", queue="work", key="of/{id}", value="msgpack",
        columns={"id": "id", "priority": "int(at)"}, schema="id string, at int, n int",
        skip_bad="",
    )  # fmt: skip
    with pytest.raises(JobFailed, match=r"it is no JSON .*work\.json"):
        load(spark, store, [str(tmp_path / "work.json")], wanted)
    assert db.queue("work").stats().enqueued == 0
    aside = str(tmp_path / "bad")
    again = LoadOptions(**{**wanted.__dict__, "skip_bad": aside, "key": ""})
    done = load(spark, store, [str(tmp_path / "work.json")], again)
    assert (done.rows, done.bad) == (21, 1)
    (bad,) = [
        json.loads(line)
        for path in Path(aside, "work").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert (bad["row"], bad["problem"]) == ('{"id": "broken', "it is no JSON of these columns")
    assert bad["file"].endswith("work.json")
    (first,) = [each for each in db.queue("work").messages("ready", 100) if each.id == "m3"]
    assert first.priority == 5
    assert msgspec.msgpack.decode(first.payload) == rows[3]


def test_parquet_into_an_empty_span_that_is_split_for_it(
    spark: Any, served: str, db: postroom.Database, tmp_path: Path
) -> None:
    store = {"connect": served, "insecure": "true"}
    frame = spark.range(500).selectExpr("concat('p/', lpad(id, 4, '0')) as key", "id")
    frame.write.parquet(str(tmp_path / "in.parquet"))
    cuts = ("p/0100", "p/0300")
    wanted = LoadOptions("span", mode="load", prefix="p/", value="key", cuts=cuts)
    done = load(spark, store, [str(tmp_path / "in.parquet")], wanted)
    assert done.rows == 500
    assert db.get(b"p/0042") == b"p/0042"
    assert [each.start for each in db.ranges()] == [b"", b"p/0100", b"p/0300"]
    assert len(list(db.scan(b"p/", b"p0"))) == 500
    assert load(spark, store, [str(tmp_path / "in.parquet")], wanted).done_before
    sums = LoadOptions("sums", mode="increment", key="sum", columns={"by": "id"})
    assert load(spark, store, [str(tmp_path / "in.parquet")], sums).rows == 500
    assert postroom.integer(db.get(b"sum")) == sum(range(500))
