"""The benchmark of latencies, ``python -m benchmarks latencies``: one thing after another.

One client does one thing at a time: in an embedded store that is synced on disk, or in memory, with
asyncio and with threads, and with three nodes. Each column has medians in milliseconds, and
multiples of the column's own put. PostgreSQL, Redis and etcd are measured in the same run if their
programs are found.

Each place is measured in processes of its own, by turns, in rounds. ``--against CHECKOUT`` measures
another version of this program by turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import postroom
import postroom.aio
from benchmarks.checkouts import HERE, run_with
from benchmarks.cluster import connect, started_nodes
from benchmarks.harness import machine
from benchmarks.latencies_peers import PEERS
from benchmarks.latencies_subjects import LATE_CLAIMED, LATE_REAPED, NAMES, PUT, Once, subjects_of
from benchmarks.latencies_threads import thread_subjects_of

_LATE: Final = {LATE_REAPED, LATE_CLAIMED}

Medians: TypeAlias = dict[str, float]
"""Milliseconds by subject."""


def _chosen(subjects: Mapping[str, Once], words: list[str]) -> dict[str, Once]:
    """Return the put, and the subjects whose name contains a word; without words all of them."""
    return {
        name: once for name, once in subjects.items()
        if name == PUT or not words or any(word in name for word in words)
    }  # fmt: skip


async def measured(subjects: Mapping[str, Once], times: int) -> Medians:
    """Measure each subject a number of times, a tenth of them at once; return the medians."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(10):
        for name, once in subjects.items():
            for _ in range(max(times // 10, 1)):
                found[name].append(await once())
    return {name: 1000 * statistics.median(each) for name, each in found.items()}


async def _embedded(folder: Path, words: list[str], times: int) -> Medians:
    return await _embedded_at(str(folder / "store"), words, times)


async def _memory(_: Path, words: list[str], times: int) -> Medians:
    return await _embedded_at(":memory:", words, times)


async def _embedded_at(path: str, words: list[str], times: int) -> Medians:
    async with await postroom.aio.open(path) as db, subjects_of(db) as subjects:
        return await measured(_chosen(subjects, words), times)


async def _threads(folder: Path, words: list[str], times: int) -> Medians:
    return await _threads_at(str(folder / "store"), words, times)


async def _threads_in_memory(_: Path, words: list[str], times: int) -> Medians:
    return await _threads_at(":memory:", words, times)


async def _threads_at(path: str, words: list[str], times: int) -> Medians:
    def waited_for(once: Callable[[], float]) -> Once:
        async def call() -> float:
            return once()

        return call

    with postroom.open(path) as db, thread_subjects_of(db) as subjects:
        awaited = {name: waited_for(once) for name, once in subjects.items()}
        return await measured(_chosen(awaited, words), times)


async def _three_nodes(folder: Path, words: list[str], times: int) -> Medians:
    with started_nodes(folder, 3) as nodes:
        async with (
            await connect(nodes.addresses) as db,
            subjects_of(db) as subjects,
        ):
            return await measured(_chosen(subjects, words), times)


async def _peer(name: str, folder: Path, words: list[str], times: int) -> Medians:
    async with PEERS[name](folder) as subjects:
        return await measured(_chosen(subjects, words), times)


_OURS: Final = {
    "embedded": _embedded, "threads": _threads, "3 nodes": _three_nodes, "memory": _memory,
    "threads, memory": _threads_in_memory,
}  # fmt: skip


def measure_here(place: str, words: list[str], times: int) -> Medians:
    """Measure a place in this process."""
    with tempfile.TemporaryDirectory(prefix="postroom-latencies-") as folder:
        if place in PEERS:
            return asyncio.run(_peer(place, Path(folder), words, times))
        return asyncio.run(_OURS[place](Path(folder), words, times))


def measure(checkout: Path, place: str, words: list[str], times: int) -> Medians:
    """Measure a place in a process of its own, with the program of a checkout."""
    arguments = ["--child", place, "--times", str(times), *(f"--only={word}" for word in words)]
    medians: Medians = run_with(checkout, "benchmarks.latencies", arguments)
    return medians


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks latencies", description=__doc__)
    places = [*_OURS, *PEERS]
    parser.add_argument("--only", action="append", default=[], help="subjects that contain this")
    parser.add_argument("--place", action="append", choices=places, help="default: all")
    parser.add_argument("--times", type=int, default=60, help="of each subject in a round")
    parser.add_argument("--rounds", type=int, default=3, help="of all places")
    parser.add_argument("--against", type=Path, help="the checkout of another version")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--child", choices=places, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _print_table(found: Mapping[str, Medians]) -> None:
    width = max(map(len, NAMES)) + 2
    print(" " * width + "".join(f"{column:>20}" for column in found))
    for name in NAMES:
        if any(name in medians for medians in found.values()):
            cells = [_cell(name, medians) for medians in found.values()]
            print(f"{name:<{width}}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def _cell(name: str, medians: Medians) -> str:
    if name not in medians:
        return "-"
    multiple = "" if name == PUT or name in _LATE else f"{medians[name] / medians[PUT]:.1f}"
    return f"{medians[name]:.2f} {multiple:>6}"


def _columns(chosen: argparse.Namespace) -> dict[str, tuple[Path, str]]:
    """Return the checkout and the place of each column."""
    columns: dict[str, tuple[Path, str]] = {}
    for place in chosen.place or [*_OURS, *PEERS]:
        if chosen.against and place in _OURS:
            columns[f"{place}, before"] = chosen.against.resolve(), place
        columns[place] = HERE, place
    return columns


def main(arguments: list[str]) -> int:
    """Measure the chosen places; print a table."""
    chosen = _arguments(arguments)
    if chosen.child:
        print(json.dumps(measure_here(chosen.child, chosen.only, chosen.times)))
        return 0
    columns = _columns(chosen)
    rounds: dict[str, list[Medians]] = {column: [] for column in columns}
    for number in range(chosen.rounds):
        for column in [*columns][:: 1 if number % 2 == 0 else -1]:
            checkout, place = columns[column]
            rounds[column].append(measure(checkout, place, chosen.only, chosen.times))
    found = {
        column: {name: statistics.median(each[name] for each in runs) for name in runs[0]}
        for column, runs in rounds.items()
    }
    _print_table(found)
    if chosen.json:
        written = {"machine": machine(), "times": chosen.times, "results": rounds}
        chosen.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0
