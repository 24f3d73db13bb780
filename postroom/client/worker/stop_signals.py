"""The stop of a worker by SIGTERM and SIGINT: the first one lets it finish, the second one ends it.

Python runs handlers of signals in the main thread, between two steps of its work. If a signal comes
when the main thread is about to block (a task on the loop calls ``time.sleep``), it is handled when
that call returns. Two signals that come together may both wait for that, and the process does not
end. But the interpreter writes each signal to a socket as soon as it comes
(``signal.set_wakeup_fd``). A thread reads there, and counts::

    signal ─┬─ the interpreter writes its number at once ───────────────┬─▶ the thread counts:
            └─ the handler writes, when the main thread comes to run it ─┘   1: stop, 2: end

Each signal is counted once, though it is written twice: the larger of both counts is used. The
handler's count is needed if other code replaces the socket, as ``loop.add_signal_handler`` does.
Numbers that would have gone to the earlier socket are handed on to it.

A function that keeps Python's global lock for ever keeps the thread from counting.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

LAST_SECONDS: Final = 0.8
"""The time within which a process ends whose worker was told to stop twice, in seconds."""

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
_HANDLED: Final = 0
"""The byte that the handler writes; the numbers of signals begin at 1."""
_READ_BYTES: Final = 4096


@contextmanager
def stopped_by_signals(
    stop: Callable[[], None], forget_lost: Callable[[], None], *, wanted: bool
) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop a run, if this is the main thread.

    The second one ends the process within a second: messages in work are given back. This may fail:
    a function keeps the loop from running, or the store does not answer. Then the process ends all
    the same, and prints where it was.

    Args:
        stop: stops the run; it is called on the run's loop for each signal.
        forget_lost: called at the end if there were two signals.
        wanted: whether signals are to stop it.
    """
    global _watch  # noqa: PLW0603 - signals are those of the process
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _watch = _watch or _Watch()
    watched = watch.add(stop)
    try:
        yield
    finally:
        if watched.count >= 2:
            forget_lost()
        if watch.remove(watched) and _watch is watch:
            _watch = None


class _Watched:
    """A run that signals stop.

    Attributes:
        count: how many signals have come since it began.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.count = 0

    def told(self) -> None:
        """Count another signal, and stop the run."""
        self.count += 1
        with suppress(RuntimeError):  # the loop is closed, and the run has ended
            self._loop.call_soon_threadsafe(self._stop)
        if self.count == 2:
            faulthandler.dump_traceback_later(LAST_SECONDS, exit=True)


class _Watch:
    """A counter of the process's signals, for all runs that they stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[_Watched] = []
        self._came = self._handled = self._told = 0
        self._is_over = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._handlers = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        self._descriptor = self._writer.fileno()
        self._before = signal.set_wakeup_fd(self._descriptor, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="postroom-signals", daemon=True)
        self._thread.start()

    def add(self, stop: Callable[[], None]) -> _Watched:
        """Have signals stop a run from now on."""
        watched = _Watched(stop)
        with self._lock:
            self._runs.append(watched)
        return watched

    def remove(self, watched: _Watched) -> bool:
        """Forget a run that has ended; after the last one restore all and return true."""
        if self._is_over:
            return True
        with self._lock:
            self._runs.remove(watched)
            if all(each.count < 2 for each in self._runs):
                faulthandler.cancel_dump_traceback_later()
            if self._runs:
                return False
        self._bring_back()
        self._writer.close()
        self._thread.join()
        return True

    def forked(self) -> None:
        """Leave the signals of this process, a child of the one with the worker, alone."""
        self._is_over = True
        signal.set_wakeup_fd(-1)
        self._bring_back()
        self._writer.close()
        self._reader.close()

    def _bring_back(self) -> None:
        found = signal.set_wakeup_fd(-1)
        back = self._before if found == self._descriptor else found
        if back != -1 and not self._is_over:
            with suppress(OSError, ValueError):  # it is closed by now
                signal.set_wakeup_fd(back)
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: object) -> None:
        with suppress(OSError):  # it is full, or closed
            self._writer.send(bytes([_HANDLED]))

    def _listen(self) -> None:
        with self._reader:
            while written := self._reader.recv(_READ_BYTES):
                self._hand_on(written)
                with self._lock:
                    self._count(written)

    def _count(self, written: bytes) -> None:
        self._came += sum(map(written.count, map(int, _NUMBERS)))
        self._handled += written.count(_HANDLED)
        while self._told < max(self._came, self._handled):
            self._told += 1
            for each in self._runs:
                each.told()

    def _hand_on(self, written: bytes) -> None:
        numbers = written.replace(bytes([_HANDLED]), b"")
        if numbers and self._before != -1:
            with suppress(OSError):
                os.write(self._before, numbers)


_watch: _Watch | None = None
_masks = threading.local()


def _before_fork() -> None:
    """Hold signals back until the child has let go of what it shares with its parent."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS) if _watch else None


def _after_fork() -> None:
    before = getattr(_masks, "before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    global _watch
    watch, _watch = _watch, None
    if watch is not None:
        watch.forked()
    _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
