"""Writing the log and the state of one turn: one after the other, or beside each other.

Both wait for the device or for C code, without the interpreter's lock, so a thread can fill the
state while the log is synced. The turn ends when both are done; nothing of the next one has begun
by then. Handing over to a thread costs more than writing a few keys does: small turns do without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

Work = Callable[[], None]

KEYS_MIN: Final = 4096
"""With fewer keys the state is written by the thread that has the turn.

Measured with some 400 keys a batch: handing it over and back takes more processor time (450 µs: the
threads wait for each other's turn at the interpreter, and on two cores each key is fetched twice)
than there is to be gained, which is what the engine does without the interpreter (200 µs).
"""


class Beside(Protocol):
    """Who carries out the two halves of a write."""

    def both(self, log: Work, state: Work, keys: int) -> None:
        """Do both, in any order or at once.

        Args:
            log: writes the log, and waits for the device.
            state: writes the state.
            keys: how many keys the state gets.

        Raises:
            Exception: what one of them has raised.
        """

    def later(self, work: Work) -> None:
        """Do something that nobody waits for; it raises nothing."""

    def close(self) -> None:
        """Finish what is under way."""


class InOrder:
    """One after the other, without a thread: the log first, so that what fails there is nowhere."""

    def both(self, log: Work, state: Work, keys: int) -> None:
        """As the protocol says."""
        del keys
        log()
        state()

    def later(self, work: Work) -> None:
        """As the protocol says."""
        work()

    def close(self) -> None:
        """As the protocol says."""


class StateThread:
    """A thread that writes the state; it is made when it is first needed."""

    def __init__(self) -> None:
        self._wanted = threading.Lock()
        self._wanted.acquire()
        self._done = threading.Lock()
        self._done.acquire()
        self._work: Work | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._others: list[threading.Thread] = []

    def both(self, log: Work, state: Work, keys: int) -> None:
        """As the protocol says."""
        if keys < KEYS_MIN:
            log()
            state()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="postroom state", daemon=True)
            self._thread.start()
        self._work = state
        self._wanted.release()
        try:
            log()
        finally:
            self._done.acquire()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def later(self, work: Work) -> None:
        """As the protocol says: in a thread of its own, for it may take long."""
        self._others = [each for each in self._others if each.is_alive()]
        thread = threading.Thread(target=work, name="postroom log", daemon=True)
        self._others.append(thread)
        thread.start()

    def close(self) -> None:
        """As the protocol says."""
        if self._thread is not None:
            self._work = None
            self._wanted.release()
            self._thread.join()
            self._thread = None
        for thread in self._others:
            thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            work = self._work
            if work is None:
                return
            try:
                work()
            except BaseException as error:  # the thread that has the turn raises it
                self._error = error
            self._done.release()
