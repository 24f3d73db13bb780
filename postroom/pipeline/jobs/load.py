"""The job ``load``: files of CSV, JSON or Parquet become values, messages or increments, once.

::

    files ─▶ rows ─┬─ key, value, ... ─▶ sink, as one batch of the query "load/NAME"
                   └─ what cannot be one: fails the load, or is written aside

The sink makes it exactly once: the batch has a name, and the store knows it for good. A load that
runs again under this name, or at the same time, changes nothing more. A bulk load (``mode="load"``)
has the name that bulk loads have.

Columns are found by their names in each file (:mod:`.load_files`). Spark finds faults of a row
while it reads it, with the name of the file: it is no row, or its key or value is null or too long.
The sink refuses all other faults.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it
from pyspark.sql.types import BinaryType, StructField, StructType

from postroom.client import arguments
from postroom.client.codec import resolve
from postroom.client.sync import CoreDatabase
from postroom.errors import Error, Invalid
from postroom.limits import KEY_BYTES_MAX, STAGED_QUERY_BYTES_MAX, VALUE_BYTES_MAX
from postroom.pipeline import tables
from postroom.pipeline.filters import after_prefix
from postroom.pipeline.jobs.job import (
    SILENT,
    JobFailed,
    JobProgress,
    database,
    in_a_line,
    own_error,
)
from postroom.pipeline.jobs.load_files import CORRUPT, FILE, read
from postroom.pipeline.typed_values import encoder

FORMATS: Final = ("csv", "json", "parquet")
MODES: Final = ("put", "message", "queue", "increment", "load")
PACKED: Final = ("json", "msgpack")
QUERY: Final = "load/"
_MEANT: Final[dict[str, frozenset[str]]] = {
    "put": frozenset(),
    "load": frozenset(),
    "increment": frozenset({"by"}),
    "message": frozenset({"headers", "deliver_at"}),
    "queue": frozenset({"headers", "deliver_at", "queue", "kind", "id", "priority", "group"}),
}
"""The columns of the sink that may be set, besides key and value."""
_FIELDS: Final = "_fields"
_BAD: Final = "a row cannot be loaded: "
_ENDS: Final = " [nothing was loaded]"


@dataclass(frozen=True)
class LoadOptions:
    """The options of a load: which rows become what.

    Attributes:
        name: of the load: under it, it happens once.
        format: of the files; empty: by the end of the first one's name.
        mode: one of ``MODES``.
        key: a template with columns in braces, as ``user/{id}``; empty: the column ``key``, and in
            a queue the message's id.
        value: ``json`` or ``msgpack`` (all columns of the row, packed), or the name of a column;
            empty: the column ``value``, or JSON if there is none.
        queue: where messages go, with ``mode="queue"``.
        columns: what else a row says, by the sink's column: an expression of Spark SQL.
        schema: of the files, as Spark writes it (DDL); empty: as they say, and of CSV all text.
        options: of Spark's reader.
        merge_schema: whether files may have different columns: what one lacks is null.
        prefix: of all keys of a bulk load.
        skip_bad: a folder for rows that cannot be loaded; empty: one of them fails the load.
        cuts: keys at which the empty span of a bulk load is split first.
    """

    name: str
    format: str = ""
    mode: str = "put"
    key: str = ""
    value: str = ""
    queue: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    skip_bad: str = ""
    merge_schema: bool = False
    cuts: Sequence[str] = ()


@dataclass(frozen=True)
class LoadResult:
    """The result of a load.

    Attributes:
        name: of the load.
        mode: what became of the rows.
        rows: how many were loaded by this run.
        bad: how many were written aside.
        done_before: the load had happened already, and nothing was done.
        dead: how many of the rows became dead letters: increments of what is no integer, or whose
            sum is too large.
    """

    name: str
    mode: str
    rows: int
    bad: int
    done_before: bool = False
    dead: int = 0


def load(
    spark: SparkSession,
    store: Mapping[str, str],
    files: Sequence[str],
    options: LoadOptions,
    *,
    progress: JobProgress = SILENT,
) -> LoadResult:
    """Load files into a store, each row exactly once, whatever is killed and run again.

    Args:
        spark: a session on which ``register`` was called.
        store: options of the source that say which store.
        files: paths, folders or patterns, as Spark reads them.
        options: what becomes of the rows.
        progress: told how far it is.

    Raises:
        Invalid: the options cannot be.
        JobFailed: a row cannot be loaded: its file and the reason are told. Nothing was loaded,
            but by ``mode="load"``, which goes on when it is run again.
    """
    checked = check(options, files)
    with database(spark, store) as db:
        if is_done(db, checked):
            return LoadResult(checked.name, checked.mode, 0, 0, done_before=True)
        if checked.cuts:
            start = checked.prefix.encode()
            cuts = [cut.encode() for cut in checked.cuts]
            db.staging.prepare_load(start, after_prefix(start), cuts)
    try:
        found = read(
            spark,
            files,
            checked.format,
            checked.options,
            checked.schema,
            merge_schema=checked.merge_schema,
        )
        rows = with_problems(found, checked)
    except PySparkException as error:  # there is no such file, or the schema or a column is no SQL
        raise JobFailed(
            f"{in_a_line(str(error))}; nothing was loaded: mend that, and run it again"
        ) from error
    bad = 0
    progress("loading rows", 0, None)
    if checked.skip_bad:
        bad = _write_aside(rows, f"{checked.skip_bad.rstrip('/')}/{checked.name}")
        rows = rows.where(F.col("problem").isNull())
    counted = Observation()
    wanted = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
    writer = sound_rows(wanted, checked).write.format("postroom").options(**store)
    try:
        writer.options(**sink_options(checked)).mode("append").save()
    except Exception as error:  # Spark raises many types of errors
        raise failure(error) from error
    loaded = int(counted.get["rows"])
    progress("loading rows", loaded, loaded)
    with database(spark, store) as db:
        last = db.staging.last((QUERY + checked.name).encode())
    return LoadResult(
        checked.name, checked.mode, loaded, bad, dead=0 if last is None else last.dead
    )


def check(options: LoadOptions, files: Sequence[str]) -> LoadOptions:
    """Return the checked options, with a format.

    Raises:
        Invalid: they cannot be.
    """
    if not files:
        raise Invalid("there are no files to load")
    if not options.name or len((QUERY + options.name).encode()) > STAGED_QUERY_BYTES_MAX:
        raise Invalid(f"a load has a name of up to {STAGED_QUERY_BYTES_MAX - 5} bytes")
    if "/" in options.name or options.name in {".", ".."}:
        raise Invalid(f"the name of a load has no slash, and is a name: {options.name!r}")
    if options.mode not in MODES:
        raise Invalid(f"mode is one of {', '.join(MODES)}, not {options.mode!r}")
    wrong = sorted(options.columns.keys() - _MEANT[options.mode])
    if wrong:
        allowed = ", ".join(sorted(_MEANT[options.mode])) or "nothing"
        raise Invalid(f"with mode={options.mode} {allowed} can be set, not {wrong[0]!r}")
    if options.mode == "increment" and options.value:
        raise Invalid("an increment has no value: set by=")
    if (options.prefix or options.cuts) and options.mode != "load":
        raise Invalid("a prefix, and cuts, belong to mode=load")
    format_ = options.format or PurePosixPath(files[0]).suffix[1:].lower()
    format_ = "json" if format_ in {"jsonl", "ndjson"} else format_
    if format_ not in FORMATS:
        known = f"formats are {', '.join(FORMATS)}"
        told = f"{format_!r} is none" if format_ else f"the name {files[0]!r} tells none"
        raise Invalid(f"{known}, and {told}; nothing was loaded: give it (--format)")
    fields_of(options.key)
    return replace(options, format=format_)


def fields_of(template: str) -> list[tuple[str, str | None]]:
    """Return the fields of a template: text, and the column after it, if any.

    Raises:
        Invalid: it is none.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise Invalid(f"{template!r} is no template: {error}") from error
    for _, name, how, conversion in fields:
        if name is not None and (not name or how or conversion):
            raise Invalid(f"{template!r} is no template: braces have the name of a column")
    return [(text, name) for text, name, _, _ in fields]


def sink_options(options: LoadOptions) -> dict[str, str]:
    """Return the options of the sink."""
    if options.mode == "load":
        return {"mode": "load", "load": QUERY + options.name, "prefix": options.prefix}
    named = {"mode": options.mode, "query": QUERY + options.name, "batch": "0"}
    return named | ({"queue": options.queue} if options.queue else {})


def is_done(db: CoreDatabase, options: LoadOptions) -> bool:
    """Return whether the load has happened; carry out what is left of it."""
    name = (QUERY + options.name).encode()
    if options.mode == "load":
        start = options.prefix.encode()
        run = b"asks".ljust(16, b"\x00")
        return db.staging.begin_load(name, run, start, after_prefix(start))
    if db.staging.last(name) is None:
        return False
    db.staging.finish(name)
    return True


# --- rows -----------------------------------------------------------------------------------------


def with_problems(rows: DataFrame, options: LoadOptions) -> DataFrame:
    """Return the columns of the sink, and each row's problem (``problem``) and file.

    Raises:
        Invalid: a column is not there.
    """
    names = [name for name in rows.columns if name not in {CORRUPT, FILE}]
    found: dict[str, Column] = {
        name: F.expr(expression) for name, expression in options.columns.items()
    }
    key = key_of(names, options)
    if key is not None:
        is_bytes = isinstance(rows.select(key).schema[0].dataType, BinaryType)
        found["key"] = key if is_bytes else key.cast("string")
    if options.mode != "increment":
        found |= value_of(names, options)
        if _FIELDS in found:  # make sure that all fields can be packed
            for name in names:
                encoder(name, tables.arrow_type(rows.schema[name]), _packed_as(names, options))
    elif "by" in names and "by" not in found:
        found["by"] = F.col("`by`").cast("bigint")
    corrupt = F.col(CORRUPT) if CORRUPT in rows.columns else F.lit(None).cast("string")
    return rows.withColumn("_said", corrupt).select(
        *(column.alias(name) for name, column in found.items()),
        _problem(found, options).alias("problem"),
        F.col(FILE).alias("file"),
        F.coalesce(F.col("_said"), F.to_json(_all(names))).alias("row"),
    )


def _all(names: list[str]) -> Column:
    return F.struct(*(F.col(f"`{name}`") for name in names))


def key_of(names: list[str], options: LoadOptions) -> Column | None:
    """Return the key of a row; ``None``: that of a queue message is its id."""
    template = options.key
    if not template:
        if "key" in names:
            return F.col("key")
        if options.mode == "queue":
            return None
        raise Invalid(
            'the files have no column "key"; nothing was loaded: give a template for the key '
            '(--key-template), as "user/{id}"'
        )
    columns: list[Column] = []
    for text, name in fields_of(template):
        if text:
            columns.append(F.lit(text))
        if name is not None:
            _check_there(name, names)
            columns.append(F.col(f"`{name}`"))
    if len(columns) == 1:
        return columns[0]
    return F.concat(*(each.cast("string") for each in columns))


def value_of(names: list[str], options: LoadOptions) -> dict[str, Column]:
    """Return the column of the value, or of the fields that are packed into it."""
    value = _packed_as(names, options)
    if value in PACKED:
        return {_FIELDS: _all(names)}
    _check_there(value, names)
    return {"value": F.col(f"`{value}`")}


def _packed_as(names: list[str], options: LoadOptions) -> str:
    return options.value or ("value" if "value" in names else "json")


def _check_there(name: str, names: list[str]) -> None:
    if name not in names:
        raise Invalid(
            f"the files have no column {name!r}; nothing was loaded: columns are {', '.join(names)}"
        )


def _problem(found: dict[str, Column], options: LoadOptions) -> Column:
    """Return the fault of a row in words, or null."""
    said = F.when(
        F.col("_said").isNotNull(), F.lit(f"it is no {options.format.upper()} of these columns")
    )
    for name, most in (("key", KEY_BYTES_MAX), ("value", VALUE_BYTES_MAX)):
        column = found.get(name)
        if column is None:
            continue
        if name == "value" or options.mode != "queue":
            said = said.when(column.isNull(), F.lit(f"its {name} is null"))
        size = F.octet_length(column.cast("binary"))
        said = said.when(size > most, F.lit(f"its {name} has more than {most} bytes"))
    return said


def sound_rows(rows: DataFrame, options: LoadOptions) -> DataFrame:
    """Return the rows for the sink: each row is sound, or fails the load."""
    names = [name for name in rows.columns if name not in {"problem", "file", "row"}]
    said = F.concat(
        F.lit(_BAD), F.col("problem"), F.lit(" (in "), F.col("file"), F.lit("): "),
        F.substring(F.col("row"), 1, 200), F.lit(_ENDS),
    )  # fmt: skip
    first, *others = names
    sound = F.when(F.col("problem").isNull(), F.col(first)).otherwise(F.raise_error(said))
    rows = rows.select(sound.alias(first), *others)
    if _FIELDS in names:
        rows = _packed(rows, "msgpack" if options.value == "msgpack" else "json")
    if options.mode == "load":
        rows = rows.repartitionByRange("key").sortWithinPartitions("key")
    return rows


def _packed(rows: DataFrame, format_: str) -> DataFrame:
    """Return the rows with the fields packed into a column ``value``."""
    others = [each for each in rows.schema.fields if each.name != _FIELDS]
    schema = StructType([*others, StructField("value", BinaryType())])
    codec = resolve(format_)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            encode = encoder(_FIELDS, batch.schema.field(_FIELDS).type, format_)
            packed = [
                arguments.value(encode(each), codec, b"")
                for each in batch.column(_FIELDS).to_pylist()
            ]
            kept = [batch.column(each.name) for each in others]
            names = [each.name for each in others]
            yield pa.RecordBatch.from_arrays(
                [*kept, pa.array(packed, pa.binary())], names=[*names, "value"]
            )

    return rows.mapInArrow(pack, schema)


def _write_aside(rows: DataFrame, folder: str) -> int:
    """Write the rows that cannot be loaded into a folder; return how many there are."""
    bad = rows.where(F.col("problem").isNotNull()).select("file", "problem", "row")
    counted = Observation()
    observed = bad.observe(counted, F.count(F.lit(1)).alias("rows"))
    observed.write.mode("overwrite").json(folder)
    return int(counted.get["rows"])


def failure(error: Exception) -> Error:
    """Return the error for a load that Spark has given up."""
    said = str(error)
    start, end = said.find(_BAD), said.find(_ENDS)
    if 0 <= start < end:
        return JobFailed(
            f"{said[start:end]}; nothing was loaded, but by mode=load: mend the file, or have such "
            "rows written aside (skip_bad), and run it again"
        )
    own = own_error(said)
    if own:
        return JobFailed(own)
    return JobFailed(
        f"the load has failed: {in_a_line(said)}; nothing was loaded, but by mode=load: mend that, "
        "and run it again"
    )
