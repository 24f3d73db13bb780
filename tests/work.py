"""The work of a call, counted in lines, not measured in time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_of(action: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """Return how many lines a call runs, without those of finalizers that a collection runs."""
    number, collects = 0, gc.isenabled()

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal number
        number += event == "line"
        return count

    gc.disable()
    sys.settrace(count)
    try:
        action(*arguments, **named)
    finally:
        sys.settrace(None)
        if collects:
            gc.enable()
    return number
