"""Drives a node for many threads, by *flat combining* (Hendler et al., SPAA 2010; LevelDB's writers
do the same).

The thread that finds nobody driving drives, for itself and for all who have queued up; when its own
answer is there it hands over to one of those who wait. So a single thread never waits for another
one, and sixteen share syncs. One background thread drives only what nobody waits for.

::

    threads ──submit──▶ [lock] queue ──prepare──▶ [no lock] write + sync ──▶ [lock] finish ──▶
                                                  answers others run and queue up
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
import threading
from collections import deque
from collections.abc import Awaitable, Generator
from typing import Any, Final, TypeVar

from postroom.client.run_blocking import run_blocking
from postroom.client.sender import TransactionIds, post, raise_error, taken_back_by
from postroom.errors import CommitUnknown, DatabaseClosed, Error
from postroom.kv import forks
from postroom.kv.engine import WriteSet
from postroom.limits import REQUEST_SECONDS
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import CLIENT_ID_BYTES, CommitTransaction, Value
from postroom.server.driver_answers import CLOSED, FORKED, Answer
from postroom.server.node import UPKEEP_SECONDS, Node

T = TypeVar("T")

IDLE_SECONDS: Final = 3600.0
CHAINS: Final = 6
"""How many of those that have their answers are woken at once; each wakes the next."""


class _ThreadAnswer(Answer):
    """Waited for by one thread, which may have to drive meanwhile."""

    __slots__ = ("drive",)

    def __init__(self, driver: ThreadDriver, request: Any, timeout_seconds: float | None) -> None:
        self._driver = driver
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.urgent = True
        self.token = None
        self.cancelled = False
        self.done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self.drive = False
        self.woken: threading.Lock | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """It is here. Called under the driver's lock."""
        self._result = result
        self._error = error
        self.done = True
        if self.woken is not None:
            self._driver.will_wake(self, self.woken)

    def wait(self) -> None:
        """Block until it is there."""
        self._driver.wait_for(self)

    def __await__(self) -> Generator[_ThreadAnswer, None, Any]:
        if not self.done:
            try:
                yield self  # whoever runs the coroutine waits
            except BaseException:  # an interrupt, wherever in ``wait``, before or behind it
                self._driver.give_up(self)
                raise
        if self._error is not None:
            raise_error(self)
        return self._result


class _Sleep:
    """A pause of the calling thread, that closing the store ends."""

    def __init__(self, stopped: threading.Event, seconds: float) -> None:
        self._stopped = stopped
        self._seconds = seconds

    def wait(self) -> None:
        self._stopped.wait(self._seconds)

    def __await__(self) -> Generator[_Sleep, None, None]:
        yield self


class ThreadDriver:
    """Drives a node for any number of threads; a ``BlockingSender`` for their clients."""

    def __init__(self, node: Node, randomness: random.Random) -> None:
        self.node = node
        self.random = randomness
        self.next_id = TransactionIds(randomness.randbytes(CLIENT_ID_BYTES)).draw
        self.patience_seconds = REQUEST_SECONDS
        self._lock = threading.Lock()
        self._driving = False
        self._prepared: WriteSet | None = None
        self._driven_by: _ThreadAnswer | None = None
        self._in_turn = False
        self._broken: Error | None = None
        self._waiting: dict[_ThreadAnswer, None] = {}
        self._to_wake: deque[threading.Lock] = deque()
        self._closed = False
        self._let_go = False
        self._refusal = CLOSED
        self._stopped = threading.Event()
        self._attention = threading.Condition(self._lock)
        self._deadline: float | None = None
        self._asleep_until = 0.0
        node.on_wake = self._on_wake
        self.monotonic = node.monotonic
        self._submit = node.replicas.submit
        self._try_get = node.replicas.try_get
        self._background = threading.Thread(target=self._upkeep, name="postroom", daemon=True)
        forks.mind(self)

    def start(self) -> None:
        """Begin to serve."""
        with self._lock:
            self.node.start()
        self._background.start()

    # --- a sender

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """The answer to ``request``. Commits do without the lock, which others may hold."""
        if self._closed:
            raise DatabaseClosed(self._refusal)
        answer = _ThreadAnswer(self, request, timeout_seconds)
        if type(request) is CommitTransaction:
            self._submit(answer)
        else:
            with self._lock:
                self._submit(answer)
                self.wake_next()  # it may have freed what others wait for
                if answer.done and self.node.wants_turn():
                    self._call_background(0.0)
        return answer

    def try_get(self, key: bytes) -> Value | None:
        """The newest value of ``key``, if it is known without the lock."""
        return None if self._closed else self._try_get(key)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let a time pass."""
        return _Sleep(self._stopped, seconds)

    def now(self) -> int:
        """A timestamp."""
        with self._lock:
            if self._closed:
                raise DatabaseClosed(self._refusal)
            return self.node.clock.read()

    def reading(self) -> int:
        """About now: cheap, and below what the clock answers after a restart, if it has begun."""
        return self.node.clock.lasting() or self.now()

    run = staticmethod(run_blocking)

    def forked(self) -> None:
        """This is the child of a fork: node and folder are the parent's, and so is whichever thread
        may have held the lock.
        """
        self._lock = threading.Lock()
        self._closed, self._refusal = True, FORKED
        forks.keep_for_ever(self.node)

    async def close(self) -> None:
        """Finish what is under way; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._attention.notify()
        self._stopped.set()
        try:
            self._background.join()
            self._drive_until_quiet()
        finally:
            self._let_node_go()

    def _let_node_go(self) -> None:
        """Also after an interrupt; but no turn loses its node that another thread has begun."""
        self._background.join()
        with self._lock:
            self._await_driver()
            self.node.close()
            self._let_go = True
            self.wake_next()

    # --- waiting and driving

    def wait_for(self, answer: _ThreadAnswer) -> None:
        """Block until ``answer`` is there, driving the node if nobody else does. Whoever is
        interrupted gives it up.
        """
        deadline = None
        if answer.timeout_seconds is not None:
            deadline = self.monotonic() + answer.timeout_seconds
        if not self._driving and self._take_over(answer):
            self._drive(answer)  # as mostly: so nothing need be prepared for being woken
            if answer.done:
                return
        while self._sleep_or_drive(answer, deadline):
            self._drive(answer)

    def give_up(self, answer: _ThreadAnswer) -> None:
        """An interrupt has ended the wait for ``answer``: it is not wanted any more, and what came
        is taken back.
        """
        self._leave(answer)
        request = taken_back_by(self, answer.request, answer._result)
        if request is not None:
            post(self, request)
            with self._lock:
                self._call_background(0.0)  # nobody waits for it, and drives

    def _leave(self, answer: _ThreadAnswer) -> None:
        """An interrupt ends the wait for ``answer``. If its thread drives, or is to, somebody else
        must; but nobody can go on with a turn that is left half-way: then the node stops.
        """
        with self._lock:
            self._wake_no_more(answer)
            if self._driven_by is answer:
                self._break_off()
            if not answer.done:
                self.node.replicas.cancel(answer)

    def _wake_no_more(self, answer: _ThreadAnswer) -> None:
        """Called under the lock: its thread does not sleep any more, and is not to be handed
        anything. If it was woken, it is its turn to wake the next one.
        """
        woken, answer.woken = answer.woken, None
        self.forget(answer)
        if woken is not None and woken in self._to_wake:
            self._to_wake.remove(woken)
        else:
            self.wake_next()

    def _break_off(self) -> None:
        """Called under the lock by who drives, and will not go on."""
        self._prepared = None
        if self._in_turn:
            self._in_turn = False
            self._broken = self.node.break_off()
            for other in list(self._waiting):
                self._break(other)
        self._hand_over(wanted=self.node.wants_turn())
        self._wake_some()

    def _break(self, answer: _ThreadAnswer) -> None:
        """The node has stopped half-way, and may not know of ``answer``."""
        error: Error | None = self._broken
        if answer.done or error is None:
            return
        if type(answer.request) is CommitTransaction:
            error = CommitUnknown(str(error))
        answer.complete(None, error)

    def will_wake(self, answer: _ThreadAnswer, woken: threading.Lock) -> None:
        """The thread that sleeps on ``woken`` has its answer. Called under the lock."""
        self.forget(answer)
        self._to_wake.append(woken)

    def wake_next(self) -> None:
        """Wake one of the threads that have their answers; it wakes the next one.

        Woken all at once they would only queue up for the interpreter's lock, at a price for each.
        """
        try:
            self._to_wake.popleft().release()
        except IndexError:
            return  # nobody has, or another thread was quicker

    def _wake_some(self) -> None:
        for _ in range(CHAINS):
            if not self._to_wake:
                return
            self.wake_next()

    def forget(self, answer: _ThreadAnswer) -> None:
        """It needs no waking any more. Called under the lock."""
        self._waiting.pop(answer, None)

    def _sleep_or_drive(self, answer: _ThreadAnswer, deadline: float | None) -> bool:
        """True: this thread must drive. False: the answer is there, or its time is over.

        It says that it is about to sleep before it looks whether anybody drives; who stops driving
        says so before looking whether anybody sleeps. So one of them always sees the other, and
        the lock is needed only where nobody drives.
        """
        answer.drive = False
        answer.woken = woken = threading.Lock()
        woken.acquire()
        self._waiting[answer] = None
        if not self._driving and self._take_over(answer):
            return True
        if answer.done:
            self.forget(answer)
            # It may have been told between the two, and then it is its turn to wake the next one.
            self.wake_next()
            return False
        in_time = woken.acquire(timeout=-1 if deadline is None else self._left(deadline))
        self.wake_next()
        if not in_time:
            self._withdraw(answer)
        return answer.drive

    def _take_over(self, answer: _ThreadAnswer) -> bool:
        """Nobody seemed to drive: whether this thread must; its first turn is prepared then."""
        with self._lock:
            if self._let_go and not answer.done:
                answer.complete(None, DatabaseClosed(self._refusal))
            self._break(answer)
            if answer.done or self._driving or not self.node.wants_turn():
                return False
            self.forget(answer)
            self._driven_by = answer
            self._driving = True
            self._prepare()
            return True

    def _left(self, deadline: float) -> float:
        return min(max(deadline - self.monotonic(), 0.0), threading.TIMEOUT_MAX)

    def _withdraw(self, answer: _ThreadAnswer) -> None:
        """It did not come in time."""
        with self._lock:
            self._wake_no_more(answer)
            if answer.drive:
                self._hand_over(wanted=self.node.wants_turn())
            answer.drive = False
            if not answer.done and self.node.replicas.cancel(answer):
                answer.complete(None, DeadlineExceeded())

    def _drive(self, answer: _ThreadAnswer) -> None:
        """Turns, until ``answer`` is there or nothing wants one; then somebody else's turn.

        The lock is taken once a turn: what ends one, and what begins the next, is done under it.
        """
        answer.woken = None
        if self._prepared is None:
            with self._lock:
                self._prepare()
        while not self._write_and_finish(answer):
            pass

    def _prepare(self) -> None:
        """The first part of a turn. Called under the lock by who drives."""
        self._deadline = None
        self._in_turn = True
        self._prepared = self.node.prepare()

    def _write_and_finish(self, answer: _ThreadAnswer | None) -> bool:
        """The rest of the turn that is prepared; whether this thread has done its part.

        It has if ``answer`` is there, or nothing wants another turn: then somebody else drives, or
        nobody. If not, the next turn is prepared.
        """
        staged, self._prepared = self._prepared, None
        assert staged is not None
        error = self.node.write(staged)
        with self._lock:
            self.node.finish(error)
            self._in_turn = False
            if self._to_wake:
                self._wake_some()
            wanted = self.node.wants_turn()
            if answer is None or answer.done or not wanted:
                self._hand_over(wanted=wanted)
                return True
            self._prepare()
            return False

    def _hand_over(self, *, wanted: bool) -> None:
        """Called under the lock by who drove: one of those who wait drives next, or nobody.

        Args:
            wanted: whether a turn is.
        """
        self._driving = False
        self._driven_by = None
        # Commits come without the lock: one may have come since it was asked what is wanted, and
        # have gone to sleep, as somebody drove.
        if wanted or (self._waiting and self.node.wants_turn()):
            for following in list(self._waiting):
                if following.woken is not None and not following.done:
                    self.forget(following)
                    self._driven_by = following
                    self._driving = True
                    following.drive = True
                    following.woken.release()
                    return
        self._shorten_sleep()

    def _shorten_sleep(self) -> None:
        """Nobody drives any more: the background thread does by the deadline that the last turn has
        left, if it sleeps for longer. Called under the lock.
        """
        until = self._asleep_until
        if until:
            deadline = self.node.next_deadline()
            if deadline is not None and deadline < until:
                self._attention.notify()

    def _drive_until_quiet(self) -> None:
        with self._lock:
            self._await_driver()
            if not self.node.wants_turn():
                return
            self._driving = True
        try:
            while self.node.wants_turn():
                self.node.turn()
        finally:
            self._driving = False

    def _await_driver(self) -> None:
        """Under the lock: until nobody drives."""
        while self._driving:
            self._attention.wait(UPKEEP_SECONDS)

    # --- what nobody waits for

    def _on_wake(self, urgent: bool) -> None:
        """For a client's request: its sender will wait, and drive. Else called under the lock."""
        if not urgent:
            self._call_background(0.0 if self.node.hurries() else UPKEEP_SECONDS)

    def _call_background(self, seconds: float) -> None:
        """Called under the lock: the background thread is to drive after a time at the latest."""
        now, until = self.monotonic(), self._asleep_until
        due = now + seconds
        if self._deadline is None or due < self._deadline:
            self._deadline = due
            if due < until or 0.0 < until < now:  # a clock that was moved: it sleeps by another one
                self._attention.notify()

    def _upkeep(self) -> None:
        """The background thread: turns for timers and services. One that raises what must not
        happen is left half-way, as by an interrupt; nobody waits for ever for its end.
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
        """Under the lock: wait until a turn is due that nobody drives; false when closed."""
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
