"""The iterator that ``watch`` and ``receive`` return in asyncio: any task may close it.

Only the task that waits for the next item of an asynchronous generator can close the generator.
Here a close by another task ends that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Stream(AsyncGenerator[T, None]):
    """The items of a generator, until it ends or is closed.

    Args:
        items: the generator, which now belongs to the stream.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._waiting: asyncio.Task[Any] | None = None
        self._closed = False
        self._ends = False

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._waiting is not None:
            return await anext(self._items)  # raises an error: a task waits already
        self._waiting = task = _current_task()
        try:
            return await anext(self._items)
        except asyncio.CancelledError:
            if not self._ends or task is None or task.uncancel():
                raise
            raise StopAsyncIteration from None
        finally:
            self._waiting = None

    async def asend(self, value: None) -> T:
        """Return the next item."""
        del value
        return await anext(self)

    async def athrow(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """Raise an exception where the generator stands."""
        del val, tb
        return await self._items.athrow(typ)

    async def aclose(self) -> None:
        """End the iteration: a waiting task gets no further item.

        Messages that were claimed and not handed out are given back.
        """
        self._closed = True
        if self._waiting is None:
            await self._items.aclose()
        elif not self._ends:
            self._ends = True
            self._waiting.cancel()

    close = aclose


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread runs it, and ends a wait in its own way
        return None


__all__ = ["Stream"]
