"""Failed attempts of tasks: their outcomes, the options and hooks for them, and their reports.

The function of a task decides about its message by the exceptions ``Reject`` and ``Discard``. Every
end of a call has an outcome, with a reason. This is also true of an error that cannot be converted
to text, and of one that asks for an invalid delay.

Failures are reported to the log, and to the hooks of tasks and workers.

* The first failure of each task and type of error is logged with its traceback, from the user's
  function on. Later ones are counted, and each minute one line a kind says how many there were.
* A dead letter is a line of its own, which says "dead" and names the command that revives it.
* Hooks are called when the outcome is stored, which they cannot change. A hook that raises, or
  takes too long, is logged.

The amount that is logged, and remembered, is bounded: the texts of failures come from others.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.client import arguments, functions
from postroom.client.worker.calling import Callee, FunctionCaller
from postroom.client.worker.supervision import log
from postroom.counted import counted
from postroom.log_once import shown


class Reject(Exception):
    """A request to try this message again; the writes of the function are rolled back.

    Args:
        reason: kept with the message as ``last_error``.
        delay: seconds, or a ``timedelta``; ``None``: the queue's back-off, 0: at once.
    """

    reason: Any = ""
    delay: Any = None

    def __init__(self, reason: str = "", *, delay: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


class Discard(Exception):
    """A request not to try this message again; the writes of the function are rolled back.

    The message becomes a dead letter.

    Args:
        reason: kept with it.
    """

    reason: Any = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ResultRefused(Discard):
    """The end of an attempt whose result cannot be kept; its message becomes a dead letter."""


class Outcome(NamedTuple):
    """The outcome of a failed attempt, for its message.

    Attributes:
        reason: kept with it.
        delay: seconds until the next attempt; ``None``: by the back-off.
        dead: whether there is no next attempt.
    """

    reason: str
    delay: float | None = None
    dead: bool = False


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception of a function asks for."""
    if isinstance(error, Discard):
        return Outcome(text_of(error.reason) or "discarded by its function", dead=True)
    if not isinstance(error, Reject):
        return Outcome(told(error))
    reason = text_of(error.reason) or "rejected by its function"
    try:
        return Outcome(reason, arguments.seconds(error.delay, "delay"))
    except Exception as other:
        return Outcome(f"{reason} ({told(other)})")


def told(error: BaseException) -> str:
    """Return the type of an error and its text; converting it cannot fail."""
    name = type(error).__name__
    text = " ".join(map(text_of, (error, *getattr(error, "__notes__", ()))))
    return arguments.shortened(f"{name}: {text}" if text else name)


def text_of(what: Any) -> str:
    """Return ``str(what)``, cut to what may be kept; if that fails, a text about the failure."""
    try:
        return arguments.reason(what)
    except BaseException as error:  # its type is all that can be told
        return f"it cannot be told ({type(error).__name__})"


TIMEOUT_SECONDS: Final = 3600.0
"""The default for how many seconds the function of a task may run."""

Hook: TypeAlias = Callable[[Any, Exception, int], Any]
"""A function of a message, the exception that ended an attempt, and the number of that attempt."""


class Hooks(NamedTuple):
    """The functions that are told of failures.

    Attributes:
        on_failure: told of each attempt that has failed.
        on_dead: told of each message that has died of it.
    """

    on_failure: Hook | None
    on_dead: Hook | None


class Options(NamedTuple):
    """The options of a task.

    Attributes:
        concurrency: how many messages, or keys, at a time, by one worker.
        max_attempts: after how many failed attempts a message is dead; ``None``: the queue's
            number; for an inbox: never.
        timeout: seconds that the function may run; ``None``: any number.
        on_failure: told of each attempt that has failed.
        on_dead: told of each message that has died of it.
        keep_result: seconds for which a result is kept; 0: none is.
    """

    concurrency: int
    max_attempts: int | None
    timeout: float | None = TIMEOUT_SECONDS
    on_failure: Hook | None = None
    on_dead: Hook | None = None
    keep_result: float = 0.0

    def checked(self) -> Options:
        """Return these options, checked.

        Raises:
            TypeError, ValueError: one of them is not valid.
        """
        arguments.count(self.concurrency, "concurrency")
        if self.max_attempts is not None:
            arguments.count(self.max_attempts, "max_attempts")
        check_hooks(on_failure=self.on_failure, on_dead=self.on_dead)
        keep_result = arguments.kept_seconds(self.keep_result)
        return self._replace(timeout=arguments.timeout(self.timeout), keep_result=keep_result)


def check_hooks(**hooks: Hook | None) -> None:
    """Check functions that are told of failures.

    Raises:
        TypeError: one cannot be called with a message, an exception and a number.
    """
    for name, hook in hooks.items():
        if hook is not None:
            functions.check(hook, name, "message", "exception", "attempt")


SUM_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 3600.0
"""The time after which a kind of failure is logged with its traceback again, in seconds."""
KINDS_REMEMBERED: Final = 1000
DEAD_LINES: Final = 1000
"""The number of dead letters a minute that have lines of their own."""
HOOK_SECONDS: Final = 60.0
_CALLERS: Final = frozenset({"postroom", "asyncio", "concurrent"})
"""The packages whose calls lead to a user's function."""


class Failure(NamedTuple):
    """A failed attempt.

    Attributes:
        message: the message, in its asyncio form.
        name: the name of the message, for the log.
        attempt: its number, from 1 on.
        error: how it ended.
        revive: how the message is revived, if it is dead; empty: it is not dead.
    """

    message: Any
    name: str
    attempt: int
    error: Exception
    revive: str = ""


class _Kind:
    """The failures of one task with one type of error."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self.at = 0.0


class FailureLog:
    """The log of failures of one worker.

    Args:
        monotonic: returns the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._dead = 0
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, task: str, failure: Failure) -> None:
        """Log that an attempt of a task has failed, or count it."""
        error, now = failure.error, self._monotonic()
        kind = self._kinds.pop((task, type(error).__name__), None)
        is_new = kind is None or now - kind.at > AGAIN_SECONDS
        kind = kind or _Kind()
        self._kinds[task, type(error).__name__] = kind
        kind.at = now
        if is_new:
            line = f"{failure.name} has failed (attempt {failure.attempt}): {shown(told(error))}"
            if isinstance(error, Reject | Discard):
                log.warning("%s: %s", task, line)
            else:
                _log_with_traceback(task, line, error)
        else:
            kind.count += 1
            kind.last = f"{failure.name}: {shown(told(error))}"
        if len(self._kinds) > KINDS_REMEMBERED:
            oldest = next(iter(self._kinds))
            self._sum_up(oldest, self._kinds.pop(oldest))
        if failure.revive:
            self._died(task, failure)
        self._wake()

    def _died(self, task: str, failure: Failure) -> None:
        self._dead += 1
        if self._dead <= DEAD_LINES:
            log.error(
                "%s: %s is dead after %s: %s; %s",
                task, failure.name, counted(failure.attempt, "attempt"), shown(told(failure.error)),
                failure.revive,
            )  # fmt: skip

    def hook_failed(self, task: str, name: str, error: BaseException) -> None:
        """Log that a hook has failed: the outcome of the attempt is not changed."""
        line = f"its hook {name} has failed, which changes nothing: {shown(told(error))}"
        _log_with_traceback(task, line, error)

    def _wake(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SUM_SECONDS, self._minute)

    def _minute(self) -> None:
        self._timer = None
        any_counted = False
        for name, kind in self._kinds.items():
            any_counted = any_counted or kind.count > 0
            self._sum_up(name, kind)
        if self._dead > DEAD_LINES:
            more = self._dead - DEAD_LINES
            log.error("%s dead", counted(more, "more message is", "more messages are"))
        if any_counted or self._dead:
            self._wake()
        self._dead = 0

    def _sum_up(self, name: tuple[str, str], kind: _Kind) -> None:
        if kind.count:
            log.warning(
                "%s: %s failed with %s; the last: %s", name[0],
                counted(kind.count, "more attempt has", "more attempts have"), name[1], kind.last,
            )  # fmt: skip
            kind.count = 0

    def close(self) -> None:
        """Log what was counted and not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._minute()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Failures:
    """The reports of the failures of one task.

    Args:
        task: its name in the log.
        caller: calls the hooks.
        log_of_worker: where failures are logged.
        options: the options of the task, whose hooks are called.
        hooks: the worker's hooks, which are called after those of the task.
    """

    def __init__(
        self,
        task: str,
        caller: FunctionCaller,
        log_of_worker: FailureLog,
        options: Options,
        hooks: Hooks,
    ) -> None:
        self._task = task
        self._caller = caller
        self._log = log_of_worker
        self._on_failure = _hooks("on_failure", options.on_failure, hooks.on_failure)
        self._on_dead = _hooks("on_dead", options.on_dead, hooks.on_dead)

    async def tell(self, failure: Failure) -> None:
        """Log a failure whose outcome is stored, and call the hooks."""
        self._log.failed(self._task, failure)
        for name, hook in self._on_failure:
            await self._call(name, hook, failure)
        for name, hook in self._on_dead if failure.revive else ():
            await self._call(name, hook, failure)

    async def _call(self, name: str, hook: Callee, failure: Failure) -> None:
        calling = asyncio.create_task(
            self._caller.call_hook(hook, failure.message, failure.error, failure.attempt)
        )
        try:
            done, _ = await asyncio.wait({calling}, timeout=HOOK_SECONDS)
            error = calling.exception() if done else None
        finally:
            calling.cancel()
        if not done:
            self._caller.lose(calling)
            error = TimeoutError(f"it ran for more than {HOOK_SECONDS:g} s")
        if error is not None:
            self._log.hook_failed(self._task, name, error)


def _log_with_traceback(task: str, line: str, error: BaseException) -> None:
    """Log an error. Its text may be anything: characters that a log cannot show are escaped."""
    told_of = (type(error), error, user_calls(error))
    lines = "".join(traceback.format_exception(*told_of)).splitlines()
    if all(each.isprintable() for each in lines):
        log.warning("%s: %s", task, line, exc_info=told_of)
    else:
        escaped = "\n".join(shown(each) for each in lines)
        log.warning("%s: %s\n%s", task, line, escaped)


def user_calls(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error without the calls that lead to the user's function.

    If no call in it is the user's, return all of it.
    """
    at = calls = error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _CALLERS:
            return at
        at = at.tb_next
    return calls


def _hooks(name: str, *given: Hook | None) -> list[tuple[str, Callee]]:
    return [(name, Callee(each)) for each in given if each is not None]
