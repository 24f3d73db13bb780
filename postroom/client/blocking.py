"""Synchronous forms of coroutine methods: the same name, arguments, errors and documentation.

A class in the synchronous form has ``_core``, the object in the asyncio form, and ``_blocking``,
the sender that runs coroutines in the calling thread. A method that only passes on is one line::

    class Queue:
        pause = blocking(asynchronous.Queue.pause)
        claim = owning(asynchronous.Queue.claim, _own)  # messages in the synchronous form

Type checkers see the arguments of the asyncio form, and so do ``help`` and ``inspect.signature``;
what is answered they see as it is here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from postroom.client.sender import BlockingSender

if TYPE_CHECKING:
    from postroom.client import sync_transaction, transaction

C = TypeVar("C", bound=Callable[..., Any])
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The form of a coroutine method that the calling thread runs to its end."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._blocking.run(getattr(self._core, name)(*args, **kwargs))
        return result

    return call


def owning(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    own: Callable[[BlockingSender, T], S],
) -> Callable[Concatenate[Any, P], S]:
    """The same of a method whose result has a synchronous form of its own, which ``own`` makes."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        sender = self._blocking
        return own(sender, sender.run(getattr(self._core, name)(*args, **kwargs)))

    return call


def blocking_in(
    method: Callable[Concatenate[Any, transaction.Transaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, sync_transaction.Transaction, P], T]:
    """The same of a method whose first argument is a transaction, which is a synchronous one."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, tx: sync_transaction.Transaction, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._blocking.run(getattr(self._core, name)(tx._core, *args, **kwargs))
        return result

    return call  # type: ignore[return-value]  # checkers know ``tx`` by its position alone


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The form of a method that answers an asynchronous iterator: it answers a plain one."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(self._blocking, getattr(self._core, name)(*args, **kwargs))

    return _telling_of_iterator(method, call)


def iterating_own(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
    own: Callable[[BlockingSender, T], S],
) -> Callable[Concatenate[Any, P], Iterator[S]]:
    """The same if what it iterates over has a synchronous form of its own."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
        sender = self._blocking
        found: AsyncIterator[T] = getattr(self._core, name)(*args, **kwargs)
        return (own(sender, each) for each in iterate(sender, found))

    return _telling_of_iterator(method, call)


def _telling_of_iterator(method: Callable[..., Any], call: C) -> C:
    """``help`` says ``Iterator`` of what is no asynchronous one any more."""
    told = inspect.signature(method)
    items = str(told.return_annotation).partition("[")[2].removesuffix("]").removesuffix(", None")
    call.__signature__ = told.replace(return_annotation=f"Iterator[{items}]")  # type: ignore[attr-defined]
    return call


def iterate(sender: BlockingSender, items: AsyncIterator[T]) -> Iterator[T]:
    """``items`` one by one; closed with the generator."""
    try:
        while True:
            try:
                item = sender.run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        sender.run(_close(items))


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


__all__ = ["blocking", "blocking_in", "iterate", "iterating", "iterating_own", "owning"]
