"""A request at a driver, and its answer: what whoever has sent it waits for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from postroom.kv import forks
from postroom.ranges.calls import Call

CLOSED: Final = "the database was closed; nothing was changed: open it again"
FORKED: Final = forks.refusal("opened", "open one")
"""What those are told that come later, or in the child of a fork."""


class Answer(Call):
    """Awaited once.

    Args:
        request: what is asked.
        timeout_seconds: how long to wait for it; ``None``: for ever.

    Attributes:
        done: it is there.
        woken: by which who waits is woken; ``None``: nobody waits yet.
    """

    __slots__ = ("_error", "_result", "done", "timeout_seconds", "woken")

    def __init__(self, request: Any, timeout_seconds: float | None) -> None:
        self.request = request
        self.urgent = True
        self.token = None
        self.cancelled = False
        self.done = False
        self.timeout_seconds = timeout_seconds
        self.woken: Any = None
        self._result: Any = None
        self._error: BaseException | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """It is here."""
        self._result = result
        self._error = error
        self.done = True  # after these: another thread may look, without a lock
        if self.woken is not None:
            self.wake()

    def wake(self) -> None:
        """Somebody waits for it, by ``woken``."""
        raise NotImplementedError

    def until_done(self) -> Generator[Any, Any, None]:
        """Waits until it is there."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.done:
            yield from self.until_done()
        if self._error is not None:
            raise self._error
        return self._result
