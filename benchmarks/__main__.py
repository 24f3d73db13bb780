"""The command ``python -m benchmarks``: runs the benchmarks, prints a table, and writes JSON.

Without options it runs all of them. ``--only reap`` runs those whose name contains a word.
``--quick`` runs a hundredth of everything, to see that it works. ``--list`` prints the names.
``python -m benchmarks growth`` measures rates with ever more of everything, ``latencies`` one thing
after another, ``tail`` the slowest at an open rate.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import benchmarks.backup
import benchmarks.cluster
import benchmarks.contention
import benchmarks.etcd
import benchmarks.floor
import benchmarks.gateway
import benchmarks.groups
import benchmarks.growth
import benchmarks.idle
import benchmarks.latencies
import benchmarks.messages
import benchmarks.metrics
import benchmarks.opening
import benchmarks.over_ranges
import benchmarks.pages
import benchmarks.queues
import benchmarks.ranges
import benchmarks.tail
import benchmarks.transactions
from benchmarks.harness import REGISTRY, machine, run_child, run_here, summarize
from postroom.kv.engine_folder import ENGINES

_ROW = "{:<62} {:>12} {:>12} {:>12} {:>12} {:>6} {:>8}  {}"

_COMMANDS = {
    "growth": benchmarks.growth.main,
    "latencies": benchmarks.latencies.main,
    "tail": benchmarks.tail.main,
}


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="those whose name contains this"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full sizes")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the median is shown")
    parser.add_argument("--engine", choices=ENGINES, help="what embedded stores are written by")
    parser.add_argument("--quick", action="store_true", help="a hundredth of everything, once")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds, chosen.scale, chosen.repeat = 0.05, 0.001, 1
    return chosen


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _print_row(row: dict[str, Any]) -> None:
    met = {True: "yes", False: "no", None: ""}[row["met"]]
    details = " ".join(f"{name}={value}" for name, value in row["details"].items())
    numbers = [_number(row[name]) for name in ("median", "min", "max", "goal")]
    label = f"{row['name']} [{row['unit']}]"
    print(_ROW.format(label, *numbers, met, _number(row["peak_mib"]), details), flush=True)


def main(arguments: list[str]) -> int:
    """Run the chosen benchmarks; return 1 if none was chosen."""
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is not None:
        return command(arguments[1:])
    chosen = _arguments(arguments)
    if chosen.child:
        print(json.dumps(run_here(chosen.child, chosen.seconds, chosen.scale, chosen.engine)))
        return 0
    names = [
        name for name in REGISTRY if not chosen.only or any(word in name for word in chosen.only)
    ]
    if chosen.list:
        print("\n".join(f"{name}: {REGISTRY[name].run.__doc__}" for name in names))
        return 0
    print(_ROW.format("benchmark", "median", "min", "max", "goal", "met", "MiB", ""))
    rows = []
    for name in names:
        runs = [
            run_child(name, chosen.seconds, chosen.scale, chosen.engine)
            for _ in range(chosen.repeat)
        ]
        rows.append(summarize(name, runs))
        _print_row(rows[-1])
    if chosen.json:
        asked = ("seconds", "scale", "repeat", "engine")
        settings = {name: getattr(chosen, name) for name in asked}
        written = {"machine": machine(), "settings": settings, "results": rows}
        chosen.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
