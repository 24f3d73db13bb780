"""The columns of files are found by their names, and CSV is read as Python and Excel write it."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import Invalid
from postroom.pipeline.jobs import LoadOptions, load
from postroom.pipeline.jobs.job import JobFailed
from postroom.pipeline.jobs.load_files import read

Load = Callable[..., Any]


@pytest.fixture
def loaded(spark: Any, served: str, db: postroom.Database) -> Load:
    """Return a function that loads files and returns the values by their keys."""

    def run(files: Sequence[Path], **options: Any) -> dict[bytes, Any]:
        name = options.pop("name", "x")
        wanted = LoadOptions(name, key=options.pop("key", "{id}"), value="json", **options)
        load(spark, {"connect": served, "insecure": "true"}, [str(each) for each in files], wanted)
        return {key: json.loads(value) for key, value in db.scan()}

    return run


def test_columns_of_csv_are_found_by_name_in_each_file(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,one\n")
    (tmp_path / "b.csv").write_text("name,id\ntwo,2\n")
    expected = {b"1": {"id": "1", "name": "one"}, b"2": {"id": "2", "name": "two"}}
    assert loaded([tmp_path / "a.csv", tmp_path / "b.csv"]) == expected


def test_a_schema_in_another_order_counts_by_name(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,one\n")
    found = loaded([tmp_path / "a.csv"], schema="name string, id int")
    assert found == {b"1": {"id": 1, "name": "one"}}


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_file_with_another_column_is_refused_by_its_name(
    spark: Any, loaded: Load, tmp_path: Path, db: postroom.Database, format_: str
) -> None:
    first, second = tmp_path / f"a.{format_}", tmp_path / f"b.{format_}"
    for path, query in ((first, "1 as id, 'x' as name"), (second, "2 as id, 'y' as extra")):
        frame = spark.sql(f"select {query}").coalesce(1)
        frame.write.format(format_).option("header", "true").save(str(path))
    with pytest.raises(Invalid, match=rf"b\.{format_}.* 'extra'.*nothing was loaded"):
        loaded([first, second], format=format_)
    assert list(db.scan()) == []
    found = loaded([first, second], format=format_, merge_schema=True)
    assert {key: (row["name"], row["extra"]) for key, row in found.items()} == {
        b"1": ("x", None), b"2": (None, "y"),
    }  # fmt: skip


def test_a_file_without_a_column_is_refused_by_its_name(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,one\n")
    (tmp_path / "b.csv").write_text("id\n2\n")
    with pytest.raises(Invalid, match=r"b\.csv.*no column 'name'"):
        loaded([tmp_path], format="csv")
    with pytest.raises(Invalid, match=r"b\.csv.*no column 'name'"):
        loaded([tmp_path], schema="id string, name string", format="csv")


def test_a_field_of_json_that_the_schema_lacks_is_refused_by_the_name_of_its_file(
    loaded: Load, tmp_path: Path, db: postroom.Database
) -> None:
    (tmp_path / "a.json").write_text('{"id": "1"}\n{"id": "2", "name": "two"}\n')
    (tmp_path / "b.json").write_text('{"id": "3", "extra": "x"}\n')
    with pytest.raises(Invalid, match=r"b\.json.* 'extra', and the schema has none; nothing was"):
        loaded([tmp_path], format="json", schema="id string, name string")
    assert list(db.scan()) == []
    found = loaded([tmp_path], format="json", schema="id string, name string", merge_schema=True)
    assert found == {
        b"1": {"id": "1", "name": None, "extra": None},
        b"2": {"id": "2", "name": "two", "extra": None},
        b"3": {"id": "3", "name": None, "extra": "x"},
    }


def test_a_column_of_another_type_in_parquet_is_refused_by_the_name_of_its_file(
    spark: Any, loaded: Load, tmp_path: Path
) -> None:
    spark.sql("select 1 as id").coalesce(1).write.parquet(str(tmp_path / "a.parquet"))
    spark.sql("select 'x' as id").coalesce(1).write.parquet(str(tmp_path / "b.parquet"))
    with pytest.raises(Invalid, match=r"b\.parquet.*'id' as string.*as int"):
        loaded([tmp_path / "a.parquet", tmp_path / "b.parquet"])


def test_csv_as_python_and_excel_write_it_is_read_as_it_was_written(
    loaded: Load, tmp_path: Path
) -> None:
    texts = ['say "hi"', "two\nlines", "two\r\nlines", "a,b", " padded ", "back\\slash", '"']
    rows = [(f"{number:02}", text) for number, text in enumerate(texts)]
    for encoding, line_end in (("utf-8", "\n"), ("utf-8-sig", "\r\n")):
        path = tmp_path / f"{encoding}.csv"
        with path.open("w", encoding=encoding, newline="") as file:
            writer = csv.writer(file, lineterminator=line_end)
            writer.writerow(("id", "text"))
            writer.writerows(rows)
        found = loaded([path], key=f"{encoding}/{{id}}", name=encoding)
        mine = {key: row for key, row in found.items() if key.startswith(f"{encoding}/".encode())}
        assert [(row["id"], row["text"]) for _, row in sorted(mine.items())] == rows


def test_another_dialect_is_chosen_by_options(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;text\n1;"say \\"hi\\""\n')
    found = loaded([tmp_path / "a.csv"], options={"sep": ";", "escape": "\\"})
    assert found == {b"1": {"id": "1", "text": 'say "hi"'}}


@pytest.mark.parametrize("multi_line", ["true", "false"])
def test_csv_with_a_quote_that_is_not_closed_is_refused_by_the_name_of_its_file(
    loaded: Load, tmp_path: Path, db: postroom.Database, multi_line: str
) -> None:
    path = tmp_path / "open.csv"
    path.write_text('id,text\n1,"open\n2,two\n3,three\n')
    with pytest.raises(Invalid, match=r"open\.csv has a quote that is not closed.*nothing was"):
        loaded([path], options={"multiLine": multi_line})
    assert list(db.scan()) == []
    found = loaded([path], options={"quote": "", "multiLine": multi_line})
    assert [row["text"] for row in found.values()] == ['"open', "two", "three"]


def test_a_separator_may_be_written_as_an_escape(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\ttext\n1\tone\n")
    found = loaded([tmp_path / "a.csv"], options={"sep": "\\t"})
    assert found == {b"1": {"id": "1", "text": "one"}}


def test_a_file_that_is_no_parquet_is_refused_by_its_name(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("nonsense")
    with pytest.raises(Invalid, match=r"bad\.parquet cannot be read as parquet: Spark: .*nothing"):
        loaded([tmp_path / "bad.parquet"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("b.csv", {}),
        ("a.csv", {"schema": "id string,,"}),
        ("a.csv", {"mode": "message", "columns": {"deliver_at": "1 +"}}),
    ],
    ids=["file", "schema", "column"],
)
def test_an_argument_that_spark_refuses_says_that_nothing_was_loaded(
    loaded: Load, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,one\n")
    with pytest.raises(JobFailed, match=r"^Spark: \[.*; nothing was loaded: mend that"):
        loaded([tmp_path / name], **options)


def test_csv_without_a_header_has_columns_by_place(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,one\n")
    found = loaded([tmp_path / "a.csv"], key="{_c0}", options={"header": "false"})
    assert found == {b"1": {"_c0": "1", "_c1": "one"}}


@pytest.mark.parametrize(
    ("header", "why"),
    [("id,id", "two columns 'id'"), ("id,", "without a name"), ('id,"na', "goes on in its second")],
)
def test_a_header_that_cannot_be_is_refused_by_the_name_of_its_file(
    loaded: Load, tmp_path: Path, header: str, why: str
) -> None:
    (tmp_path / "bad.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(Invalid, match=rf"bad\.csv.*{why}|{why}"):
        loaded([tmp_path / "bad.csv"])


def test_typed_columns_become_typed_json(spark: Any, loaded: Load, tmp_path: Path) -> None:
    spark.sql(
        "select 'k' as id, map('a', 1) as counts, double('NaN') as number, "
        "timestamp_ltz'2013-01-31 12:00:00 UTC' as at, date'2013-01-31' as day, "
        "cast(12.3 as decimal(10,2)) as price, binary('x') as raw"
    ).coalesce(1).write.parquet(str(tmp_path / "a.parquet"))
    (row,) = loaded([tmp_path / "a.parquet"]).values()
    assert row == {
        "id": "k", "counts": {"a": 1}, "number": "NaN", "at": "2013-01-31T12:00:00+00:00",
        "day": "2013-01-31", "price": "12.30", "raw": "eA==",
    }  # fmt: skip
    assert Decimal(row["price"]) == Decimal("12.30")
    assert datetime.date.fromisoformat(row["day"]).year == 2013


def test_a_type_without_a_form_is_refused_before_a_row_is_read(
    spark: Any, loaded: Load, tmp_path: Path
) -> None:
    frame = spark.sql("select 'k' as id, interval '1' day as took").coalesce(1)
    frame.write.parquet(str(tmp_path / "a.parquet"))
    with pytest.raises(Invalid, match=r"'took'.*duration.*nothing was done"):
        loaded([tmp_path / "a.parquet"])


def test_a_hundred_files_are_read_by_name(spark: Any, tmp_path: Path) -> None:
    for number in range(100):
        names = ("id", "name") if number % 2 else ("name", "id")
        row = {"id": str(number), "name": f"n{number}"}
        lines = [",".join(names), ",".join(row[name] for name in names)]
        (tmp_path / f"{number:03}.csv").write_text("\n".join(lines))
    rows = read(spark, [str(tmp_path)], "csv", {}, "", merge_schema=False).collect()
    assert {(row.id, row.name) for row in rows} == {(str(n), f"n{n}") for n in range(100)}
