"""The options of ``@worker.task`` and ``@worker.inbox``: how messages are worked off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.client import arguments, functions

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
    """

    concurrency: int
    max_attempts: int | None
    timeout: float | None = TIMEOUT_SECONDS
    on_failure: Hook | None = None
    on_dead: Hook | None = None

    def checked(self) -> Options:
        """Return these options, checked.

        Raises:
            TypeError, ValueError: one of them is not valid.
        """
        arguments.count(self.concurrency, "concurrency")
        if self.max_attempts is not None:
            arguments.count(self.max_attempts, "max_attempts")
        check_hooks(on_failure=self.on_failure, on_dead=self.on_dead)
        return self._replace(timeout=arguments.timeout(self.timeout))


def check_hooks(**hooks: Hook | None) -> None:
    """Check functions that are told of failures.

    Raises:
        TypeError: one cannot be called with a message, an exception and a number.
    """
    for name, hook in hooks.items():
        if hook is not None:
            functions.check(hook, name, "message", "exception", "attempt")


__all__ = ["TIMEOUT_SECONDS", "Hook", "Hooks", "Options", "check_hooks"]
