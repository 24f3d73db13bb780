"""The commands about Spark: ``postroom pipeline run NAME``, one module a job.

Modules that need Spark are imported when a job is run, to let the other commands start without it.
"""

from __future__ import annotations

import typer

from postroom.cli.pipeline.archive import archive
from postroom.cli.pipeline.audit import audit
from postroom.cli.pipeline.export import export
from postroom.cli.pipeline.index import index
from postroom.cli.pipeline.load import load
from postroom.cli.pipeline.report import report
from postroom.cli.pipeline.restore import restore

app = typer.Typer(
    help="Jobs that Spark does for a store: see docs/jobs.md.",
    no_args_is_help=True,
)
run = typer.Typer(
    help="Run a job, on this machine or on a cluster of Spark's.", no_args_is_help=True
)
app.add_typer(run, name="run")
run.command()(archive)
run.command()(audit)
run.command()(export)
run.command()(index)
run.command()(load)
run.command()(report)
run.command()(restore)
