"""Commands that serve, as processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_SECONDS = 60.0


def free_address() -> str:
    """Return an address on loopback at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of postroom until the block ends; it is ready when the block begins."""
    command = [sys.executable, "-m", "postroom", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = []
        reading = threading.Thread(target=process.stderr.read, daemon=True)
        try:
            while (line := process.stderr.readline()) and not line.startswith("ready"):
                told.append(line)
            assert line.startswith("ready"), "".join(told)
            reading.start()
            yield process
            if process.poll() is None:  # the test has not ended it
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()
            if reading.ident is not None:
                reading.join(WAIT_SECONDS)
