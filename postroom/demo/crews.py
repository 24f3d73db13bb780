"""The workers of the second act: in this process, or processes of their own on a cluster.

A crew has two workers. One of them is killed in the middle of its work, and another one takes its
place. In this process, a worker is killed by dropping its work without a word to the store; on a
cluster, by ``kill -9``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import postroom.aio
from postroom.demo.turn_rounds import add_task

WORKERS: Final = 2
LONGEST_KILL_SECONDS: Final = 2.0
"""The time without work after which a worker is killed idle."""
STOP_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 60.0


class Crew(Protocol):
    """Workers, numbered from 1."""

    async def start(self) -> None:
        """Start all workers."""

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""


class LocalWorker:
    """A worker of this process."""

    def __init__(self, db: postroom.aio.Database) -> None:
        self._worker = postroom.aio.Worker(db)
        self._killed = False
        self._has_lost = asyncio.Event()
        add_task(self._worker, self._is_killed)
        self._running = asyncio.ensure_future(self._worker.run())

    def _is_killed(self) -> bool:
        if self._killed:
            self._has_lost.set()
        return self._killed

    async def kill(self) -> None:
        """Let the worker drop the work that it has in hand, without a word to the store."""
        self._killed = True
        with suppress(TimeoutError):  # the worker had nothing to do
            await asyncio.wait_for(self._has_lost.wait(), LONGEST_KILL_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        """Let the worker finish what it has begun, and stop it."""
        self._worker.stop()
        await self._running


class LocalCrew:
    """Workers of this process.

    Args:
        db: whose messages they work on.
    """

    def __init__(self, db: postroom.aio.Database) -> None:
        self._db = db
        self._workers: list[LocalWorker] = []

    async def start(self) -> None:
        """Start all workers."""
        # A worker logs the work that it loses when it is killed. This is no news here.
        logging.getLogger("postroom.worker").addHandler(logging.NullHandler())
        self._workers = [LocalWorker(self._db) for _ in range(WORKERS)]

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""
        await self._workers[number - 1].kill()
        self._workers[number - 1] = LocalWorker(self._db)

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""
        for worker in self._workers:
            await worker.stop()


class ProcessCrew:
    """Workers in processes of their own, which end with this one, however it ends.

    They read from a pipe whose other end only this process holds.

    Args:
        addresses: of the cluster.
        folder: for what they log.
    """

    def __init__(self, addresses: tuple[str, ...], folder: Path) -> None:
        self._addresses = addresses
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        """Start all workers."""
        self._workers = [self._start(number) for number in range(1, WORKERS + 1)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "postroom.demo.crews", ",".join(self._addresses)]
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the process that started them
            )

    async def kill(self, number: int) -> None:
        """Kill a worker and start another one in its place."""
        await asyncio.to_thread(_end, self._workers[number - 1], kill=True)
        self._workers[number - 1] = self._start(number)

    async def stop(self) -> None:
        """Let all workers finish what they have begun, and stop them."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            await asyncio.to_thread(_end, worker)


def _end(worker: subprocess.Popen[bytes], *, kill: bool = False) -> None:
    if kill:
        worker.kill()
    try:
        worker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    assert worker.stdin is not None
    worker.stdin.close()


async def _work(addresses: list[str]) -> None:
    worker = postroom.aio.Worker()
    add_task(worker)
    async with await postroom.aio.connect(addresses, insecure=True, timeout=CONNECT_SECONDS) as db:
        worker.bind(db)
        await worker.run(signals=True)


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)  # no byte is ever written to it
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    asyncio.run(_work(sys.argv[1].split(",")))
