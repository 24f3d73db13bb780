"""The console script ``postroom``: it checks for its libraries, then hands over.

The embedded store needs neither typer nor rich, and they come with the extra ``[cli]``. A person
who calls ``postroom`` without them is told the one command that installs them.
"""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec

from postroom.collector import without_collections
from postroom.errors import how_to_install

INSTRUCTION = f"The command line needs two more libraries: {how_to_install('cli')}\n"


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        _run()
    except KeyboardInterrupt:  # before the commands are imported, which handle it themselves
        sys.exit(130)


def _run() -> None:
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.stderr.write(INSTRUCTION)
        sys.exit(2)
    with without_collections():
        # imported only now, because the import needs these libraries
        from postroom.cli.application import app  # noqa: PLC0415

        gc.freeze()
    app(prog_name="postroom")


if __name__ == "__main__":
    main()
