"""Synchronous forms of coroutine methods: the same name, arguments, errors and documentation.

A class in the synchronous form has ``_core``, the object in the asyncio form, and ``_blocking``,
the sender that runs coroutines in the calling thread. A method that only passes on is one line::

    class Queue:
        pause = blocking(asynchronous.Queue.pause)
        claim = owning(asynchronous.Queue.claim, _own)  # messages in the synchronous form

Type checkers see the arguments of the asyncio form, and so do ``help`` and ``inspect.signature``.
They see the result type of the synchronous form.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from postroom.client.run_blocking import WaitEnded, Waiter
from postroom.client.sender import BlockingSender
from postroom.errors import Error

C = TypeVar("C", bound=Callable[..., Any])
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the form of a coroutine method that the calling thread runs to its end."""
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
    """Return the blocking form of a method; ``own`` makes the synchronous form of its result."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        sender = self._blocking
        return own(sender, sender.run(getattr(self._core, name)(*args, **kwargs)))

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return the form with a plain iterator of a method that returns an asynchronous one."""
    return iterating_own(method, _as_it_is)


def closable(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iteration[T]]:
    """Return the form with an iterator that any thread may close."""
    return closable_own(method, _as_it_is)


def closable_own(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
    own: Callable[[BlockingSender, T], S],
) -> Callable[Concatenate[Any, P], Iteration[S]]:
    """Return the closable form; ``own`` makes the synchronous form of each item."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iteration[S]:
        items: AsyncIterator[T] = getattr(self._core, name)(*args, **kwargs)
        return Iteration(self._blocking, items, own)

    return _telling_of_iterator(method, call)


def iterating_own(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
    own: Callable[[BlockingSender, T], S],
) -> Callable[Concatenate[Any, P], Iterator[S]]:
    """Return the form with a plain iterator; ``own`` makes the synchronous form of each item."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
        sender = self._blocking
        found: AsyncIterator[T] = getattr(self._core, name)(*args, **kwargs)
        return (own(sender, each) for each in iterate(sender, found))

    return _telling_of_iterator(method, call)


def _telling_of_iterator(method: Callable[..., Any], call: C) -> C:
    """Have ``help`` say ``Iterator``, since the iterator is no asynchronous one any more."""
    told = inspect.signature(method)
    items = str(told.return_annotation).partition("[")[2].removesuffix("]").removesuffix(", None")
    call.__signature__ = told.replace(return_annotation=f"Iterator[{items}]")  # type: ignore[attr-defined]
    return call


def _as_it_is(sender: BlockingSender, item: T) -> T:
    del sender
    return item


class Iteration(Iterator[S]):
    """An iterator over items that are waited for, one by one.

    Any thread may close it: then a waiting thread gets no further item.

    Args:
        sender: runs the coroutines of the items.
        items: the items, in their asyncio form.
        own: makes the synchronous form of an item.
    """

    def __init__(
        self, sender: BlockingSender, items: AsyncIterator[T], own: Callable[[BlockingSender, T], S]
    ) -> None:
        self._sender = sender
        self._items = items
        self._own: Callable[[BlockingSender, Any], S] = own
        self._waiter = Waiter()
        self._lock = threading.Lock()  # held by the thread that waits, or ends it
        self._closed = False
        self._ended = False

    def __next__(self) -> S:
        with self._lock:
            if self._closed:
                self._end()
                raise StopIteration
            try:
                item = self._sender.run(_next(self._items), self._waiter)
            except (StopAsyncIteration, WaitEnded):
                self._closed = True
                self._end()
                raise StopIteration from None
            except BaseException:
                self._closed = True
                self._end()
                raise
        if self._is_closed():
            self.close()
        return self._own(self._sender, item)

    def close(self) -> None:
        """End the iteration: a waiting thread gets no further item.

        Messages that were claimed and not handed out are given back.
        """
        self._closed = True
        self._waiter.end(WaitEnded())
        if self._lock.acquire(blocking=False):  # else the waiting thread ends it
            try:
                self._end()
            finally:
                self._lock.release()

    def _is_closed(self) -> bool:
        """Return whether it is closed now: another thread may have closed it."""
        return self._closed

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._sender.run(_close(self._items))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not (self._ended or sys.is_finalizing()):
            with suppress(Error):
                self.close()


def iterate(sender: BlockingSender, items: AsyncIterator[T]) -> Iterator[T]:
    """Return ``items`` one by one; they are closed with the generator."""
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


__all__ = [
    "Iteration",
    "blocking",
    "closable",
    "closable_own",
    "iterate",
    "iterating",
    "iterating_own",
    "owning",
]
