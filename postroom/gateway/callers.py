"""The callers of the gateway: the proofs that they show, and their connections to the store.

::

    call ─▶ its token, certificate or host ─▶ connection ── known ──▶ database
                                                  │
                                                  └─ new ──▶ connect, once for all who wait

The nodes of a cluster decide themselves about the tokens that the gateway hands on. They check a
token when its connection is made, and again whenever their files change. A gateway that was given
files of its own, or is a part of a node, also asks those. A caller then needs the permission of
both.

There is one connection for each token. One that nobody uses is closed after a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from postroom import aio, errors
from postroom.errors import AccessDenied
from postroom.gateway.limits import RETRY_SECONDS, Exhausted, Limits

Roles: TypeAlias = Callable[[str | None, str], str]
"""A function that returns the role of a token (``None``: none) and a certificate's common name.

It raises ``AccessDenied`` if the two have none.
"""


class ShownProofs(NamedTuple):
    """The proofs that a caller has shown, with which the gateway connects for it.

    Attributes:
        token: its token; ``None``: none, or the gateway's own.
        name: the common name of its certificate, if it shows no token; empty: none.
        role: the name of its role, as the gateway knows it; empty: the gateway knows none.
    """

    token: str | None = None
    name: str = ""
    role: str = ""


NO_PROOFS: Final = ShownProofs()
Connect: TypeAlias = Callable[[ShownProofs], Awaitable[aio.Database]]
"""A function that connects with the proofs of a caller."""

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer "
READ: Final = "read"
IDLE_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 30.0

_log = logging.getLogger(__name__)


class Unauthenticated(AccessDenied):
    """The caller has not shown who it is, or is not known."""


class Caller(NamedTuple):
    """The caller of one call.

    Attributes:
        client: its name for limits: its token, its certificate, or its host.
        proofs: what it shows.
        may_write: whether it may change something, as far as the gateway decides.
    """

    client: str
    proofs: ShownProofs
    may_write: bool

    def check_may_write(self) -> None:
        """Check that it may change something.

        Raises:
            AccessDenied: it has the role ``read``.
        """
        if not self.may_write:
            raise AccessDenied(
                "this client has the role 'read', and only clients with the role \"write\" may "
                "change something; nothing was done: show a token, or a certificate, of that role"
            )


class Callers:
    """A reader of the proofs of callers.

    Args:
        roles: the roles of tokens and certificates; ``None``: the gateway does not check them.
        is_secure: whether callers come by TLS.
        is_open: whether the store takes everybody, so that tokens mean nothing.
        nodes_check: whether nodes check all rights of callers, and not the gateway.
    """

    def __init__(
        self, roles: Roles | None, *, is_secure: bool, is_open: bool, nodes_check: bool = False
    ) -> None:
        self._roles = roles
        self._nodes_check = nodes_check
        self._is_secure = is_secure
        self._is_open = is_open

    def of(self, context: Any) -> Caller:
        """Return the caller of a call.

        Raises:
            Unauthenticated: its token is in a wrong form, or not known to the gateway.
        """
        token = None if self._is_open else _token_of(context)
        name = _name_of(context) if self._is_secure else ""
        if token is not None:
            client = f"token {token}"
        elif name:
            client = f"certificate {name}"
        else:
            client = context.peer().rpartition(":")[0]
        role = "" if self._roles is None else self._role_of(token, name)
        proofs = ShownProofs(token, name if token is None else "", role)
        return Caller(client, proofs, self._nodes_check or role != READ)

    def _role_of(self, token: str | None, name: str) -> str:
        assert self._roles is not None
        try:
            return self._roles(token, name)
        except AccessDenied as error:
            raise Unauthenticated(str(error)) from error


def _token_of(context: Any) -> str | None:
    for name, value in context.invocation_metadata():
        if name == AUTHORIZATION:
            if not value[: len(BEARER)].lower() == BEARER or not value[len(BEARER) :].strip():
                raise Unauthenticated(
                    'the metadata "authorization" is not "Bearer TOKEN"; nothing was done'
                )
            return str(value[len(BEARER) :].strip())
    return None


def _name_of(context: Any) -> str:
    names = context.auth_context().get("x509_common_name", ())
    return names[0].decode(errors="replace") if names else ""


class StoreConnection:
    """A connection with the proofs of a caller.

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
    """The connections to the store, one for the proofs of each caller.

    Args:
        connect: makes a connection.
        limits: how many there may be.
    """

    def __init__(self, connect: Connect, limits: Limits) -> None:
        self._connect = connect
        self._limits = limits
        self._by_proofs: dict[ShownProofs, StoreConnection] = {}
        self._connecting = 0

    async def acquire(self, proofs: ShownProofs) -> tuple[aio.Database, StoreConnection]:
        """Return the database of a caller, and its connection, which must be released.

        Raises:
            Unauthenticated: the store does not know the caller.
            Exhausted: there are too many connections.
            Error: it cannot be connected to.
        """
        connection = self._by_proofs.get(proofs)
        if connection is None:
            connection = await self._made(proofs)
        connection.users += 1
        opening = connection.opening
        try:
            db = opening.result() if opening.done() else await asyncio.shield(opening)
        except BaseException as error:
            self.release(connection)
            if opening.done() and self._by_proofs.get(proofs) is connection:
                del self._by_proofs[proofs]
            if isinstance(error, errors.AccessDenied):
                raise Unauthenticated(str(error)) from error
            raise
        return db, connection

    def release(self, connection: StoreConnection) -> None:
        """Note that a call does not use a connection any more."""
        connection.users -= 1
        if not connection.users:
            connection.idle_since = time.monotonic()

    async def _made(self, proofs: ShownProofs) -> StoreConnection:
        if self._connecting >= self._limits.connecting_max:
            raise Exhausted(
                "too many clients with new tokens come at a time; nothing happened: try again",
                RETRY_SECONDS,
            )
        if len(self._by_proofs) >= self._limits.connections_max:
            await self._make_room()
            found = self._by_proofs.get(proofs)
            if found is not None:
                return found
        self._connecting += 1
        opening = asyncio.ensure_future(self._opened(proofs))
        opening.add_done_callback(self._connected)
        connection = self._by_proofs[proofs] = StoreConnection(opening)
        return connection

    async def _opened(self, proofs: ShownProofs) -> aio.Database:
        return await self._connect(proofs)

    def _connected(self, opening: asyncio.Task[aio.Database]) -> None:
        self._connecting -= 1
        if not opening.cancelled():
            opening.exception()  # those who wait for it are told

    async def _make_room(self) -> None:
        idle = [
            (connection.idle_since, proofs)
            for proofs, connection in self._by_proofs.items()
            if not connection.users and connection.opening.done()
        ]
        if not idle:
            raise Exhausted(
                f"clients with {len(self._by_proofs)} different tokens use this gateway, which is "
                "as many as it allows; nothing happened: try again, or use another gateway",
                RETRY_SECONDS,
            )
        await self._close(min(idle, key=lambda each: each[0])[1])

    async def close_idle(self) -> None:
        """Close connections that nobody uses, again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for proofs, connection in list(self._by_proofs.items()):
                is_idle = not connection.users and now - connection.idle_since > IDLE_SECONDS
                if proofs != NO_PROOFS and is_idle:
                    await self._close(proofs)

    async def _close(self, proofs: ShownProofs) -> None:
        opening = self._by_proofs.pop(proofs).opening
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
        for proofs in list(self._by_proofs):
            await self._close(proofs)
