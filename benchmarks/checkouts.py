"""The benchmarks of this version, run with the program of any checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parents[1]
_CHILD: Final = (
    "import sys, postroom; sys.path.insert(0, sys.argv[1]); from importlib import import_module; "
    "sys.exit(import_module(sys.argv[2]).main(sys.argv[3:]))"
)


def run_with(checkout: Path, module: str, arguments: list[str]) -> Any:
    """Run a module of benchmarks in a process of its own; return the JSON that it prints last.

    Args:
        checkout: the folder whose program is measured.
        module: the name of the module, which has ``main``.
        arguments: the arguments of ``main``.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(HERE), module, *arguments],
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module} {arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
