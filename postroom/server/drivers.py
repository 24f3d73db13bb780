"""The parts of both drivers of a node: state, answers, and the deferral of signal handlers.

Python runs handlers in the main thread, between any two of its steps, and their exceptions
(``KeyboardInterrupt``, a time-out) are raised there. A turn that is left half-way cannot be
continued. During a turn of the main thread, a handler that only takes note therefore replaces each
of them. Afterwards the handlers are back, and run if their signals have come::

    enter ── signal ─▶ noted ─ ... ─▶ exit ── handlers are back, run, and may raise

Other threads run no handlers, and pay for a comparison. Blocking signals would not do: another
thread would take the signal, and its handler would run in the main thread all the same.

Setting handlers takes system calls, in each turn. The handlers of asyncio stay where they are: that
of ``asyncio.Runner`` cancels the main task and raises nothing. A second control-C makes it raise,
which ends the event loop, and everything that uses the store on it.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - passed in, as an instance
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, Final, TypeVar

from postroom.client.routing.local import CAME_BACK, send_returned
from postroom.client.sender import TransactionIds, raise_error
from postroom.kv import forks
from postroom.limits import REQUEST_SECONDS
from postroom.ranges.calls import Call
from postroom.ranges.requests import CLIENT_ID_BYTES
from postroom.server.node import Node

T = TypeVar("T")

CLOSED: Final = "the database was closed; nothing was changed: open it again"
FORKED: Final = forks.refusal("opened", "open one")
"""The refusal of requests that come in the child of a fork."""


class Answer(Call):
    """An answer that is awaited once. Subclasses for drivers say how a waiting sender is woken.

    Each transaction makes a few of them. For speed, a subclass sets all the attributes itself, and
    has ``complete`` and ``__await__`` as one step each.

    Attributes:
        done: whether the answer is there. It is set last: another thread may look, without a lock.
        sent_again: how often the request was sent before; set only if it was.
        timeout_seconds: how long to wait for it; ``None``: for ever.
        woken: wakes the waiting sender; ``None``: no sender waits yet.
    """

    __slots__ = ("_driver", "_error", "_result", "done", "sent_again", "timeout_seconds", "woken")


def end_with_error(answer: Any) -> Generator[Any, None, Any]:
    """Raise the error of an answer, unless the request has come back: then send it again.

    Returns:
        The answer of another range, or of several.
    """
    # The error that is raised is no variable here: it would refer to itself through its traceback.
    if not isinstance(answer._error, CAME_BACK):
        raise_error(answer)
    return (yield from send_returned(answer._driver, answer, _taken_error(answer)).__await__())


def _taken_error(answer: Any) -> BaseException:
    error: BaseException = answer._error
    answer._error = None
    return error


_signal: Any = import_module("_signal")
getsignal, set_handler, get_ident = _signal.getsignal, _signal.signal, threading.get_ident
# The functions of ``signal`` make an enumeration of each number first: a hundred times slower.

_NAMES: Final = (
    "SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGVTALRM",
    "SIGPROF", "SIGCHLD", "SIGBREAK",
)  # fmt: skip
"""The signals for which programs have handlers of their own."""

_NUMBERS: Final = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))

_NONE: Final[Mapping[int, Any]] = {}

_OF_LOOPS: Final = getattr(getattr(asyncio, "unix_events", None), "_sighandler_noop", None)
"""The handler of the signals that an event loop handles: it does nothing, the loop is woken."""


class DeferredSignals:
    """A context that defers handlers; see the module.

    It is used by one thread at a time, and may be entered again within.
    """

    __slots__ = ("_depth", "_found", "_handlers", "_main", "_note", "_noted", "_wanted")

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._found: tuple[Any, ...] = ()  # the handlers seen last; _wanted has those to defer
        self._wanted: Mapping[int, Any] = _NONE
        self._handlers: Mapping[int, Any] = _NONE
        self._noted: dict[int, FrameType | None] = {}
        self._note = self._noted.__setitem__

    def __enter__(self) -> None:
        if get_ident() == self._main:
            if not self._depth:
                found = tuple(map(getsignal, _NUMBERS))
                if found != self._found:
                    self._found, self._wanted = found, self._to_put_aside(found)
                if self._wanted:
                    self._defer()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() == self._main:
            self._depth -= 1
            if self._handlers and not self._depth:
                self._let_go()

    def _defer(self) -> None:
        """Put the handlers aside. One of them may still run, and raise, meanwhile."""
        try:
            self._handlers = self._wanted
            for number in self._wanted:
                set_handler(number, self._note)
        except BaseException:
            self._bring_back()
            raise

    def _to_put_aside(self, found: tuple[Any, ...]) -> Mapping[int, Any]:
        """Return the handlers that may raise, by the numbers of their signals."""
        pairs = zip(_NUMBERS, found, strict=True)
        return {
            number: handler
            for number, handler in pairs
            if callable(handler) and handler is not self._note and not _is_of_asyncio(handler)
        }

    def _let_go(self) -> None:
        """Bring the handlers back, also if one of them raises meanwhile, and run those noted."""
        handlers = self._handlers
        try:
            self._bring_back()
        except BaseException:
            self._bring_back()
            raise
        while self._noted:
            number, frame = self._noted.popitem()
            handlers[number](number, frame)

    def _bring_back(self) -> None:
        for number, handler in self._handlers.items():
            set_handler(number, handler)
        self._handlers = _NONE


def _is_of_asyncio(handler: Any) -> bool:
    """Return whether a handler is that of a runner, or of ``loop.add_signal_handler``."""
    if isinstance(handler, partial):
        function = getattr(handler.func, "__func__", None)
        return function is not None and function is getattr(asyncio.Runner, "_on_sigint", None)
    return handler is not None and handler is _OF_LOOPS


class NodeDriver:
    """The driver of a node, as far as both of them are alike; a sender for the clients there.

    Args:
        node: the node.
        randomness: for ids of transactions, and for pauses.
    """

    def __init__(self, node: Node, randomness: random.Random) -> None:
        self.node = node
        self.random = randomness
        self.next_id = TransactionIds(randomness.randbytes(CLIENT_ID_BYTES)).draw
        self.patience_seconds = REQUEST_SECONDS
        self.ranges = node.replicas.known
        self.range_of: Callable[[bytes], int] | None = None
        self.monotonic = node.monotonic
        self._signals = DeferredSignals()
        self._closed = False
        self._refusal = CLOSED
        self._replicas = node.replicas
        forks.mind(self)

    def range_id(self, key: bytes) -> int:
        """Return the id of the range of a key; 0: it is not known."""
        replica = self._replicas.by_key(key)
        return 0 if replica is None else replica.range_id

    def span_of(self, key: bytes) -> tuple[bytes, bytes | None] | None:
        """Return the span of the range of a key; ``None``: it is not known, or all keys."""
        replica = self._replicas.by_key(key)
        if replica is None or replica.bounds.is_whole:
            return None
        return replica.bounds.start, replica.bounds.end

    def now(self) -> int:
        """Return a new timestamp."""
        raise NotImplementedError

    def look(self, read: Callable[[Node], T]) -> T:
        """Return what ``read`` tells of the node, which does nothing else meanwhile.

        Any thread may look. It waits for the node, for ever if that hangs.

        Raises:
            DatabaseClosed: the node is closed.
        """
        raise NotImplementedError

    def is_here(self) -> bool:
        """Return whether the calling thread is the one that the node needs."""
        return False

    def reading(self) -> int:
        """Return a cheap timestamp of about now, or a new one before the clock has begun.

        It is below the clock's timestamps after a restart.
        """
        return self.node.clock.lasting() or self.now()

    def forked(self) -> None:
        """Refuse all requests in the child of a fork: node and folder are the parent's."""
        self._closed, self._refusal = True, FORKED
        forks.keep_for_ever(self.node)
