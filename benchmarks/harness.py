"""The definition of a benchmark, and the way in which one is run.

A benchmark is a function from ``Settings`` to ``Measured``. Each runs in a process of its own, in a
temporary folder of its own: memory and garbage of one do not weigh on another one. Machines are
shared and noisy: a benchmark is repeated, and the table shows median, minimum and maximum.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.kv.engine_folder import EngineName


@dataclass(frozen=True)
class Settings:
    """The duration and the size of a benchmark.

    Attributes:
        folder: for what the benchmark writes.
        seconds: how long a rate is measured.
        scale: share of the full size of what has a size (1.0: as documented).
        engine: what embedded stores are written by; ``None``: the first that is installed.
    """

    folder: Path
    seconds: float = 3.0
    scale: float = 1.0
    engine: EngineName | None = None

    def size(self, full: int) -> int:
        """Return ``full``, scaled down."""
        return max(int(full * self.scale), 100)


@dataclass(frozen=True)
class Measured:
    """A number, and its details.

    Attributes:
        value: in the benchmark's unit.
        details: more numbers, by name.
    """

    value: float
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A registered function.

    Attributes:
        goal: what is wanted, in ``unit``; ``None`` if it is there for comparison.
        at_most: whether less is better.
    """

    name: str
    unit: str
    goal: float | None
    at_most: bool
    run: Callable[[Settings], Measured]

    def meets(self, value: float) -> bool | None:
        """Return whether ``value`` reaches the goal; ``None`` without one."""
        if self.goal is None:
            return None
        return value <= self.goal if self.at_most else value >= self.goal


REGISTRY: dict[str, Benchmark] = {}


def benchmark(
    name: str, unit: str, goal: float | None = None, *, at_most: bool = False
) -> Callable[[Callable[[Settings], Measured]], Callable[[Settings], Measured]]:
    """Register a function under ``name``; its docstring says exactly what is measured."""

    def register(function: Callable[[Settings], Measured]) -> Callable[[Settings], Measured]:
        REGISTRY[name] = Benchmark(name, unit, goal, at_most, function)
        return function

    return register


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 in milliseconds."""
    ordered = sorted(latencies)
    if not ordered:
        return {}
    pick = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
    return {
        f"{name}_ms": round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)
        for name, share in pick.items()
    }


def run_here(name: str, seconds: float, scale: float, engine: EngineName | None) -> dict[str, Any]:
    """Run one benchmark in this process, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        measured = REGISTRY[name].run(Settings(Path(folder), seconds, scale, engine))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"value": measured.value, "details": measured.details, "peak_mib": round(peak, 1)}


def run_child(name: str, seconds: float, scale: float, engine: EngineName | None) -> dict[str, Any]:
    """Run one benchmark in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "--child", name]
    command += ["--seconds", str(seconds), "--scale", str(scale)]
    command += ["--engine", engine] if engine else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"benchmark {name} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def summarize(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median, minimum and maximum of several runs, with the details of the median run."""
    values = sorted(run["value"] for run in runs)
    middle = statistics.median_low(values)
    chosen = next(run for run in runs if run["value"] == middle)
    known = REGISTRY[name]
    return {
        "name": name,
        "unit": known.unit,
        "goal": known.goal,
        "met": known.meets(middle),
        "median": middle,
        "min": values[0],
        "max": values[-1],
        "runs": len(runs),
        "peak_mib": max(run["peak_mib"] for run in runs),
        "details": chosen["details"],
    }


def machine() -> dict[str, Any]:
    """Return the features of the machine that matter to the numbers."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
    }
