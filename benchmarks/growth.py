"""The benchmark of growth, ``python -m benchmarks growth``: the cost of more of something.

Each subject (keys, inboxes, queues, ...) is measured at four sizes, each ten times the one before,
each in a process and a folder of its own. The last columns count. One is the rate at the largest
size divided by that at the smallest. The other is our rate divided by SQLite's at the largest size,
if SQLite was measured with the same data in the same process. A measure with a unit in brackets is
no rate, but a cost: less is better.

``--scale 0.01`` takes a hundredth of all sizes. ``--only keys`` takes the subjects whose name
contains a word, ``--list`` prints their names. "20 GB" is measured only if it is named.
``--markdown`` prints a table for ``docs/performance.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.growth_subjects import SUBJECTS, Growing, Rates
from benchmarks.harness import machine
from postroom.kv.engine_folder import ENGINES

SIZES: Final = 4
STEP: Final = 10
SIZE_MIN: Final = 10

_ROW: Final = "{:<64}" + " {:>12}" * SIZES + " {:>10} {:>12}"


def sizes(largest: int, scale: float) -> list[int]:
    """Return the sizes at which a subject is measured, the smallest first."""
    full = max(int(largest * scale), SIZE_MIN)
    return [max(full // STEP**step, 1) for step in reversed(range(SIZES))]


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="subjects whose name contains this"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full sizes")
    parser.add_argument("--engine", choices=ENGINES, help="what stores are written by")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--markdown", action="store_true", help="print a table of a page")
    parser.add_argument("--list", action="store_true", help="list the subjects")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure_here(name: str, size: int, chosen: argparse.Namespace) -> Rates:
    """Measure one size of a subject in this process."""
    with tempfile.TemporaryDirectory(prefix="postroom-growth-") as folder:
        growing = Growing(Path(folder), size, chosen.seconds, chosen.engine)
        SUBJECTS[name].measure(growing)
    return growing.rates


def measure(name: str, size: int, chosen: argparse.Namespace) -> Rates:
    """Measure one size of a subject in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "growth", "--child", name, "--size", str(size)]
    command += ["--seconds", str(chosen.seconds)]
    command += ["--engine", chosen.engine] if chosen.engine else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} with {size} failed:\n{done.stderr[-2000:]}")
    rates: Rates = json.loads(done.stdout.strip().splitlines()[-1])
    return rates


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rows(name: str, at: list[int], measured: list[Rates]) -> list[dict[str, Any]]:
    """Return a row for each thing that was measured of a subject."""
    found = []
    for what in measured[-1]:
        if what.startswith("SQLite: "):
            continue
        values = [rates[what] for rates in measured]
        peer = measured[-1].get(f"SQLite: {what}")
        found.append({
            "subject": name,
            "measure": what,
            "sizes": at,
            "values": values,
            "last_to_first": None if what.endswith("]") else values[-1] / values[0],
            "to_sqlite": None if peer is None else values[-1] / peer,
            "sqlite": [rates.get(f"SQLite: {what}") for rates in measured],
        })  # fmt: skip
    return found


_COLUMNS: Final = (
    "subject (largest): measure", "a thousandth", "a hundredth", "a tenth", "all",
    "last / first", "to SQLite",
)  # fmt: skip


def _print_markdown(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _print(row: dict[str, Any], *, markdown: bool) -> None:
    values = [_number(value) for value in row["values"]]
    ratios = _number(row["last_to_first"]), _number(row["to_sqlite"])
    if markdown:
        label = f"{row['subject']} ({_number(row['sizes'][-1])}): {row['measure']}"
        _print_markdown((label, *values, *ratios))
    else:
        label = f"{row['subject']}: {row['measure']}"
        print(_ROW.format(label, *values, *ratios), flush=True)


def main(arguments: list[str]) -> int:
    """Measure what was asked for; return 1 if nothing was."""
    chosen = _arguments(arguments)
    if chosen.child:
        print(json.dumps(measure_here(chosen.child, chosen.size, chosen)))
        return 0
    names = [
        name
        for name, subject in SUBJECTS.items()
        if any(word in name for word in chosen.only)
        or not (chosen.only or (subject.is_by_name and not chosen.list))
    ]
    if chosen.list:
        print("\n".join(f"{name}: {SUBJECTS[name].measure.__doc__}" for name in names))
        return 0
    results = []
    if chosen.markdown:
        _print_markdown(_COLUMNS)
        _print_markdown("---" for _ in _COLUMNS)
    for name in names:
        at = sizes(SUBJECTS[name].largest, chosen.scale)
        if not chosen.markdown:
            print(_ROW.format(f"{name} [/s]", *map(_number, at), "last/first", "to SQLite"))
        for row in rows(name, at, [measure(name, size, chosen) for size in at]):
            results.append(row)
            _print(row, markdown=chosen.markdown)
    if chosen.json:
        settings = {each: getattr(chosen, each) for each in ("seconds", "scale", "engine")}
        written = {"machine": machine(), "settings": settings, "results": results}
        chosen.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if results else 1
