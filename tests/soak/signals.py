"""Signals whose handler raises while an embedded store takes a turn, as time-outs of programs do.

The soak's clients share a thread, so each signal comes in a part of a turn, and not at any moment:
else it would come out in another client. The handler's exception goes to the event loop. The call
is done or has failed, and the store goes on.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.aio import Database
from postroom.server.node import Node
from tests.soak.worker import Worker

PARTS: Final = ("prepare", "write", "finish")
"""The parts of a turn."""
CALLS: Final = 5
LARGE_CHANCE: Final = 0.1
LARGE_KEYS: Final = 3
LARGE_BYTES: Final = 800_000
"""The size of a transaction that a thread writes, beside the event loop."""
PATIENCE_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 3.0
KEY: Final = b"soak/signals"
"""The keys begin with it."""


class Interrupted(Exception):
    """An exception of the handler."""


class Signals:
    """Signals whose handler raises while an embedded store takes a turn.

    Args:
        node: of the store.
        goes_on: whether the soak does.

    Attributes:
        raised: how often the handler has raised.
    """

    def __init__(self, node: Node, goes_on: Callable[[], bool]) -> None:
        self._node: Any = node
        self._goes_on = goes_on
        self.raised = 0

    async def interrupt(self, worker: Worker, db: Database) -> None:
        """Raise during some commits, and see that the store goes on."""
        with self._handled():
            for number in range(CALLS):
                large = worker.random.random() < LARGE_CHANCE
                value = (b"%d" % number) * (LARGE_BYTES if large else 1)
                keys = [KEY + b"/%d" % key for key in range(LARGE_KEYS if large else 1)]

                def write(tx: Any, keys: list[bytes] = keys, value: bytes = value) -> None:
                    for key in keys:
                        tx.put(key, value)

                self._raise_in(worker.random.choice(PARTS))
                await _in_time("a commit", db.run(write))
                for key in keys:
                    if await _in_time("a get", db.get(key)) != value:
                        raise AssertionError(f"{key!r} was committed beside a signal, and is lost")
        await db.delete_range(KEY + b"/", KEY + b"/~")
        worker.did()
        until = time.monotonic() + PAUSE_SECONDS
        while time.monotonic() < until and self._goes_on():
            await asyncio.sleep(0.05)

    def _raise_in(self, part: str) -> None:
        """Have a signal come in this part of the next turn."""
        node = self._node
        vars(node).pop(part, None)
        real = getattr(node, part)

        def interrupted(*given: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                vars(node).pop(part, None)
                signal.raise_signal(signal.SIGUSR1)
            return real(*given)

        setattr(node, part, interrupted)

    @contextmanager
    def _handled(self) -> Iterator[None]:
        """Raise at each signal, and take what comes out of the event loop."""
        loop = asyncio.get_running_loop()

        def handle(*_: object) -> None:
            self.raised += 1
            raise Interrupted

        def take(loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
            if not isinstance(told.get("exception"), Interrupted):
                loop.default_exception_handler(told)

        handler, taken = signal.signal(signal.SIGUSR1, handle), loop.get_exception_handler()
        loop.set_exception_handler(take)
        try:
            yield
        finally:
            for part in PARTS:
                vars(self._node).pop(part, None)
            loop.set_exception_handler(taken)
            signal.signal(signal.SIGUSR1, handler)


async def _in_time(name: str, call: Any) -> Any:
    try:
        return await asyncio.wait_for(call, PATIENCE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"{name} is never answered after a signal") from None
