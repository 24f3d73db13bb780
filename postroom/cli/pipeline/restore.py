"""``postroom pipeline run restore``: reads an export back into a store."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import print_json, print_line
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options

Folder = Annotated[
    str,
    typer.Argument(metavar="[FOLDER]", show_default=False, help="The export's folder, or its URI."),
]
Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon", help="Give up a restore that is not complete, and leave the store empty."
    ),
]


@on_spark
def restore(
    store: StoreOptions,
    spark: Spark,
    folder: Folder = "",
    abandon: Abandon = False,
    as_json: AsJson = False,
) -> None:
    """Restore the export in FOLDER into an empty store, or into a new folder (--path).

    The store serves no client until the restore is complete. A message that was delivered is not
    delivered again. A restore that was killed goes on when it is run again.
    """
    if bool(folder) == abandon:
        raise typer.BadParameter("give FOLDER, or --abandon", param_hint="FOLDER")
    options = source_options(store) if store.path is None else {"path": str(store.path)}
    with spark.session("restore") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        if abandon:
            jobs.abandon_restore(session, options)
            print_line("abandoned: the store is empty, and serves clients")
            return
        done = jobs.restore(session, options, folder, progress=progress)
    if as_json:
        print_json({
            "export": done.export, "timestamp": int(done.timestamp), "rows": done.rows,
            "files": done.files, "files_before": done.files_before,
            "done_before": done.done_before,
        })  # fmt: skip
        return
    print_line(*(f"{table} {rows}" for table, rows in done.rows.items() if rows))
    what = "was restored before" if done.done_before else "restored"
    print_line(f"{what}: the store as of {done.timestamp.datetime:%Y-%m-%d %H:%M:%S} UTC")
