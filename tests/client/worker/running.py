"""Workers that run for long, in threads of their own, and what is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import postroom
import postroom.aio
import postroom.testing

WAIT_SECONDS = 30.0


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def eventually(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up, "it did not happen"
        pause(0.01)
    return found


class Running:
    """A worker in a thread."""

    def __init__(self, worker: postroom.Worker, **options: Any) -> None:
        self._worker = worker
        self._told = False
        self._thread = threading.Thread(target=worker.run, kwargs=options)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tell(self) -> None:
        """Tell the worker to stop, once its running functions have ended."""
        if self._thread.is_alive() and not self._told:
            self._told = True
            self._worker.stop()

    def stop(self) -> None:
        self.tell()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
