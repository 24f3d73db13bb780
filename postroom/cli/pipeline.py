"""The commands about Spark: ``postroom pipeline run NAME``.

Modules that need Spark are imported when a job is run, to let the other commands start without it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import postroom
from postroom.cli.load import load
from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import Notation, print_json, print_line
from postroom.cli.spark import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted
from postroom.errors import Error

if TYPE_CHECKING:
    from postroom.layers.search.changes import Difference
    from postroom.pipeline.jobs.audit import AuditResult
    from postroom.pipeline.jobs.index import IndexResult


app = typer.Typer(
    help="Jobs that Spark does for a store: see docs/jobs.md.",
    no_args_is_help=True,
)
run = typer.Typer(
    help="Run a job, on this machine or on a cluster of Spark's.", no_args_is_help=True
)
app.add_typer(run, name="run")

_NOTATION = Notation()

_To = Annotated[
    str,
    typer.Option(
        "--to", metavar="FOLDER", help="Write the archive into FOLDER: a path, or a URI of Spark's."
    ),
]
_Keep = Annotated[
    float,
    typer.Option(
        "--keep", min=0, metavar="SECONDS", help="Keep archived messages in the store for SECONDS."
    ),
]
_Grace = Annotated[
    float,
    typer.Option(
        "--grace", min=0, metavar="SECONDS", help="Keep files that were replaced for SECONDS."
    ),
]


@run.command()
@on_spark
def archive(
    store: StoreOptions,
    spark: Spark,
    to: _To,
    keep: _Keep = 86_400.0,
    grace: _Grace = 86_400.0,
    as_json: AsJson = False,
) -> None:
    """Move history out of a store into Parquet.

    History is the messages of queues that are done, and those consumed from inboxes. Run it again
    and again, and again when it was killed.
    """
    options = source_options(store)
    with spark.session("archive") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline.jobs import archive as job  # noqa: PLC0415 - needs the extra

        result = job(session, options, to, keep=keep, grace=grace, progress=progress)
    if as_json:
        print_json(asdict(result))
        return
    print_line(
        f"run {result.number}: {counted(result.queue_messages, 'message')} of queues and "
        f"{result.inbox_messages:,} of inboxes are in {to}, {result.trimmed:,} deleted from the "
        f"store; the archive has {result.rows:,} in {counted(result.files, 'file')}"
    )
    for why in result.damaged.values():
        print_line(f"left out: {why}")
    for gap in result.gaps:
        print_line(
            f"messages that ended in {gap.place} between {_moment(gap.after)} and "
            f"{_moment(gap.until)} may be missing: {gap.reason}"
        )


def _moment(timestamp: int) -> str:
    return postroom.Timestamp(timestamp).datetime.isoformat(timespec="seconds")


@run.command()
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
        typer.echo(json.dumps(_audit_as_json(result)))
    else:
        _print_audit(Console(), result)
    if result.differences:
        raise typer.Exit(1)


def _audit_as_json(result: AuditResult) -> dict[str, Any]:
    """Return the result for JSON, with keys as ``--json`` writes them everywhere."""
    told = asdict(result)
    for finding in told["findings"]:
        for example in finding["examples"]:
            example["key"] = _NOTATION.json_key(example["key"])
    return {**told, "compared": result.compared, "differences": result.differences}


def _print_audit(console: Console, result: AuditResult) -> None:
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


_ExportFolder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        show_default=False,
        help="The folder of the export, or its URI; all machines of Spark see it.",
    ),
]


@run.command()
@on_spark
def export(
    store: StoreOptions, spark: Spark, folder: _ExportFolder, as_json: AsJson = False
) -> None:
    """Write everything that a store contains now into FOLDER, in Parquet files.

    Values, inboxes, outboxes, dead letters, sums and queues, all at one timestamp. An export that
    was killed is begun anew. One that is complete is left unchanged.
    """
    options = source_options(store)
    with spark.session("export") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        done = jobs.export(session, options, folder, progress=progress)
    if as_json:
        print_json(asdict(done))
        return
    print_line(*(f"{table} {rows}" for table, rows in done.rows.items() if rows))
    what = "was exported before" if done.done_before else "exported"
    print_line(
        f"{what} as of {done.timestamp.datetime:%Y-%m-%d %H:%M:%S} UTC: "
        f"{counted(done.files, 'file')}, "
        f"{counted(done.bytes, 'byte')} in {done.folder}"
    )


@run.command()
@on_spark
def index(
    store: StoreOptions,
    spark: Spark,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Index the keys that begin with TEXT (a new index)."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Index the field NAME; give it once for each."),
    ] = None,
    format: Annotated[  # noqa: A002 - as the option is called
        str, typer.Option(metavar="FORMAT", help="Read documents as text, json or msgpack.")
    ] = "text",
    anew: Annotated[bool, typer.Option("--anew", help="Build the index anew.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare it with the documents; exit with 1 if it differs."),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Compare it with the documents, and repair differences."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build the search index NAME, unless it is built; compare it with its documents."""
    options = source_options(store)
    with spark.session("index") as session, progress_shown(quiet=as_json) as progress:
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        result = jobs.index(
            session, options, name,
            prefix=None if prefix is None else prefix.encode(),
            fields=field or (), format=format, anew=anew, verify=verify, repair=repair,
            progress=progress,
        )  # fmt: skip
    _print_index(result, as_json)
    if result.different and not repair:
        raise Error(
            f"the search index {name!r} differs from its documents in {result.different} places: "
            "--repair writes these anew"
        )


def _print_index(result: IndexResult, as_json: bool) -> None:
    if as_json:
        print_json(asdict(result) | {"differences": [_facts(each) for each in result.differences]})
        return
    if result.built:
        print_line(
            f"{counted(result.documents, 'document')} with {counted(result.words, 'word')} indexed "
            f"by {counted(result.postings, 'posting')}; {result.unindexable} cannot be; "
            f"{result.settled} changed meanwhile"
        )
    for each in result.differences:
        print_line(_difference_line(each))
    if result.verified:
        repaired = f"; {counted(result.repaired, 'document')} repaired" if result.repaired else ""
        print_line(f"{counted(result.different, 'difference')}{repaired}")


def _facts(each: Difference) -> dict[str, Any]:
    return each._asdict() | {"key": _NOTATION.json_key(each.key)}


def _difference_line(each: Difference) -> str:
    """Return a difference as a line: its kind, document and word, and the two numbers."""
    fields = [each.kind, _NOTATION.key(each.key)]
    if each.word:
        fields += [each.word, f"{each.found} instead of {each.expected}"]
    if each.reason:
        fields.append(each.reason)
    return "\t".join(fields)


run.command()(load)


_ReportTo = Annotated[
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


@run.command()
@on_spark
def report(
    store: StoreOptions,
    spark: Spark,
    to: _ReportTo,
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
        print_json(asdict(result))
        return
    print_line(
        f"{counted(result.done, 'message')} done, {result.waiting:,} waiting or at work, "
        f"{result.dead:,} dead: {result.page}"
    )


_RestoreFolder = Annotated[
    str,
    typer.Argument(metavar="[FOLDER]", show_default=False, help="The export's folder, or its URI."),
]
_Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon", help="Give up a restore that is not complete, and leave the store empty."
    ),
]


@run.command()
@on_spark
def restore(
    store: StoreOptions,
    spark: Spark,
    folder: _RestoreFolder = "",
    abandon: _Abandon = False,
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
        print_json(asdict(done))
        return
    print_line(*(f"{table} {rows}" for table, rows in done.rows.items() if rows))
    what = "was restored before" if done.done_before else "restored"
    print_line(f"{what}: the store as of {done.timestamp.datetime:%Y-%m-%d %H:%M:%S} UTC")
