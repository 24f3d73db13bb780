"""Async generators of simulated clients, which no event loop closes.

A client that is killed, or whose world ends, may be in the middle of a scan. Its generator is
closed when nobody refers to it any more; what it would send in its last moment goes nowhere. The
collector of garbage rests during a run, or it would choose that moment, and a seed would have
several histories.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.sim.sender import Killed


@contextmanager
def closed_quietly() -> Iterator[None]:
    """Close generators quietly that are begun meanwhile, and collect no garbage."""
    before = sys.get_asyncgen_hooks()
    gc.collect()  # the world of an earlier run
    gc.disable()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=_close)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)
        gc.enable()


def _close(generator: AsyncGenerator[Any, Any]) -> None:
    # RuntimeError: it stands in the middle of a step, and ends with whoever stepped it.
    with suppress(Killed, StopIteration, RuntimeError):
        generator.aclose().__await__().send(None)
