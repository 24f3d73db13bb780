"""``@transactional``: functions that run in a transaction, or join the one they are given.

The idea, and the name, are those of FoundationDB's Python layers. A function that takes a
transaction composes with others that do; given a database instead, it runs by itself, with retries.

The two forms do not mix, and type checkers see it: a function on :class:`postroom.Transaction` runs
on :class:`postroom.Database`, a coroutine function on the asyncio forms of both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from postroom.client import sync
from postroom.client.database import CoreDatabase
from postroom.client.functions import (
    at_rest,
    check,
    completed,
    completed_in_thread,
    is_asynchronous,
    is_pending,
    name_of,
)
from postroom.client.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")


@overload
def transactional(
    function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Transaction | CoreDatabase, P], Coroutine[Any, Any, R]]: ...
@overload
def transactional(
    function: Callable[Concatenate[sync.Transaction, P], R],
) -> Callable[Concatenate[sync.Transaction | sync.CoreDatabase, P], R]: ...
def transactional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``function(tx, ...)`` accept a ``Database`` for ``tx``.

    Called with a database it runs in a transaction of its own, with retries (``Database.run``);
    called with a transaction it joins it. Works on coroutine functions with the asyncio forms.

    Args:
        function: its first argument is the transaction.

    Returns:
        The function, for a ``Database`` or a ``Transaction``.

    Raises:
        TypeError: it is a generator function, or a class. A call raises it if the result of
            ``function`` still has to run.

    Examples:
        >>> @postroom.transactional
        ... def count(tx, key):
        ...     return tx.increment(key)
        >>> count(db, b"visits")
        1
        >>> with db.begin() as tx:
        ...     count(tx, b"visits")
        2
    """
    check(function, "a transactional function")
    if is_asynchronous(function):

        @functools.wraps(function)
        async def join_or_run_async(first: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, CoreDatabase):
                return await first.run(function, *args, **kwargs)
            if isinstance(first, sync.CoreDatabase | sync.Transaction):
                raise TypeError(
                    f"{name_of(function)} is a coroutine function: give it a database or a "
                    "transaction of postroom.aio; nothing was changed"
                )
            return await completed(function(first, *args, **kwargs), function)

        return join_or_run_async

    @functools.wraps(function)
    def join_or_run(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, sync.CoreDatabase | CoreDatabase):
            return first.run(function, *args, **kwargs)
        result = function(first, *args, **kwargs)
        if not isinstance(first, Transaction):
            return completed_in_thread(result, function)
        return completed(result, function) if is_pending(result) else at_rest(result, function)

    return join_or_run
