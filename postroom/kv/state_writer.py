"""The writer of the state beside the turns: a thread, or the caller itself.

::

    turn:    evaluate │ prepare a batch │ log, synced │ evaluate │ log, synced │ ...
    thread:                             └── write it into the state ──┘ (the next may begin)

The engine writes a batch without the interpreter's lock, so a thread can do it while the log is
synced and the next turns are evaluated. Only one batch is under way: who has the next one waits.
(Filling the batch needs the lock for each key. When that was done in the thread, too, both waited
for each other's turn at the interpreter, and it took longer than without a thread. A batch of small
turns does not come here, see :mod:`.gathering`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

Work = Callable[[], None]

LOOKS_AGAIN_SECONDS: Final = 1.0
"""The time after which a waiter looks whether its batch was begun.

An interrupt can leave it half-way.
"""


class StateWriter(Protocol):
    """The writer of batches of the state, which does what a turn need not wait for."""

    def start(self, work: Work) -> None:
        """Carry out ``work``, now or later. To be called by one thread at a time.

        The work that was started before has been finished. If ``work`` raises, this method does, or
        the next :meth:`finish`.
        """

    def finish(self) -> None:
        """Wait until what was started is done, if anything was. By one thread at a time.

        Raises:
            Exception: what the work has raised.
        """

    def later(self, work: Work) -> None:
        """Do work that nobody waits for; it raises nothing."""

    def close(self) -> None:
        """Finish what is under way. Idempotent; what it raises is left to those who write next."""


class InlineStateWriter:
    """A writer that does everything at once, without a thread."""

    def start(self, work: Work) -> None:
        """Carry out ``work``."""
        work()

    def finish(self) -> None:
        """Wait until the work that was started is done."""

    def later(self, work: Work) -> None:
        """Do work that nobody waits for."""
        work()

    def close(self) -> None:
        """Close it."""


class StateWriterThread:
    """A thread that writes the state; it is made when it is first needed.

    A lock that is held stands for "nothing to be told"; releasing it wakes who waits for it. (A
    condition would do the same with twice as many changes of threads for each batch.)
    """

    def __init__(self) -> None:
        self._work: Work | None = None
        """The work that is under way; only the thread says that there is none."""
        self._wanted, self._done = threading.Lock(), threading.Lock()
        self._wanted.acquire()
        self._done.acquire()
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._others: list[threading.Thread] = []

    def start(self, work: Work) -> None:
        """Carry out ``work`` in the thread, or here if the system has no thread to give."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="postroom state", daemon=True)
            if not _starts(self._thread):
                self._thread = None
                work()
                return
        self._work = work
        _wake(self._wanted)  # whoever waited for long may have done so already

    def finish(self) -> None:
        """Wait until the work that was started is done."""
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def later(self, work: Work) -> None:
        """Do work in a thread of its own, for it may take long; or here, if there is none."""
        self._others = [each for each in self._others if each.is_alive()]
        thread = threading.Thread(target=work, name="postroom log", daemon=True)
        self._others.append(thread)
        if not _starts(thread):
            self._others.remove(thread)
            work()

    def close(self) -> None:
        """Close it."""
        if self._thread is not None:
            self._wait()
            self._is_closed = True
            _wake(self._wanted)
            if self._thread.is_alive():  # else an interrupt has kept it from being started
                self._thread.join()
            self._thread = None
        for thread in self._others:
            if thread.is_alive():
                thread.join()

    def _wait(self) -> None:
        while self._work is not None:
            if not self._done.acquire(timeout=LOOKS_AGAIN_SECONDS):
                _wake(self._wanted)  # an interrupt has kept ``start`` from it

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.acquire()
            work = self._work
            if work is None:
                continue
            try:
                work()
            except BaseException as error:  # who finishes raises it
                self._error = error
            self._work = work = None
            _wake(self._done)


def _starts(thread: threading.Thread) -> bool:
    """Start ``thread``; false if the system has none to give."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _wake(lock: threading.Lock) -> None:
    """Release ``lock``, unless that was done already. Only one thread does so with each lock."""
    if lock.locked():
        lock.release()
