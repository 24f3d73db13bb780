"""The command line of ``postroom``, as test clusters start it.

``python -m tests.cluster.launcher CLOCK serve ...`` differs from ``postroom serve ...`` in two ways
that no product has. Its wall clock is ahead by the number of seconds that the file CLOCK holds (a
double, read at every look). It ends when its standard input does, so that no node survives the
test that has started it.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from pathlib import Path

from postroom.cli import main as command_line
from postroom.cli import serve
from postroom.kv.clock import SystemClock


class WrongClock(SystemClock):
    """A machine's clocks, the wall clock set wrong."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            self._ahead_seconds = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)

    def wall_milliseconds(self) -> int:
        ahead_seconds: float = struct.unpack_from("d", self._ahead_seconds)[0]
        return super().wall_milliseconds() + round(ahead_seconds * 1000)


def _end_with_the_test() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    clock = WrongClock(Path(sys.argv.pop(1)))
    serve.SystemClock = lambda: clock  # type: ignore[misc,assignment]
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    command_line.main()
