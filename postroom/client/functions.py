"""Functions of users: the one place that says whether a call of one has run.

A call of a function does not always run it. A generator function, or a coroutine function behind a
decorator, returns at once and has done nothing. A caller that took this for success would
acknowledge work that never ran. Every caller of a user's function (``run``, ``transactional``,
tasks, hooks, ``ready``) asks here:

* before the first call, :func:`check`: a function whose calls can never run anything is refused;
* after each call, :func:`completed` or :func:`completed_in_thread`: an awaitable is awaited, and
  anything else that still has to run is refused. None of it has run then. An iterator may run a
  function for each item, so all of them are refused, except files.

Codecs are no such functions: what they return is checked as a value.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from functools import partial
from inspect import (
    isasyncgenfunction,
    isawaitable,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from types import FunctionType, MethodType
from typing import Any, ClassVar, Final, NoReturn

from postroom.client.blocking import run_blocking

AT_REST: Final = frozenset({
    type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset,
})  # fmt: skip
"""Types of results that have nothing left to run: this check, made after every call, is cheap."""
_LAZY: Final = (
    Iterator,
    AsyncIterator,
    concurrent.futures.Future,
    contextlib.ContextDecorator,
    contextlib.AsyncContextDecorator,
)
_CALLS: Final = (FunctionType, MethodType, partial)


class Plain:
    """The result of a plain call, which explains in an ``await`` expression that it needs none.

    Attributes:
        plain_call: the call, and what is to be done instead.
    """

    __slots__ = ()
    plain_call: ClassVar[str]

    def __await__(self) -> NoReturn:
        raise TypeError(f"{self.plain_call}; nothing was changed by 'await'")


NOTHING_AWAITED: Final = "object NoneType can't be used in 'await' expression"
PLAIN_CALLS: Final = (
    "Postroom: in a transaction put, delete, enqueue_message, enqueue_update, when_done, "
    "acknowledge, reject, reschedule, cancel, postpone and bury are plain calls, also with "
    "asyncio: they only gather what the commit sends. Leave out the 'await'; nothing was changed."
)


def explain_await(error: BaseException | None) -> None:
    """Add a note to an error that the ``await`` of a plain call has caused."""
    if type(error) is TypeError and str(error) == NOTHING_AWAITED:
        error.add_note(PLAIN_CALLS)


def name_of(function: Any) -> str:
    """Return the name of a function, for errors."""
    target = _without_partial(function)
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return name if isinstance(name, str) else type(target).__qualname__


def check(function: Any, what: str, *arguments: str) -> None:
    """Check a function when it is registered, instead of failing at each call.

    Args:
        function: the user's function.
        what: its role, for errors, such as "a task".
        arguments: the names of its arguments; none: they are not known yet.

    Raises:
        TypeError: no call of it runs anything, or it cannot be called with ``arguments``.
    """
    called_as = f"f({', '.join(arguments)})"
    if not callable(function):
        shown = f" {called_as}" if arguments else ""
        raise TypeError(f"{what} is a function{shown}, not {type(function).__name__}")
    name, target = name_of(function), _without_partial(function)
    if isinstance(target, type):
        raise TypeError(
            f"{name} is a class: calling it makes an object, and runs no work; {what} is a "
            "function, a method, or an object with __call__"
        )
    for each in (target, getattr(target, "__call__", None)):  # noqa: B004 - not whether there is one
        if isgeneratorfunction(each) or isasyncgenfunction(each):
            raise TypeError(
                f"{name} is a generator function: calling it makes a generator, and runs nothing "
                f"of it; {what} returns or is awaited, so remove the yield"
            )
    if arguments:
        _check_arguments(function, name, what, arguments, called_as)


def check_quickly(function: Any, what: str) -> None:
    """Check a function that is called at once: its result tells whether it is a generator function.

    Args:
        function, what: see :func:`check`.
    """
    if type(function) is not FunctionType and type(function) is not MethodType:
        check(function, what)


def _check_arguments(
    function: Any, name: str, what: str, arguments: tuple[str, ...], called_as: str
) -> None:
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # a function written in C may not tell
        return
    try:
        parameters.bind(*arguments)
    except TypeError as error:
        takes = ", ".join(parameters.parameters)
        raise TypeError(
            f"{name}({takes}) cannot be called as {called_as}, so it is not {what}: {error}"
        ) from None


def is_asynchronous(function: Any) -> bool:
    """Return whether calls of a function certainly make coroutines.

    ``False``: only the result of a call tells. A plain decorator around a coroutine function looks
    like any other function.
    """
    target = _without_partial(function)
    return iscoroutinefunction(target) or iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


def _without_partial(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


# --- results


def is_pending(result: Any) -> bool:
    """Return whether the result of a call must be awaited before the call has run."""
    if type(result) in AT_REST or isinstance(result, Plain):
        return False
    return isawaitable(result)


def at_rest(result: Any, function: Any, *, callables: bool = False) -> Any:
    """Return the result of a call that is not to be awaited, if it has run.

    Args:
        result: what the call returned.
        function: the function that was called.
        callables: whether to refuse functions, too. A value may be one; the end of a task is not.

    Raises:
        TypeError: it still has to run. Nothing of it has.
    """
    if type(result) in AT_REST:
        return result
    is_lazy = isinstance(result, _LAZY) and not isinstance(result, io.IOBase)
    if not is_lazy and not (callables and isinstance(result, _CALLS)):
        return result
    if isinstance(result, Generator):
        result.close()
    elif isinstance(result, concurrent.futures.Future):
        result.cancel()
    raise TypeError(
        f"{name_of(function)} returned {_named(result)}, which still has to run: it would "
        "be dropped, so its transaction is rolled back. Run it inside the function, and return "
        "what comes of it (of a scan: list(...))"
    )


def _named(result: Any) -> str:
    """Return the name of a result that has not run, for errors."""
    if isinstance(result, AsyncGenerator):
        return "an asynchronous generator"
    return f"a {type(result).__name__}"


async def completed(result: Any, function: Any, *, callables: bool = False) -> Any:
    """Return the final result of a call, on an event loop: an awaitable is awaited.

    Args:
        result, function, callables: see :func:`at_rest`.

    Raises:
        TypeError: what was returned, or awaited, still has to run.
    """
    while is_pending(result):
        before, result = result, await result
        if result is before:
            break
    return at_rest(result, function, callables=callables)


def completed_in_thread(result: Any, function: Any) -> Any:
    """Return the final result of a call in a thread without an event loop.

    Raises:
        TypeError: it still has to run; or it waits for something that needs an event loop.
    """
    if type(result) in AT_REST:
        return result
    return run_blocking(completed(result, function))
