"""``postroom pipeline run archive``: moves history out of a store into Parquet."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.console import Console

import postroom
from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import print_json
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted

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
        print_json(dataclasses.asdict(result))
        return
    out = Console()
    out.print(
        f"run {result.number}: {counted(result.queue_messages, 'message')} of queues and "
        f"{result.inbox_messages:,} of inboxes are in {to}, {result.trimmed:,} deleted from the "
        f"store; the archive has {result.rows:,} in {counted(result.files, 'file')}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for why in result.damaged.values():
        out.print(f"left out: {why}", highlight=False, markup=False, soft_wrap=True)
    for gap in result.gaps:
        out.print(
            f"messages that ended in {gap.place} between {_moment(gap.after)} and "
            f"{_moment(gap.until)} may be missing: {gap.reason}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip


def _moment(timestamp: int) -> str:
    return postroom.Timestamp(timestamp).datetime.isoformat(timespec="seconds")
