"""A control of the machine's costs, measured beside a soak by something that never changes.

A *turn* of this control is a little computing and a synced write into a file of its own: the least
that a turn of a store does. It is made a few times a second, in a process of its own. When its
price rises, the machine has become slower (others write to the same device, or share the caches of
the processors), and nothing else can have. The price is seconds of processor and of waiting for the
device. The least of each second counts: a higher price was waiting for a processor, which a soak
takes into account by itself.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

TURNS_A_SECOND: Final = 5
TURN_BYTES: Final = 4096
ROUNDS: Final = 20_000


class Control:
    """The process of its own.

    Args:
        folder: on the device that the soak writes to.
    """

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.soak.control", str(folder / "control")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # then it ends
        self._process.wait()
        self._process.stdout.close()

    def prices(self) -> list[float]:
        """Return the prices of the turns since this was asked last, in seconds."""
        assert self._process.stdout is not None
        *lines, self._rest = (self._rest + (self._process.stdout.read() or b"")).split(b"\n")
        return [float(line) for line in lines]


def price(file: int) -> float:
    """Return the price of one turn, in seconds of processor and of waiting for the device."""
    began = time.process_time()
    total = 0
    for number in range(ROUNDS):
        total += number & 7
    computed = time.process_time()
    asked = time.monotonic()
    os.pwrite(file, b"x" * TURN_BYTES, 0)
    os.fdatasync(file)
    return computed - began + time.monotonic() - asked


def main(path: str) -> None:
    """Take turns, and print their prices, until standard input ends."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    while not select.select([0], [], [], 1 / TURNS_A_SECOND)[0]:
        os.write(1, b"%.6f\n" % price(file))


if __name__ == "__main__":
    main(sys.argv[1])
