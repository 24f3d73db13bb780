"""The sessions of a node that threads drive, as a server on an event loop uses them.

A session is a part of its node: its calls, and those of the node to it, happen one at a time. The
threads that drive the node hold its lock then. The server's thread therefore takes the lock for
each call of a session, and has a turn taken for what it has asked for. The news that there is
output comes from a thread that drives. It is handed to the loop, which takes the output later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TypeAlias

from postroom.errors import Error
from postroom.server.cluster.access import WRITER, Access
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions

Entered: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A function that returns the context in which the calling thread has the node for itself."""


class LockedSessions:
    """The sessions of a node that threads drive.

    Args:
        sessions: the sessions.
        entered: enters the node.
        loop: the loop of the server.
    """

    def __init__(
        self, sessions: Sessions, entered: Entered, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sessions = sessions
        self._entered = entered
        self._loop = loop

    def open(
        self, peer: str, on_output: Callable[[], None], access: Access = WRITER
    ) -> LockedSession:
        """Open a stream; see :meth:`.Sessions.open`."""

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed, and the stream with it
                self._loop.call_soon_threadsafe(on_output)

        with self._entered():
            return LockedSession(self._sessions.open(peer, tell, access), self._entered)

    def refused(self, who: str, reason: str) -> None:
        """Note a client that was not let in, for the audit log."""
        with self._entered():
            self._sessions.refused(who, reason)

    def look(self) -> None:
        """Cut off each client that has taken none of its answers for long."""
        with self._entered():
            self._sessions.look()

    def end_all(self, reason: Error) -> None:
        """End all streams."""
        with self._entered():
            self._sessions.end_all(reason)


class LockedSession:
    """A stream of a client; see the module."""

    def __init__(self, session: Session, entered: Entered) -> None:
        self._session = session
        self._entered = entered

    @property
    def reading(self) -> bool:
        """Return whether the server may read on."""
        with self._entered():
            return self._session.reading

    @property
    def ended(self) -> bool:
        """Return whether the server is to close the stream once everything was taken."""
        return self._session.ended

    def received(self, frame: bytes) -> None:
        """Take a frame that has come in."""
        with self._entered():
            self._session.received(frame)

    def take(self) -> bytes | None:
        """Return the next frame to send, or `None`."""
        with self._entered():
            return self._session.take()

    def close(self) -> None:
        """Forget what it waits for: the stream is over."""
        with self._entered():
            self._session.close()
