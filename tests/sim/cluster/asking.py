"""A request at one node, asked in passing, as its own services ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.ranges.calls import Call


class Asked(Call):
    """A request at one node; ``told`` hears the answer, or ``None`` after an error."""

    __slots__ = ("_told",)

    def __init__(self, request: Any, told: Callable[[Any], object]) -> None:
        super().__init__(request)
        self._told = told

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the answer."""
        self._told(None if error is not None else result)
