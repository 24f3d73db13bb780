"""``postroom pipeline run report``: how messages fare, as a table and a page."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.console import Console

from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import print_json
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted

_To = Annotated[
    str,
    typer.Option(
        "--to", metavar="FOLDER", help="Write the report into FOLDER: a path, or a URI of Spark's."
    ),
]
_Archive = Annotated[
    str | None,
    typer.Option("--archive-folder", metavar="FOLDER", help="Include this archive in the report."),
]
_Hours = Annotated[
    float | None,
    typer.Option(
        "--hours",
        metavar="N",
        min=0,
        help="Report messages that ended in the last N hours, or live.",
    ),
]
_Separator = Annotated[
    str, typer.Option("--separator", metavar="TEXT", help="Group keys by their text before TEXT.")
]
_Title = Annotated[
    str, typer.Option("--title", metavar="TEXT", help="Give the page the title TEXT.")
]


@on_spark
def report(
    store: StoreOptions,
    spark: Spark,
    to: _To,
    archive: _Archive = None,
    hours: _Hours = None,
    separator: _Separator = "/",
    title: _Title = "",
    as_json: AsJson = False,
) -> None:
    """Report on messages and queues in a Parquet table and a page for a browser.

    They tell how long messages take, how many come and go, what waits and what is dead.
    """
    options = source_options(store)
    with spark.session("report") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline.jobs import report as job  # noqa: PLC0415 - needs the extra

        result = job(
            session, options, to, archive=archive, hours=hours, separator=separator, title=title,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    Console().print(
        f"{counted(result.done, 'message')} done, {result.waiting:,} waiting or at work, "
        f"{result.dead:,} "
        f"dead: {result.page}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
