"""The connections of a gateway to the store: one for each token that callers show.

::

    caller's token ──▶ connection ── known ──▶ database
                           │
                           └─ new ──▶ connect, once for all who wait ─┬─▶ database
                                                                      └─▶ error, for all of them

A connection that nobody uses is closed after a while. The nodes check the token when a connection
is made, and again whenever their files change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from postroom import aio, errors
from postroom.gateway.failures import Unauthenticated
from postroom.gateway.limits import RETRY_SECONDS, Exhausted, Limits

Connect: TypeAlias = Callable[[str | None], Awaitable[aio.Database]]
"""Connects with a token; ``None``: without, or with the gateway's own."""

IDLE_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 30.0

_log = logging.getLogger(__name__)


class StoreConnection:
    """A connection with one token.

    Attributes:
        opening: the database, once it is connected.
        users: how many calls use it.
        idle_since: when the last of them has ended, on the monotonic clock.
    """

    __slots__ = ("idle_since", "opening", "users")

    def __init__(self, opening: asyncio.Task[aio.Database]) -> None:
        self.opening = opening
        self.users = 0
        self.idle_since = time.monotonic()


class StoreConnections:
    """See the module.

    Args:
        connect: makes a connection.
        limits: how many there may be.
    """

    def __init__(self, connect: Connect, limits: Limits) -> None:
        self._connect = connect
        self._limits = limits
        self._by_token: dict[str | None, StoreConnection] = {}
        self._connecting = 0

    @asynccontextmanager
    async def use(self, token: str | None) -> AsyncGenerator[aio.Database, None]:
        """Use the database of a token: ``async with connections.use(token) as db``.

        Raises:
            Unauthenticated: the store does not know the token.
            Exhausted: there are too many connections.
            Error: it cannot be connected to.
        """
        db, connection = await self.acquire(token)
        try:
            yield db
        finally:
            self.release(connection)

    async def acquire(self, token: str | None) -> tuple[aio.Database, StoreConnection]:
        """Return the database of a token, and its connection, which must be released.

        Raises:
            Unauthenticated, Exhausted, Error: see :meth:`use`.
        """
        connection = self._by_token.get(token)
        if connection is None:
            connection = await self._made(token)
        connection.users += 1
        opening = connection.opening
        try:
            db = opening.result() if opening.done() else await asyncio.shield(opening)
        except BaseException as error:
            self.release(connection)
            if opening.done() and self._by_token.get(token) is connection:
                del self._by_token[token]
            if isinstance(error, errors.AccessDenied):
                raise Unauthenticated(str(error)) from error
            raise
        return db, connection

    def release(self, connection: StoreConnection) -> None:
        """Note that a call does not use a connection any more."""
        connection.users -= 1
        if not connection.users:
            connection.idle_since = time.monotonic()

    async def _made(self, token: str | None) -> StoreConnection:
        if self._connecting >= self._limits.connecting_max:
            raise Exhausted(
                "too many clients with new tokens come at a time; nothing happened: try again",
                RETRY_SECONDS,
            )
        if len(self._by_token) >= self._limits.connections_max:
            await self._make_room()
            found = self._by_token.get(token)
            if found is not None:
                return found
        self._connecting += 1
        opening = asyncio.ensure_future(self._opened(token))
        opening.add_done_callback(self._connected)
        connection = self._by_token[token] = StoreConnection(opening)
        return connection

    async def _opened(self, token: str | None) -> aio.Database:
        return await self._connect(token)

    def _connected(self, opening: asyncio.Task[aio.Database]) -> None:
        self._connecting -= 1
        if not opening.cancelled():
            opening.exception()  # those who wait for it are told

    async def _make_room(self) -> None:
        idle = [
            (connection.idle_since, token)
            for token, connection in self._by_token.items()
            if not connection.users and connection.opening.done()
        ]
        if not idle:
            raise Exhausted(
                f"clients with {len(self._by_token)} different tokens use this gateway, which is "
                "as many as it allows; nothing happened: try again, or use another gateway",
                RETRY_SECONDS,
            )
        await self._close(min(idle, key=lambda each: each[0])[1])

    async def close_idle(self) -> None:
        """Close connections that nobody uses, again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for token, connection in list(self._by_token.items()):
                is_idle = not connection.users and now - connection.idle_since > IDLE_SECONDS
                if token is not None and is_idle:
                    await self._close(token)

    async def _close(self, token: str | None) -> None:
        opening = self._by_token.pop(token).opening
        if opening.done() and (opening.cancelled() or opening.exception() is not None):
            return
        opening.cancel()
        try:
            await (await opening).close()
        except asyncio.CancelledError:
            if not opening.cancelled():
                raise
        except errors.Error as error:
            _log.info("a connection to the store ends: %s", error)

    async def close(self) -> None:
        """Close all connections."""
        for token in list(self._by_token):
            await self._close(token)


__all__ = ["Connect", "StoreConnection", "StoreConnections"]
