"""``postroom pipeline run audit``: compares stored numbers with recounted ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import Notation
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted

if TYPE_CHECKING:
    from postroom.pipeline.jobs.audit import AuditResult

NOTATION = Notation()


@on_spark
def audit(
    store: StoreOptions,
    spark: Spark,
    as_json: AsJson = False,
) -> None:
    """Recount counters, sums, the index of inboxes and queues, and name each difference.

    All of it is read at one timestamp, whatever is committed meanwhile. Ends with 1 if anything
    differs.
    """
    options = source_options(store)
    with spark.session("audit") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline.jobs import audit as run  # noqa: PLC0415 - needs the extra

        result = run(session, options, progress=progress)
    if as_json:
        typer.echo(json.dumps(_as_json(result)))
    else:
        _show(Console(), result)
    if result.differences:
        raise typer.Exit(1)


def _as_json(result: AuditResult) -> dict[str, Any]:
    """Return the result for JSON, with keys as ``--json`` writes them everywhere."""
    told = asdict(result)
    for finding in told["findings"]:
        for example in finding["examples"]:
            example["key"] = NOTATION.json_key(example["key"])
    return {**told, "compared": result.compared, "differences": result.differences}


def _show(console: Console, result: AuditResult) -> None:
    """Print a table, a line for each example, and the sum."""
    from postroom.pipeline.jobs.audit import COUNTERS  # noqa: PLC0415 - as above

    table = Table("recounted", "compared", "differences", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for finding in result.findings:
        number = f"{finding.differences:,}"
        style = "bold red" if finding.differences else "green"
        table.add_row(COUNTERS[finding.counter], f"{finding.compared:,}", f"[{style}]{number}[/]")
    console.print(table)
    for finding in result.findings:
        for example in finding.examples:
            console.out(str(example), style="red", highlight=False)
        more = finding.differences - len(finding.examples)
        if more:
            console.out(f"{finding.counter}: {more:,} more", style="red", highlight=False)
    summary = f"{counted(result.compared, 'value')} compared, {result.differences:,} differ."
    console.out(summary, highlight=False)
