"""An event loop in a thread of its own, for a server inside a program that has no loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A running event loop and its thread.

    Args:
        name: the name of the thread.

    Attributes:
        loop: the loop.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` to its end on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def end(self) -> None:
        """Stop and close the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
