"""Starting a coroutine now, not with the next turn of the event loop.

A node hands an entry to its followers and then waits for its own disk, on the same thread. A task
would begin only after that; gRPC's ``write`` sends in its first step, so that is taken at once, and
the entry is on its way while the disk works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Eager:
    """A coroutine whose first step is taken when this is made; the rest as what it awaits ends.

    Args:
        coroutine: awaits nothing but futures of the running event loop.
        done: called when it has ended, with its error if it has one; never before this returns.
    """

    __slots__ = ("_coroutine", "_done")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[[BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        try:
            waits_for = (
                self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            )
        except StopIteration:
            asyncio.get_running_loop().call_soon(self._done, None)
        except (Exception, asyncio.CancelledError) as failure:
            asyncio.get_running_loop().call_soon(self._done, failure)
        else:
            self._wait(waits_for)

    def _wait(self, waits_for: Any) -> None:
        if waits_for is None:  # a bare yield: one turn of the loop
            asyncio.get_running_loop().call_soon(self._step, None)
            return
        waits_for._asyncio_future_blocking = False  # as a task does with what it awaits
        waits_for.add_done_callback(self._resume)

    def _resume(self, ended: asyncio.Future[Any]) -> None:
        # The coroutine itself asks the future for its result or error.
        del ended
        self._step(None)
