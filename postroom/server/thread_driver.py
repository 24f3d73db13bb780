"""A driver of a node for many threads, by *flat combining*.

The method is from Hendler et al. (SPAA 2010); LevelDB's writers use it, too.

A thread that finds no other one driving drives, for itself and for all that have queued up. When
its own answer is there it hands over to a waiting thread. A single thread thereby never waits for
another one, and sixteen share syncs (:mod:`.answered_threads`). One background thread drives only
work for which no thread waits.

::

    threads ──submit──▶ [lock] queue ──prepare──▶ [no lock] write + sync ──▶ [lock] finish ──▶
                                                  other threads run and queue up
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from postroom.client.blocking import Sleep, run_blocking
from postroom.client.routing.local import AnyParts
from postroom.client.sender import post, taken_back_by
from postroom.errors import CommitUnknown, DatabaseClosed, Error
from postroom.kv.engine import WriteSet
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import CommitTransaction, Value
from postroom.server.answered_threads import AnsweredThreads
from postroom.server.drivers import CLOSED, Answer, NodeDriver, end_with_error
from postroom.server.node import UPKEEP_SECONDS, Node

T = TypeVar("T")

IDLE_SECONDS: Final = 3600.0


class _ThreadAnswer(Answer):
    """An answer for which one thread waits, which may have to drive meanwhile."""

    __slots__ = ("drive",)

    def __init__(self, driver: ThreadDriver, request: Any, timeout_seconds: float | None) -> None:
        self._driver = driver
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.urgent = True
        self.token = self.within = None
        self.cancelled = False
        self.done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self.drive = False
        self.woken: threading.Lock | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Set the answer. Called under the driver's lock."""
        if self.done:  # its wait was ended just before
            return
        self._result = result
        self._error = error
        self.done = True
        if self.woken is not None:
            self._driver.will_wake(self, self.woken)

    def wait(self) -> None:
        """Block until the answer is there."""
        self._driver.wait_for(self)

    def end_wait(self, error: BaseException) -> None:
        """Raise ``error`` in the thread that waits, unless the answer is about to come."""
        self._driver.end_wait(self, error)

    def __await__(self) -> Generator[_ThreadAnswer, None, Any]:
        if not self.done:
            try:
                yield self  # the runner of the coroutine waits
            except BaseException:  # an interrupt: in ``wait``, before it or after it
                self._driver.give_up(self)
                raise
        if self._error is not None:
            return (yield from end_with_error(self))
        return self._result


class ThreadDriver(NodeDriver):
    """A driver of a node for any number of threads; a ``BlockingSender`` for their clients."""

    def __init__(self, node: Node, randomness: random.Random) -> None:
        super().__init__(node, randomness)
        self._lock = threading.Lock()
        self._driving = False
        self._prepared: WriteSet | None = None
        self._driven_by: _ThreadAnswer | None = None
        self._in_turn = False
        self._broken: Error | None = None
        self._waiting: dict[_ThreadAnswer, None] = {}
        self._answered = AnsweredThreads(self._waiting, node.monotonic)
        self._let_go = False
        self._is_entered = self._is_woken = False
        self._stopped = threading.Event()
        self._attention = threading.Condition(self._lock)
        self._deadline: float | None = None
        self._asleep_until = 0.0
        node.on_wake = self._on_wake
        self._background = threading.Thread(target=self._upkeep, name="postroom", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        with self._lock:
            self.node.start()
        self._background.start()

    # --- a sender

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Send ``request``, and return its answer. Commits in one range do without the lock."""
        if self._closed:
            raise DatabaseClosed(self._refusal)
        answer = _ThreadAnswer(self, request, timeout_seconds)
        if type(request) is not CommitTransaction or not self._replicas.submit_commit(answer):
            with self._signals, self._lock:
                self._replicas.submit(answer)
                self._answered.wake_next()  # it may have freed what others wait for
                if answer.done and self.node.wants_turn():
                    self._call_background(0.0)
        return answer

    def send_to_any(
        self, request: Any, narrowed: list[Any], timeout_seconds: float | None
    ) -> Awaitable[Any]:
        """Return the first answer to one of several requests, for parts of one."""
        answer = _ThreadAnswer(self, request, timeout_seconds)
        with self._signals, self._lock:
            AnyParts(self._replicas.submit, self._replicas.cancel).ask(answer, narrowed)
            self._answered.wake_next()
        return answer

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the node, as a part of it that has a thread of its own, such as a server.

        A turn is taken for all that the part asks for.
        """
        with self._signals, self._lock:
            self._is_entered = True
            yield
            self._answered.wake_next()  # it may have freed what others wait for
            if (self._is_woken or self.node.wants_turn()) and not self._let_go:
                self._call_background(0.0)

    def try_get(self, key: bytes) -> Value | None:
        """Return the newest value of ``key``, if it is known without the lock."""
        return None if self._closed else self._replicas.try_get(key)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep for a number of seconds."""
        return Sleep(self._stopped, seconds)

    def now(self) -> int:
        """Return a new timestamp."""
        with self._signals, self._lock:
            if self._closed:
                raise DatabaseClosed(self._refusal)
            return self.node.clock.read()

    def look(self, read: Callable[[Node], T]) -> T:
        """Return what ``read`` tells of the node, which does nothing else meanwhile."""
        with self._signals, self._lock:
            if self._closed:
                raise DatabaseClosed(self._refusal)
            return read(self.node)

    run = staticmethod(run_blocking)

    def forked(self) -> None:
        """Refuse all requests in the child of a fork: node and folder are the parent's.

        The lock is replaced: a thread of the parent may have held it.
        """
        self._lock = threading.Lock()
        self._let_go = True
        super().forked()

    async def close(self) -> None:
        """Finish the requests under way, and close the node; idempotent.

        After an interrupt another call goes on where it was.
        """
        if self._let_go:
            return
        try:
            with self._lock:
                self._closed = True
                self._attention.notify()
            self._stopped.set()
            self._background.join()
            self._drive_until_quiet()
        finally:
            self._let_node_go()

    def _let_node_go(self) -> None:
        """Close the node, also after an interrupt, when no thread is within a turn."""
        self._background.join()
        with self._signals, self._lock:
            self._await_driver()
            if not self._let_go:
                self._let_go = True
                self.node.close(DatabaseClosed(CLOSED))
            self._answered.wake_next()

    # --- waiting and driving

    def wait_for(self, answer: _ThreadAnswer) -> None:
        """Block until ``answer`` is there, driving the node if no other thread does.

        A thread that is interrupted gives the answer up.
        """
        deadline = None
        if answer.timeout_seconds is not None:
            deadline = self.monotonic() + answer.timeout_seconds
        if not self._driving:
            with self._signals:  # a handler that raises would leave the lock taken
                if self._take_over(answer, at_once=True):
                    self._drive(answer)  # the usual case: no lock to be woken by is needed
            if answer.done:
                return
        while self._sleep_or_drive(answer, deadline):
            with self._signals:
                self._drive(answer)

    def give_up(self, answer: _ThreadAnswer) -> None:
        """Give up ``answer`` after an interrupt of its wait, and undo it if it has come."""
        with self._signals:
            self._take_back(answer)

    def _take_back(self, answer: _ThreadAnswer) -> None:
        self._leave(answer)
        request = taken_back_by(self, answer.request, answer._result)
        if request is not None:
            post(self, request)
            with self._lock:
                self._call_background(0.0)  # no thread waits for it, and drives

    def end_wait(self, answer: _ThreadAnswer, error: BaseException) -> None:
        """End the wait for ``answer`` from another thread.

        The wait for a commit is not ended: it is answered soon, and its outcome would be unknown
        otherwise.
        """
        with self._lock:
            if answer.done or type(answer.request) is CommitTransaction:
                return
            self._replicas.cancel(answer)
            answer.complete(None, error)
            self._answered.wake_next()

    def _leave(self, answer: _ThreadAnswer) -> None:
        """End the wait for ``answer`` after an interrupt.

        If its thread drives, or is to, another one must. A turn that is left half-way cannot be
        continued: the node stops.
        """
        with self._lock:
            self._wake_no_more(answer)
            if self._driven_by is answer:
                self._break_off()
            if not answer.done:
                self._replicas.cancel(answer)

    def _wake_no_more(self, answer: _ThreadAnswer) -> None:
        """Forget a waiting thread that does not sleep any more. Called under the lock.

        If it was woken, it now wakes the next one.
        """
        woken, answer.woken = answer.woken, None
        self.forget(answer)
        self._answered.remove(woken)

    def _break_off(self) -> None:
        """Stop driving for good, as the thread that drives. Called under the lock."""
        self._prepared = None
        if self._in_turn:
            self._in_turn = False
            self._broken = self.node.break_off()
            for other in list(self._waiting):
                self._break(other)
        self._hand_over(wanted=self.node.wants_turn())
        self._answered.wake_some()

    def _break(self, answer: _ThreadAnswer) -> None:
        """End ``answer``, if the node has stopped half-way: it may not know of it."""
        error: Error | None = self._broken
        if answer.done or error is None:
            return
        if type(answer.request) is CommitTransaction:
            error = CommitUnknown(str(error))
        answer.complete(None, error)

    def will_wake(self, answer: _ThreadAnswer, woken: threading.Lock) -> None:
        """Queue the thread that sleeps on ``woken``, and has its answer. Called under the lock."""
        self.forget(answer)
        self._answered.add(woken)

    def forget(self, answer: _ThreadAnswer) -> None:
        """Forget ``answer``, which needs no waking any more. Called under the lock."""
        self._waiting.pop(answer, None)

    def _sleep_or_drive(self, answer: _ThreadAnswer, deadline: float | None) -> bool:
        """Sleep until ``answer`` is there, its time is over, or this thread must drive.

        This thread announces its sleep before it checks whether a thread drives. A thread that
        stops driving announces that before it checks whether a thread sleeps. One of them therefore
        always sees the other, and the lock is needed only when no thread drives.

        Returns:
            Whether this thread must drive.
        """
        answer.drive = False
        answer.woken = woken = threading.Lock()
        woken.acquire()
        self._waiting[answer] = None
        self._answered.is_back()
        if not self._driving:
            with self._signals:
                if self._take_over(answer):
                    return True
        if answer.done:
            self.forget(answer)
            # The answer may have come between the two; then this thread must wake the next one.
            self._answered.wake_next()
            return False
        left = -1.0
        if deadline is not None:
            left = min(max(deadline - self.monotonic(), 0.0), threading.TIMEOUT_MAX)
        in_time = woken.acquire(timeout=left)
        self._answered.is_awake()
        if not in_time:
            self._withdraw(answer)
        return answer.drive

    def _take_over(self, answer: _ThreadAnswer, *, at_once: bool = False) -> bool:
        """Return whether this thread must drive, as no thread seemed to.

        Args:
            answer: its answer.
            at_once: whether to prepare the turn, unless other threads are expected to share it.
        """
        with self._lock:
            if self._let_go and not answer.done:
                answer.complete(None, DatabaseClosed(self._refusal))
            if self._broken is not None:
                self._break(answer)
            if answer.done or self._driving or not self.node.wants_turn():
                return False
            if not at_once:
                self.forget(answer)
            self._driven_by = answer
            self._driving = True
            if at_once and not self._answered.are_expected:
                self._prepare()
            return True

    def _withdraw(self, answer: _ThreadAnswer) -> None:
        """Withdraw a request whose answer did not come in time."""
        with self._signals, self._lock:
            self._wake_no_more(answer)
            if answer.drive:
                self._hand_over(wanted=self.node.wants_turn())
            answer.drive = False
            if not answer.done and self._replicas.cancel(answer):
                answer.complete(None, DeadlineExceeded())

    def _drive(self, answer: _ThreadAnswer) -> None:
        """Take turns until ``answer`` is there or nothing wants one, then hand over.

        The lock is taken once a turn: it covers the end of one and the beginning of the next.
        """
        answer.woken = None
        if self._prepared is None:
            if self._answered.are_expected:
                self._answered.wait()
            with self._lock:
                self._prepare()
        while not self._write_and_finish(answer):
            pass

    def _prepare(self) -> None:
        """Do the first part of a turn, as the thread that drives. Called under the lock."""
        self._deadline = None
        self._is_woken = False
        self._in_turn = True
        self._prepared = self.node.prepare()

    def _write_and_finish(self, answer: _ThreadAnswer | None) -> bool:
        """Do the rest of the turn that is prepared.

        If ``answer`` is there, or nothing wants another turn, this hands over. Otherwise it
        prepares the next turn.

        Returns:
            Whether this thread has handed over.
        """
        staged, self._prepared = self._prepared, None
        assert staged is not None
        error = self.node.write(staged)
        with self._lock:
            self.node.finish(error)
            self._in_turn = False
            if self._waiting or self._answered.to_wake:
                self._answered.turn_ended(answer is not None and answer.done)
            wanted = self.node.wants_turn()
            if answer is None or answer.done or not wanted:
                self._hand_over(wanted=wanted)
                return True
            self._prepare()
            return False

    def _hand_over(self, *, wanted: bool) -> None:
        """Let a waiting thread drive next, or none. Called under the lock by the thread that drove.

        Args:
            wanted: whether another turn is wanted.
        """
        self._driving = False
        self._driven_by = None
        # Commits come without the lock. One may have come since ``wanted`` was computed, and its
        # thread may have gone to sleep because another one drove.
        if wanted or (self._waiting and self.node.wants_turn()):
            for following in list(self._waiting):
                if following.woken is not None and not following.done:
                    self.forget(following)
                    self._driven_by = following
                    self._driving = True
                    following.drive = True
                    woken, following.woken = following.woken, None  # it is woken once
                    woken.release()
                    return
        if self.node.tasks.is_urgent or self._is_woken:  # no thread waits for it
            self._call_background(0.0)
        self._shorten_sleep()

    def _shorten_sleep(self) -> None:
        """Wake the background thread in time for the next deadline, since no thread drives.

        It is woken only if it sleeps for longer. Called under the lock.
        """
        until = self._asleep_until
        if until:
            deadline = self.node.next_deadline(until)
            if deadline is not None and deadline < until:
                self._attention.notify()

    def _drive_until_quiet(self) -> None:
        with self._lock:
            self._await_driver()
            if not self.node.wants_turn():
                return
            self._driving = True
        try:
            with self._signals:
                while self.node.wants_turn():
                    self.node.turn()
        finally:
            self._driving = False

    def _await_driver(self) -> None:
        """Wait until no thread drives. Called under the lock."""
        while self._driving:
            self._attention.wait(UPKEEP_SECONDS)

    # --- work for which no thread waits

    def _on_wake(self, urgent: bool) -> None:
        """Have a turn taken: by the sender of an urgent request, which waits, or in the background.

        A part that has entered the node sends urgent requests, too, and no thread waits for these.
        Called under the lock if it is not urgent.
        """
        if not urgent:
            self._call_background(0.0 if self.node.hurries() else UPKEEP_SECONDS)
        elif self._is_entered:
            self._is_woken = True

    def _call_background(self, seconds: float) -> None:
        """Have the background thread drive after a time at the latest. Called under the lock."""
        now, until = self.monotonic(), self._asleep_until
        due = now + seconds
        if self._deadline is None or due < self._deadline:
            self._deadline = due
            if due < until or 0.0 < until < now:  # a clock that was moved: it sleeps by another one
                self._attention.notify()

    def _upkeep(self) -> None:
        """Take turns for timers and services, as the background thread.

        A turn that raises what must not happen is left half-way, as by an interrupt. The node then
        stops, and no thread waits for ever for the end of the turn.
        """
        drives = False
        try:
            while True:
                with self._lock:
                    if not self._await_work():
                        return
                    self._driving = drives = True
                    self._prepare()
                self._write_and_finish(None)
                drives = False
        except BaseException:
            if drives:
                with self._lock:
                    self._break_off()
            raise

    def _await_work(self) -> bool:
        """Wait until a turn is due that no thread drives; return false when closed.

        Called under the lock.
        """
        while not self._closed:
            now, due = self.monotonic(), self._next_due()
            if due is not None and due <= now and not self._driving:
                return True
            until = max(now + IDLE_SECONDS if due is None else due, now + UPKEEP_SECONDS)
            self._asleep_until = until
            self._attention.wait(until - now)
            self._asleep_until = 0.0
        return False

    def _next_due(self) -> float | None:
        deadlines = (self._deadline, self.node.next_deadline())
        return min((each for each in deadlines if each is not None), default=None)
