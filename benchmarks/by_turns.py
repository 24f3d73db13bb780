"""Two versions by turns, row by row: ``python -m benchmarks.by_turns CHECKOUT --only reap``.

``CHECKOUT`` is the folder of another version (``git worktree add --detach FOLDER COMMIT``). Each
benchmark that both have is measured in that version, then in this one, this one, that one, and so
on. Other work of the machine thus meets both. The medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
_ROW = "{:<62} {:>12} {:>12} {:>8}  {}"


def measured(checkout: Path, name: str, seconds: float, scale: float) -> float:
    """Return the value of a benchmark of a version, run in a process of its own.

    Raises:
        RuntimeError: that version has no such benchmark, or it failed.
    """
    command = [sys.executable, "-m", "benchmarks", "--child", name]
    done = subprocess.run(
        [*command, "--seconds", str(seconds), "--scale", str(scale)],
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed in {checkout}: {done.stderr[-500:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["value"])


def names_in(checkout: Path) -> list[str]:
    """Return the names of the benchmarks of a version."""
    code = "import benchmarks.__main__ as m; print('\\n'.join(m.REGISTRY))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip
    return done.stdout.splitlines()


def main() -> int:
    """Print a table; return 1 if nothing was chosen."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_turns", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the other version's")
    parser.add_argument("--only", action="append", default=[], help="those that contain this")
    parser.add_argument("--rounds", type=int, default=3, help="of both, for each row (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--scale", type=float, default=0.2)
    chosen = parser.parse_args()
    places, here = (chosen.checkout.resolve(), HERE), set(names_in(HERE))
    names = [
        name for name in names_in(places[0])
        if name in here and (not chosen.only or any(word in name for word in chosen.only))
    ]  # fmt: skip
    print(_ROW.format("benchmark", "before", "now", "ratio", "ranges"))
    for name in names:
        found: dict[Path, list[float]] = {place: [] for place in places}
        for number in range(chosen.rounds):
            for place in places[:: 1 if number % 2 == 0 else -1]:
                found[place].append(measured(place, name, chosen.seconds, chosen.scale))
        before, now = (statistics.median(found[place]) for place in places)
        ranges = ", ".join(f"{min(each):.4g} to {max(each):.4g}" for each in found.values())
        ratio = f"{now / before:.2f}" if before else ""
        print(_ROW.format(name, f"{before:,.4g}", f"{now:,.4g}", ratio, ranges), flush=True)
    return 0 if names else 1


if __name__ == "__main__":
    sys.exit(main())
