"""``postroom pipeline run export``: writes a store into Parquet files."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import print_json, print_line
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted

Folder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        show_default=False,
        help="The folder of the export, or its URI; all machines of Spark see it.",
    ),
]


@on_spark
def export(store: StoreOptions, spark: Spark, folder: Folder, as_json: AsJson = False) -> None:
    """Write everything that a store holds now into FOLDER, in Parquet files.

    Values, inboxes, outboxes, dead letters, sums and queues, all at one timestamp. An export that
    was killed is begun anew. One that is complete is left unchanged.
    """
    options = source_options(store)
    with spark.session("export") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        done = jobs.export(session, options, folder, progress=progress)
    if as_json:
        print_json({
            "folder": done.folder, "export": done.export, "timestamp": int(done.timestamp),
            "rows": done.rows, "files": done.files, "bytes": done.bytes,
            "done_before": done.done_before,
        })  # fmt: skip
        return
    print_line(*(f"{table} {rows}" for table, rows in done.rows.items() if rows))
    what = "was exported before" if done.done_before else "exported"
    print_line(
        f"{what} as of {done.timestamp.datetime:%Y-%m-%d %H:%M:%S} UTC: "
        f"{counted(done.files, 'file')}, "
        f"{counted(done.bytes, 'byte')} in {done.folder}"
    )
