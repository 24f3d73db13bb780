"""``postroom pipeline run load``: loads rows of files into a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from postroom.cli.options import AsJson, StoreOptions, pairs
from postroom.cli.output import print_json, print_line
from postroom.cli.spark import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", show_default=False, help="Or folders, patterns.")
]
Name = Annotated[
    str,
    typer.Option(metavar="NAME", show_default=False, help="Name the load; a name is loaded once."),
]
Format = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="Read the files as csv, json or parquet.",
        show_default="by their names",
    ),
]
Mode = Annotated[
    str,
    typer.Option(metavar="MODE", help="Load as put, message, queue, increment, or load (quick)."),
]
Key = Annotated[
    str,
    typer.Option(
        "--key-template",
        metavar="TEMPLATE",
        help="Make keys of TEMPLATE, as user/{id}.",
        show_default="the column key",
    ),
]
Value = Annotated[
    str,
    typer.Option(metavar="WHAT", help="Take as value json or msgpack (all columns), or a column."),
]
Queue = Annotated[
    str, typer.Option(metavar="NAME", help="Enqueue into the queue NAME, with --mode queue.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=SQL", help="Compute by, headers, deliver_at, id, kind and others."
    ),
]
Schema = Annotated[
    str, typer.Option(metavar="DDL", help="Give the schema of the files, as Spark writes it.")
]
ReaderOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Set an option of Spark's reader."),
]
Prefix = Annotated[
    str, typer.Option(metavar="TEXT", help="Load into the empty span of keys that begin with TEXT.")
]
Cuts = Annotated[
    list[str] | None,
    typer.Option("--cut", metavar="KEY", help="Split the empty span at KEY first; repeat it."),
]
MergeSchema = Annotated[
    bool,
    typer.Option("--merge-schema", help="Unite files with different columns; null the missing."),
]
SkipBad = Annotated[
    str, typer.Option(metavar="FOLDER", help="Write rows that cannot be loaded into FOLDER.")
]


@on_spark
def load(
    store: StoreOptions,
    spark: Spark,
    files: Files,
    name: Name,
    format: Format = "",  # noqa: A002 - the name of the option
    mode: Mode = "put",
    key: Key = "",
    value: Value = "",
    queue: Queue = "",
    set: Set = None,  # noqa: A002 - the name of the option
    schema: Schema = "",
    option: ReaderOption = None,
    prefix: Prefix = "",
    skip_bad: SkipBad = "",
    merge_schema: MergeSchema = False,
    cut: Cuts = None,
    as_json: AsJson = False,
) -> None:
    """Load FILEs of CSV, JSON or Parquet: each row becomes a value, a message or an increment.

    Each row counts once. Run a load that was killed again under its name; a complete one does
    nothing.
    """
    columns, options = pairs(set, "--set"), pairs(option, "--option")
    reached = source_options(store)
    with spark.session("load") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        wanted = jobs.LoadOptions(
            name, format, mode, key, value, queue, columns, schema, options, prefix, skip_bad,
            merge_schema, tuple(cut or ()),
        )  # fmt: skip
        done = jobs.load(session, reached, files, wanted, progress=progress)
    if as_json:
        print_json(asdict(done))
    elif done.done_before:
        print_line(f"{done.name} was loaded before: nothing was done")
    else:
        aside = f", {done.bad} written aside in {skip_bad}/{done.name}" if skip_bad else ""
        print_line(f"{done.name}: {counted(done.rows, 'row was', 'rows were')} loaded{aside}")
        if done.dead:
            print_line(
                f"{counted(done.dead, 'row is a dead letter', 'rows are dead letters')}: "
                "'postroom dead-letters' tells why"
            )
