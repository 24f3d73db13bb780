"""A command that kills the store many times: ``python -m tests.crash --kills 300``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random  # noqa: TID251 - made from the seed

from postroom.kv.engine_folder import ENGINES
from tests.crash.lives import Lives

LIVES_PER_STORE = 50


def main() -> int:
    """Kill as often as the command line asks for; return 1 if something was wrong after a kill."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="for the moments (default: 1)")
    parser.add_argument("--engine", choices=ENGINES, help="which (default: the first installed)")
    wanted = parser.parse_args()
    randomness = Random(wanted.seed)
    began = time.monotonic()
    killed = acknowledged = 0
    while killed < wanted.kills:
        with tempfile.TemporaryDirectory(prefix="postroom-crash-") as folder:
            lives = Lives(Path(folder) / "store", randomness)
            lives.set_up(wanted.engine)
            while killed < wanted.kills and lives.lives < LIVES_PER_STORE:
                lives.live_and_die(randomness.choice(["asyncio", "threads"]))
                lives.check()
                killed += 1
            acknowledged += len(lives.acknowledged)
            seconds = time.monotonic() - began
            print(f"{killed} kills in {seconds:.0f} s: {dict(lives.outcomes)}", flush=True)  # noqa: T201
    print(f"{killed} kills, {acknowledged} acknowledged commits, nothing lost")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
