"""Synchronous forms of coroutine methods, and the runner of their coroutines in a thread.

A class in the synchronous form has ``_core``, the object in the asyncio form, and ``_blocking``,
the sender that runs coroutines in the calling thread. A method that only passes on is one line::

    class Queue:
        pause = blocking(asynchronous.Queue.pause)
        claim = owning(asynchronous.Queue.claim, _own)  # messages in the synchronous form

Type checkers see the arguments of the asyncio form, and so do ``help`` and ``inspect.signature``.
They see the result type of the synchronous form.

The runner awaits objects that a thread can wait for.

An interrupt (``KeyboardInterrupt``, or an error raised by the handler of a signal) comes between
any two instructions of this thread. It may come while the coroutine is suspended and nothing waits
for it yet. It must be raised in the coroutine all the same. Otherwise the things that the coroutine
holds are not given back, and a generator that it awaits is "already running" when it is closed.

Another thread may end the wait, too (:class:`WaitHandle`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    suppress,
)
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from postroom.client.sender import BlockingSender, WaitEnded, WaitHandle
from postroom.errors import Error

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1
"""The time within which a pause notices that it was ended, in seconds."""


class Sleep:
    """A pause of the calling thread, which an event ends, or a :class:`WaitHandle`."""

    def __init__(self, stopped: threading.Event, seconds: float) -> None:
        self._stopped = stopped
        self._until = time.monotonic() + seconds
        self._ended = False

    def wait(self) -> None:
        """Block until the time is over."""
        while not self._ended and (left := self._until - time.monotonic()) > 0:
            if self._stopped.wait(min(left, LOOK_SECONDS)):
                return

    def end_wait(self, error: BaseException) -> None:
        """End the pause."""
        del error
        self._ended = True

    def __await__(self) -> Generator[Sleep, None, None]:
        yield self


def run_blocking(coroutine: Coroutine[Any, Any, T], waiter: WaitHandle | None = None) -> T:
    """Run ``coroutine`` to its end, and block whenever it waits: it yields objects with ``wait``.

    Args:
        coroutine: the coroutine to run.
        waiter: by which another thread can end a wait.
    """
    inner: Any = coroutine  # a built-in one, which tells its frame
    interrupt: BaseException | None = None
    waiting: Any = None
    while True:
        try:
            waiting = inner.send(None) if interrupt is None else inner.throw(interrupt)
            interrupt = None
            while True:
                if waiter is not None:
                    waiter.waits_for(waiting)
                waiting.wait()
                waiting = inner.send(None)
        except StopIteration as stop:
            interrupt = None  # its traceback refers to this frame
            result: T = stop.value
            return result
        except BaseException as error:
            interrupt = None
            if inner.cr_frame is None:  # it has ended with this
                raise
            if type(error) is AttributeError and not hasattr(waiting, "wait"):
                error = TypeError(
                    "this thread has no event loop, and what is awaited here needs one: use "
                    "postroom.aio, or a plain function; nothing was changed"
                )
            interrupt = error


C = TypeVar("C", bound=Callable[..., Any])
CoreT = TypeVar("CoreT")
P = ParamSpec("P")
S = TypeVar("S")


class SyncForm(Generic[CoreT]):
    """An object in the synchronous form: its core is the object in the asyncio form."""

    __slots__ = ("_blocking", "_core")

    def __init__(self, sender: BlockingSender, core: CoreT) -> None:
        self._blocking = sender
        self._core = core


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


def entering(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[Any, P], AbstractContextManager[T]]:
    """Return the form for ``with`` of a method whose result is for ``async with``."""
    name = method.__name__

    @contextmanager
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        manager = getattr(self._core, name)(*args, **kwargs)
        entered: T = self._blocking.run(manager.__aenter__())
        try:
            yield entered
        finally:
            self._blocking.run(manager.__aexit__(None, None, None))

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
        self._waiter = WaitHandle()
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
