"""The command demo: the guided tour, on real data."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - here an instance is made, to be passed in
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli.spark import Spark
from postroom.limits import LOCAL_NODES_MAX, TOUR_RANGES_MAX


def demo(
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep its store in DIR.",
            show_default="postroom-demo, or postroom-demo-cluster",
        ),
    ] = None,
    flights: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Replay only the first N flights.",
            show_default="the whole year; 50,000 on a cluster",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over with an empty store.")] = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LOCAL_NODES_MAX,
            metavar="N",
            help="Run it on a cluster of N nodes.",
            show_default="no cluster",
        ),
    ] = None,
    ranges: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=TOUR_RANGES_MAX,
            metavar="N",
            help="Split its store into N ranges, half of them while it runs.",
            show_default="those that it has",
        ),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Kill a random node every few seconds (of 3 without --nodes), and move leases.",
        ),
    ] = False,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Archive, report and audit it with Spark at the end, into files beside DIR.",
        ),
    ] = False,
) -> None:
    """Replay the departures from New York's airports in 2013, and check every unit.

    Then the first aircraft are turned round where they have arrived, by the workers of a queue.
    Kill it at any moment and start it again: it goes on, and still ends exact.
    """
    with _session(wanted=spark) as session:
        if nodes is None and not chaos:
            from postroom.demo.tour import demonstrate  # noqa: PLC0415 - only this command needs it

            path = path or Path("postroom-demo")
            exact = asyncio.run(demonstrate(path, flights, fresh, session, ranges))
        else:
            from postroom.demo import cluster  # noqa: PLC0415 - as above

            path = path or Path("postroom-demo-cluster")
            randomness = random.Random(random.SystemRandom().randbytes(32)) if chaos else None
            exact = asyncio.run(cluster.demonstrate_on_cluster(
                path, nodes, flights or cluster.FLIGHTS, randomness,
                fresh=fresh, spark=session, ranges=ranges,
            ))  # fmt: skip
    if not exact:
        raise typer.Exit(1)


@contextmanager
def _session(*, wanted: bool) -> Iterator[Any]:
    """Yield the session of the third act; start Spark first, or say what it needs."""
    if not wanted:
        yield None
        return
    with Spark("local[*]", {}).session("demo") as session:
        yield session
