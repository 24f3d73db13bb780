"""``@transactional``: functions that run in a transaction, or join the one they are given.

The idea, and the name, are those of FoundationDB's Python layers: a function that takes a
transaction composes with others that do; given a database instead, it runs by itself, with retries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from postroom.client import sync
from postroom.client.database import Database

P = ParamSpec("P")
R = TypeVar("R")


def transactional(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Makes ``function(tx, ...)`` accept a ``Database`` for ``tx``.

    Called with a database it runs in a transaction of its own, with retries (``Database.run``);
    called with a transaction it joins it. Works on coroutine functions with the asyncio forms.
    """
    if iscoroutinefunction(function):

        @functools.wraps(function)
        async def join_or_run_async(first: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, Database):
                return await first.run(function, *args, **kwargs)
            return await function(first, *args, **kwargs)

        return cast("Callable[Concatenate[Any, P], R]", join_or_run_async)

    @functools.wraps(function)
    def join_or_run(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, sync.Database | Database):
            return first.run(function, *args, **kwargs)
        return function(first, *args, **kwargs)

    return cast("Callable[Concatenate[Any, P], R]", join_or_run)
