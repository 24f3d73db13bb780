"""``postroom pipeline run index``: builds a search index, or compares one with its documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from postroom.cli.options import AsJson, StoreOptions
from postroom.cli.output import Notation, print_json, print_line
from postroom.cli.pipeline.running import Spark, on_spark, progress_shown, source_options
from postroom.counted import counted
from postroom.errors import Error

if TYPE_CHECKING:
    from postroom.layers.search.changes import Difference
    from postroom.pipeline.jobs.index import IndexResult

_NOTATION = Notation()


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
    _print(result, as_json)
    if result.different and not repair:
        raise Error(
            f"the search index {name!r} differs from its documents in {result.different} places: "
            "--repair writes these anew"
        )


def _print(result: IndexResult, as_json: bool) -> None:
    if as_json:
        print_json(asdict(result) | {"differences": [_facts(each) for each in result.differences]})
        return
    if result.built:
        print_line(
            f"{counted(result.documents, 'document')} with {counted(result.words, 'word')} "
            "indexed by "
            f"{counted(result.postings, 'posting')}; {result.unindexable} cannot be; "
            f"{result.settled} "
            "changed meanwhile"
        )
    for each in result.differences:
        print_line(_difference_line(each))
    if result.verified:
        repaired = f"; {counted(result.repaired, 'document')} repaired" if result.repaired else ""
        Console().print(f"{counted(result.different, 'difference')}{repaired}", highlight=False)


def _facts(each: Difference) -> dict[str, Any]:
    return each._asdict() | {"key": _NOTATION.json_key(each.key)}


def _difference_line(each: Difference) -> str:
    """Return a difference as a line: its kind, document and word, and the two numbers."""
    parts = [each.kind, _NOTATION.key(each.key)]
    if each.word:
        parts += [each.word, f"{each.found} instead of {each.expected}"]
    if each.reason:
        parts.append(each.reason)
    return "\t".join(parts)
