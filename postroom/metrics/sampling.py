"""Samples of a node: taken by one thread at a time, and kept for those who ask meanwhile.

A sample reads what the node knows, between two of its turns. If the node hangs, the thread hangs
too, and no other one begins: those who ask get the sample before, with its age, after a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from postroom.errors import DatabaseClosed, Error
from postroom.kv.engine import EngineFailed
from postroom.log_once import LogOnce
from postroom.messaging.queues.records import UNDECODABLE
from postroom.metrics.process_figures import process
from postroom.metrics.table import Point

ANSWER_SECONDS: Final = 1.0
"""The time for which a sample is waited for."""
KEPT_SECONDS: Final = 0.2
"""The time for which a sample counts as new, however many ask."""

Group = Callable[[list[Point]], None]
"""A function that adds figures which belong together to a list."""

_log = logging.getLogger(__name__)
_unreadable: Final = (Error, EngineFailed, OSError, *UNDECODABLE)


class Source(Protocol):
    """A node whose figures are read."""

    def points(self) -> list[Point]:
        """Return its figures. This waits for the node.

        Raises:
            DatabaseClosed: it is closed.
        """

    def is_here(self) -> bool:
        """Return whether the calling thread is the one that the node needs."""


class Sampling:
    """The newest sample of one node; see the module.

    Args:
        source: the node.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._points: list[Point] = []
        self._taken_at: float | None = None
        self._said = LogOnce()

    def newest(self) -> Iterator[Point]:
        """Iterate over the newest sample, after a second at most."""
        if self._age() > KEPT_SECONDS:
            if self._source.is_here():
                self._take()
            else:
                self._begin().join(ANSWER_SECONDS)
        age, points = self._age(), self._points
        yield Point("postroom_up", age < ANSWER_SECONDS + KEPT_SECONDS)
        if points:
            yield Point("postroom_sample_age_seconds", age)
        yield from points
        yield from process()

    def _age(self) -> float:
        taken_at = self._taken_at
        return float("inf") if taken_at is None else time.monotonic() - taken_at

    def _begin(self) -> threading.Thread:
        """Return the thread that takes a sample, begun now unless one is under way."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._take, name="postroom metrics", daemon=True
                )
                self._thread.start()
            return self._thread

    def _take(self) -> None:
        begun = time.monotonic()
        try:
            self._points, self._taken_at = self._source.points(), begun
        except DatabaseClosed:
            self._points, self._taken_at = [], None
        except Exception as error:
            self._said.log(
                _log, type(error).__name__, begun, "no metrics can be read: %s", repr(error)
            )


def readable(groups: Iterable[Group]) -> list[Point]:
    """Return the figures of groups. A group that meets damage ends there, and is counted.

    Raises:
        DatabaseClosed: the node is closed.
    """
    points: list[Point] = []
    unreadable = 0
    for group in groups:
        try:
            group(points)
        except DatabaseClosed:
            raise
        except _unreadable:
            unreadable += 1
    return [*points, Point("postroom_unreadable", unreadable)]
