"""The serving of an embedded store to other programs of its user, at a socket in the file system.

::

    application ── Database ──▶ driver ──▶ node ◀── sessions ◀── socket ◀── command line, Spark

It is the node of the application, with the sessions that a node of a cluster has. An application on
an event loop serves on that loop. One without has a thread for the server, whose sessions take the
lock of the driver (:mod:`postroom.server.cluster.locked_sessions`). The folder names the socket
(:mod:`postroom.kv.folder`), so that other programs find it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from postroom.errors import Error, Invalid, Unavailable
from postroom.kv import forks
from postroom.kv.folder import forget_served, note_served
from postroom.limits import SERVED_CONNECTIONS_MAX
from postroom.protocol.addresses import UNIX, path_in
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.locked_sessions import LockedSessions
from postroom.server.cluster.native_server import NativeServer, ServedSessions
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from postroom.server.loop_thread import LoopThread
from postroom.server.thread_driver import ThreadDriver

LOOK_SECONDS: Final = 1.0
SOCKET_FILE: Final = "socket"


class LocalSessions(ServedSessions, Protocol):
    """The sessions of an embedded node, as its server uses them."""

    def look(self) -> None:
        """Cut off each client that has taken none of its answers for long."""

    def end_all(self, reason: Error) -> None:
        """End all streams."""


class LocalServer:
    """The server of an embedded store; see the module. Make it on the event loop that it runs on.

    Args:
        address: the address of the socket, ``unix:PATH``.
        folder: the folder of the store; ``None``: it is in memory.
        sessions: the sessions of its node.
    """

    def __init__(self, address: str, folder: Path | None, sessions: LocalSessions) -> None:
        self._address = address
        self._folder = folder
        self._sessions = sessions
        security = Security(None)
        nodes = NodesService(security, lambda: SelfDescription(b"", (), None))
        self._server = NativeServer(address, security, nodes, SERVED_CONNECTIONS_MAX)
        self._server.sessions = sessions
        self._looking: asyncio.Task[None] | None = None
        forks.mind(self)

    async def open(self) -> None:
        """Begin to serve.

        Raises:
            Invalid, AccessDenied, Unavailable: there can be no socket.
        """
        self._server.bind()
        try:
            if self._folder is not None:
                note_served(self._folder, self._address)
            self._server.open()
        except BaseException:
            self._server.stop()
            raise
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """End all streams, and delete the socket; idempotent."""
        looking, self._looking = self._looking, None
        if looking is None:
            return
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        if self._folder is not None:
            forget_served(self._folder)
        self._sessions.end_all(Unavailable("the store was closed; nothing was changed"))
        await asyncio.sleep(0)
        await self._server.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._sessions.look()

    def forked(self) -> None:
        """Close the socket in the child of a fork: the parent serves there."""
        self._looking = None
        self._server.let_go()


def address_of(serve: str, path: str | Path, memory: str) -> str:
    """Return the address of the socket that an application asks for.

    Args:
        serve: ``unix:PATH``, or ``unix:`` for a socket in the folder.
        path: the folder of the store.
        memory: the path that stands for a store in memory.

    Raises:
        TypeError, ValueError, Invalid: there can be no such socket.
    """
    if not isinstance(serve, str):
        raise TypeError(f'serve is "unix:" or "unix:PATH", not {type(serve).__name__}')
    if not serve.startswith(UNIX):
        raise ValueError(
            f'serve is "unix:" or "unix:PATH", not {serve!r}: to serve over a network, run '
            "'postroom serve', and connect to it"
        )
    if serve == UNIX:
        if str(path) == memory:
            raise Invalid('a store in memory has no folder for a socket: give serve="unix:PATH"')
        serve = f"{UNIX}{Path(path) / SOCKET_FILE}"
    address = f"{UNIX}{Path(path_in(serve)).absolute()}"
    path_in(address)  # it may be too long now
    return address


async def serve_on_loop(driver: AsyncioDriver, address: str, folder: Path | None) -> LocalServer:
    """Serve the node of a driver on its event loop."""
    served = LocalServer(address, folder, Sessions(driver.node))
    await served.open()
    return served


class ServedInThread:
    """The server of a store that threads drive: a loop of its own, and what runs on it.

    Args:
        driver: the driver of the node, which has been started.
        address, folder: see :class:`LocalServer`.

    Raises:
        Invalid, AccessDenied: there can be no socket.
    """

    def __init__(self, driver: ThreadDriver, address: str, folder: Path | None) -> None:
        with driver.entered():
            sessions = Sessions(driver.node)
        self._thread: LoopThread | None = LoopThread("postroom-served")
        forks.mind(self)
        locked = LockedSessions(sessions, driver.entered, self._thread.loop)
        try:
            self._served = self._thread.run(self._open(address, folder, locked))
        except BaseException:
            self._thread.end()
            raise

    @staticmethod
    async def _open(address: str, folder: Path | None, sessions: LockedSessions) -> LocalServer:
        served = LocalServer(address, folder, sessions)
        await served.open()
        return served

    def close(self) -> None:
        """End all streams, and delete the socket; idempotent."""
        if self._thread is not None:
            self._thread.run(self._served.close())
            self._thread.end()
            self._thread = None

    def forked(self) -> None:
        """Forget the thread, which the child of a fork does not have."""
        self._thread = None
