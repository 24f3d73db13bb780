"""The threads that were answered: each wakes the next one, and all of them share the next turn.

A thread that has its answer mostly comes back with its next request, within microseconds. A turn
for sixteen requests costs little more than one for a single request. The thread that is to drive
therefore waits for them. But the interpreter runs one thread at a time, and threads that are woken
together only keep each other from it. Here they go one after another::

    turn ends ── wakes ─▶ a thread: next request ── wakes ─▶ another: next request ─▶ ... ─▶ turn
                          then it sleeps                     the last one: all are back

While the driving thread waits (*watches*), a thread wakes the next one when it is back, just before
it sleeps. At other times it does this as soon as it is woken itself.

A thread may do something else first, or end. If the wait takes too long, or none comes back for
``PATIENCE_SECONDS``, the driving thread wakes the others, and takes its turn. After a wait in vain
the next turn does without one. After further waits in vain three turns do, then seven, and so on.
A good wait halves their number.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Final

CHAINS: Final = 6
"""The number of threads that are woken at once if no thread watches them."""
RETURN_SECONDS: Final = 0.0001
"""The time that each thread has for coming back, from the end of the turn."""
PATIENCE_SECONDS: Final = 0.0005
MOST_TURNS_SKIPPED: Final = 1023


class AnsweredThreads:
    """The threads of one driver that were answered; see the module.

    Args:
        waiting: the threads that sleep until they are answered, or are about to.
        monotonic: returns the time in seconds.

    Attributes:
        to_wake: the locks on which those sleep that are not woken yet; only to look at.
    """

    __slots__ = (
        "_all_are_back", "_expected", "_is_watched", "_monotonic", "_skipped", "_to_skip",
        "_until", "_waiting", "to_wake",
    )  # fmt: skip

    def __init__(self, waiting: Sized, monotonic: Callable[[], float]) -> None:
        self.to_wake: deque[threading.Lock] = deque()
        self._waiting = waiting
        self._monotonic = monotonic
        self._expected = self._skipped = self._to_skip = 0
        self._until = 0.0
        self._is_watched = False
        self._all_are_back = threading.Lock()
        self._all_are_back.acquire()

    # --- waking

    def add(self, woken: threading.Lock) -> None:
        """Add the thread that sleeps on ``woken``, and has its answer now."""
        self.to_wake.append(woken)

    def remove(self, woken: threading.Lock | None) -> None:
        """Remove a thread that does not sleep any more. If it was woken, wake the next one."""
        if woken is not None and woken in self.to_wake:
            self.to_wake.remove(woken)
        else:
            self.wake_next()

    def wake_next(self) -> None:
        """Wake one thread."""
        try:
            self.to_wake.popleft().release()
        except IndexError:
            return  # there is none, or another thread was quicker

    def wake_some(self, chains: int = CHAINS) -> None:
        """Wake some threads, each of which wakes others."""
        for _ in range(chains):
            if not self.to_wake:
                return
            self.wake_next()

    def is_awake(self) -> None:
        """Hear of a thread that was woken: it wakes the next one, unless it is watched."""
        if not self._is_watched:
            self.wake_next()

    # --- coming back

    def turn_ended(self, mine: bool) -> None:
        """Wake those that a turn has answered, and expect all of them back.

        Args:
            mine: whether the thread that drives is among them.
        """
        # The thread that drives next does not sleep, and is not counted.
        self._expected = len(self._waiting) + len(self.to_wake) + mine - 1
        missing = self._expected - len(self._waiting)
        if missing > 0:
            self._until = self._monotonic() + (missing + 1) * RETURN_SECONDS
        if self.to_wake:
            self.wake_some(CHAINS if self._to_skip else 1)

    @property
    def are_expected(self) -> bool:
        """Return whether some of them are not back yet."""
        return len(self._waiting) < self._expected

    def is_back(self) -> None:
        """Hear of a thread that is about to sleep again."""
        if not self._is_watched:
            return
        if len(self._waiting) < self._expected:
            self.wake_next()
            return
        self._is_watched = False
        with suppress(RuntimeError):  # another thread was quicker
            self._all_are_back.release()

    def wait(self) -> None:
        """Wait until all of them are back, as the thread that is to drive."""
        if self._to_skip:
            self._to_skip -= 1
        elif self._monotonic() < self._until:
            self._watch()
            if not self.are_expected:
                self._skipped //= 2
            else:
                self._skipped = self._to_skip = min(2 * self._skipped + 1, MOST_TURNS_SKIPPED)
        self._expected = 0

    def _watch(self) -> None:
        self._is_watched = True
        try:
            while self.are_expected and (left := self._until - self._monotonic()) > 0:
                back = len(self._waiting)
                in_time = self._all_are_back.acquire(timeout=min(left, PATIENCE_SECONDS))
                if not in_time and len(self._waiting) <= back:
                    return
        finally:
            self._is_watched = False
            self.wake_some()
