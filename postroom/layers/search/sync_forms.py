"""Synchronous forms of the layer: a coroutine of the asyncio form, run by the calling thread.

A synchronous object has ``_core``, the object in the asyncio form, and ``_database``, the database
whose :meth:`wait` runs its coroutines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import postroom
    from postroom import aio

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the form of a coroutine method that the calling thread runs to its end."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._database.wait(getattr(self._core, name)(*args, **kwargs))
        return result

    return call


def blocking_in(
    method: Callable[Concatenate[Any, aio.Transaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, postroom.Transaction, P], T]:
    """Return the blocking form of a method whose first argument is a synchronous transaction."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, tx: postroom.Transaction, *args: P.args, **kwargs: P.kwargs) -> T:
        work = getattr(self._core, name)(tx.core, *args, **kwargs)
        result: T = self._database.wait(work)
        return result

    return call  # type: ignore[return-value]  # checkers know ``tx`` by its position alone


__all__ = ["blocking", "blocking_in"]
