r"""The rows of the files of a load: columns are found by their names, in each file for itself.

::

    files ─▶ their columns ─┬─ the same names in each ─▶ rows, with the file of each
                            └─ others ─▶ refused by the file's name, or united (merge_schema)

CSV is that of RFC 4180, as Python and Excel write it: a quote inside quotes is doubled, and quoted
text may have newlines. Spark therefore reads a file of CSV in one task. Options of Spark's reader
choose another dialect: ``escape=\``, ``sep=;``, ``multiLine=false`` for large files without
newlines in text, ``header=false`` for files whose columns are named by their indexes (``_c0``,
``_c1``, ...).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it
from pyspark.sql.types import StringType, StructField, StructType

from postroom.errors import Invalid
from postroom.pipeline.jobs.job import in_a_line

CORRUPT: Final = "_corrupt_record"
"""The column of lines that are no rows."""
FILE: Final = "_file"
"""The column of the file that a row is from."""

_RFC_4180: Final = {"header": "true", "escape": '"', "multiLine": "true"}
_SCHEMAS_AT_ONCE: Final = 8
_BYTE_ORDER_MARK: Final = "\ufeff"

Columns = dict[str, StructField]
"""The columns of a file, by their names, in its order."""


def read(
    spark: SparkSession,
    files: Sequence[str],
    format_: str,
    options: Mapping[str, str],
    schema: str,
    *,
    merge_schema: bool,
) -> DataFrame:
    """Return the rows of files, with the columns ``CORRUPT`` (not of Parquet) and ``FILE``.

    Args:
        spark: the session.
        files: paths, folders or patterns, as Spark reads them.
        format_: ``csv``, ``json`` or ``parquet``.
        options: of Spark's reader.
        schema: as Spark writes it (DDL); empty: as the files say.
        merge_schema: whether files may have different columns; what one lacks is null in its rows.

    Raises:
        Invalid: a file has other columns than the others, or than the schema; it is named.
    """
    reader = _Reader(spark, format_, options, merge_schema=merge_schema)
    wanted = None if not schema else _columns(StructType.fromDDL(schema))
    if format_ == "json":
        return reader.json(files, wanted)
    if format_ == "csv" and options.get("header", "true").lower() != "true":
        reader.check_quotes(files)
        return reader.rows(files, wanted or reader.columns(files))
    found = reader.columns_of_files(files)
    if format_ == "csv":
        reader.check_quotes(files)
    wanted = reader.united(found, wanted)
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, columns in found.items():
        groups.setdefault((reader.line_ends.get(path, ""), *columns), []).append(path)
    frames = [
        reader.rows(paths, {name: wanted[name] for name in names}, line_end)
        for (line_end, *names), paths in groups.items()
    ]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return rows.select(
        *(F.col(f"`{name}`") for name in wanted),
        *(name for name in (CORRUPT, FILE) if name in rows.columns),
    )


class _Reader:
    """The reader of files of one format.

    Args:
        spark, format_, options, merge_schema: as :func:`read` takes them.

    Attributes:
        line_ends: of files of CSV, as far as they are known. Spark must be told them: else it
            changes those inside quotes.
    """

    def __init__(
        self, spark: SparkSession, format_: str, options: Mapping[str, str], *, merge_schema: bool
    ) -> None:
        self._spark = spark
        self._format = format_
        self._merge_schema = merge_schema
        self.line_ends: dict[str, str] = {}
        self._options = {**(_RFC_4180 if format_ == "csv" else {}), **options}
        self._quote = self._options.get("quote", '"')
        separator = self._options.get("sep", self._options.get("delimiter", ","))
        self._separator = separator.replace("\\t", "\t")  # written as Spark reads it
        if not self._separator:
            raise Invalid("sep is empty; nothing was loaded: it separates columns")

    def _reader(self) -> DataFrameReader:
        return self._spark.read.format(self._format).options(**self._options)

    def rows(self, files: Sequence[str], columns: Columns, line_end: str = "") -> DataFrame:
        """Return the rows of files that have these columns, in this order."""
        schema = StructType(list(columns.values()))
        reader = self._reader()
        if self._format != "parquet":
            schema = StructType([*schema.fields, StructField(CORRUPT, StringType())])
            reader = reader.options(
                mode="PERMISSIVE", columnNameOfCorruptRecord=CORRUPT, columnPruning="false"
            )
        if line_end:
            reader = reader.option("lineSep", line_end)
        rows = reader.schema(schema).load(list(files))
        return rows.withColumn(FILE, F.col("_metadata.file_path"))

    def json(self, files: Sequence[str], wanted: Columns | None) -> DataFrame:
        """Return the rows of JSON, whose fields have names in each row and may be missing."""
        found = self.columns(files)
        if wanted is not None and found.keys() - wanted.keys():
            wanted = self.united(self.columns_of_files(files), wanted)
        return self.rows(files, wanted or found)

    # --- which columns there are

    def columns(self, files: Sequence[str]) -> Columns:
        """Return the columns that Spark finds in all files together."""
        return _columns(self._reader().load(list(files)).schema)

    def columns_of_files(self, files: Sequence[str]) -> dict[str, Columns]:
        """Return the columns of each file."""
        if self._format == "csv" and self._options.get("inferSchema", "false").lower() != "true":
            return {path: _texts(names) for path, names in self._headers(files).items()}
        with ThreadPoolExecutor(_SCHEMAS_AT_ONCE) as pool:
            paths = self._paths(files)
            schemas = pool.map(self._schema, paths)
            return dict(zip(paths, map(_columns, schemas), strict=True))

    def _schema(self, path: str) -> StructType:
        try:
            return self._reader().load(path).schema
        except (PySparkException, Py4JError) as error:
            raise Invalid(
                f"{path} cannot be read as {self._format}: {in_a_line(str(error))}; nothing was "
                "loaded: mend the file, or leave it out"
            ) from error

    def _paths(self, files: Sequence[str]) -> list[str]:
        listed = self._spark.read.format("binaryFile").load(list(files)).select("path")
        return sorted(row.path for row in listed.collect())

    def _headers(self, files: Sequence[str]) -> dict[str, list[str]]:
        """Return the names in the first line of each file of CSV."""
        lines = self._lines(files).select(
            "value",
            F.col("_metadata.file_path").alias("path"),
            F.col("_metadata.file_block_start").alias("start"),
            F.monotonically_increasing_id().alias("place"),
        ).where("start = 0")  # fmt: skip
        first = lines.groupBy("path").agg(F.min_by("value", "place").alias("header"))
        headers = {row.path: row.header for row in first.collect()}
        if "lineSep" not in self._options:
            self.line_ends = {
                path: "\r\n" if header.endswith("\r") else "\n" for path, header in headers.items()
            }
        return {path: self._names(path, headers[path].rstrip("\r")) for path in sorted(headers)}

    def _lines(self, files: Sequence[str]) -> DataFrame:
        kept = ("encoding", "pathGlobFilter", "recursiveFileLookup")
        options = {name: value for name, value in self._options.items() if name in kept}
        return self._spark.read.options(**options).text(list(files), lineSep="\n")

    def check_quotes(self, files: Sequence[str]) -> None:
        """Make sure that each quote in files of CSV is closed.

        Spark takes all that follows an open quote, up to the end of the file, for one value.

        Raises:
            Invalid: one is not.
        """
        if not self._quote or self._options["escape"] != self._quote:
            return  # a quote may stand alone, after another sign
        without = F.replace(F.col("value"), F.lit(self._quote), F.lit(""))
        quotes = (F.length("value") - F.length(without)).alias("quotes")
        counted = self._lines(files).select(F.col("_metadata.file_path").alias("path"), quotes)
        if self._options["multiLine"].lower() != "true":  # quotes are closed in each line
            counted = counted.withColumn("quotes", F.col("quotes") % 2)
            whole = F.max("quotes")
        else:
            whole = F.sum("quotes") % 2
        odd = counted.groupBy("path").agg(whole.alias("odd")).where("odd = 1").select("path")
        for row in odd.orderBy("path").take(1):
            raise Invalid(
                f"{row.path} has a quote that is not closed, and rows after it would be lost; "
                "nothing was loaded: close it, or double quotes that are text and put the value "
                "into quotes; if quotes mean nothing in these files, give the option quote= (empty)"
            )

    def _names(self, path: str, header: str) -> list[str]:
        if self._quote and header.count(self._quote) % 2:
            raise Invalid(f"the header of {path} goes on in its second line; nothing was loaded")
        line = header.removeprefix(_BYTE_ORDER_MARK)
        if not self._quote or len(self._separator) > 1:
            names = [name.strip(self._quote or None) for name in line.split(self._separator)]
        else:
            (names,) = csv.reader([line], delimiter=self._separator, quotechar=self._quote)
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled or "" in names:
            which = f"two columns {doubled[0]!r}" if doubled else "a column without a name"
            raise Invalid(f"{path} has {which}; nothing was loaded: mend its header")
        return names

    # --- fitting columns

    def united(self, found: Mapping[str, Columns], wanted: Columns | None) -> Columns:
        """Return all columns, with their types.

        Raises:
            Invalid: a file has others, or of another type, and they are not to be united.
        """
        if not found:
            raise Invalid("there are no files there, or they are empty; nothing was loaded")
        first = next(iter(found))
        united = dict(wanted or found[first])
        expected = "the schema" if wanted else first
        for path, columns in found.items():
            for name, column in columns.items():
                if name not in united and not self._merge_schema:
                    raise _misfit(path, f"has a column {name!r}, and {expected} has none")
                known = united.setdefault(name, column)
                if wanted is None and known.dataType != column.dataType:
                    kinds = known.dataType.simpleString(), column.dataType.simpleString()
                    raise Invalid(
                        f"the file {path} does not fit: it has {name!r} as {kinds[1]}, and {first} "
                        f"as {kinds[0]}; nothing was loaded: load it by itself, or give a schema "
                        "(--schema) in which the column has a type that contains both"
                    )
        if not self._merge_schema and self._format != "json":
            self._check_whole(found, united, expected)
        return united

    def _check_whole(self, found: Mapping[str, Columns], united: Columns, expected: str) -> None:
        for path, columns in found.items():
            missing = [name for name in united if name not in columns]
            if missing:
                raise _misfit(path, f"has no column {missing[0]!r}, and {expected} has one")


def _misfit(path: str, what: str) -> Invalid:
    return Invalid(
        f"the file {path} does not fit: it {what}; nothing was loaded: load it by itself, or give "
        "merge_schema (--merge-schema), which makes missing columns null"
    )


def _columns(schema: StructType) -> Columns:
    return {field.name: field for field in schema.fields if field.name != CORRUPT}


def _texts(names: Sequence[str]) -> Columns:
    return {name: StructField(name, StringType()) for name in names}
