"""Visitors of the pages: tokens, sessions, and the proof that a form came from a page.

There are two ways. Without tokens each visitor may do everything; the proof is then one secret of
this process, which a page of another origin cannot read. With tokens a visitor logs in. A cookie
names the session, which has a proof of its own. Each request asks again whose the token is: a token
that is taken back ends its sessions. The role and the name of the token tell the rights
(:mod:`.rights`).

A program sends its token as ``Authorization: Bearer TOKEN``. It needs no proof, since no browser
adds that header by itself.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from starlette.requests import HTTPConnection

from postroom.web.limits import SESSION_SECONDS_MAX, SESSIONS_MAX

COOKIE: Final = "postroom_session"
ROLES: Final = ("none", "read", "write", "admin")

ClientOf: TypeAlias = Callable[[str], tuple[str, str] | None]
"""A function that returns the role and the name of a token, or ``None``. The name may be empty."""


class ClientRights(Protocol):
    """The rights of a client, as the store's ``access.rights`` returns them."""

    def may(self, verb: str, queue: str = "") -> bool:
        """Return whether it has a verb on a queue; without a queue, on everything."""


@dataclass(frozen=True)
class Visitor:
    """A visitor, or a program.

    Attributes:
        role: ``none``, ``read``, ``write`` or ``admin``.
        name: the name of its token, to which rights are granted; empty: it has none.
        proof: the text that its forms must contain; empty: they need none.
        host: where it comes from.
        rights: its rights; ``None``: it may do everything.
        grants: the grants of its name.
    """

    role: str
    name: str
    proof: str
    host: str
    rights: ClientRights | None = None
    grants: tuple[Any, ...] = ()

    @property
    def named(self) -> str:
        """Return its name in the audit log."""
        return f"{self.name or self.role} at {self.host}"

    def may(self, verb: str, queue: str = "") -> bool:
        """Return whether it has a verb on a queue; without a queue, on everything."""
        return self.rights is None or self.rights.may(verb, queue)


@dataclass(frozen=True)
class LogIn:
    """A visitor that has logged in."""

    token: str
    proof: str
    until: float


class Visitors:
    """The visitors that are known.

    Args:
        client_of: returns whose a token is; ``None``: there are no tokens.
        monotonic: returns the time in seconds.
    """

    def __init__(
        self,
        client_of: ClientOf | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_of = client_of
        self._monotonic = monotonic
        self._proof = secrets.token_urlsafe(24)
        self._sessions: OrderedDict[str, LogIn] = OrderedDict()

    @property
    def log_in(self) -> bool:
        """Return whether visitors have to log in."""
        return self._client_of is not None

    def of(self, connection: HTTPConnection) -> Visitor | None:
        """Return the visitor of a request, without its rights; ``None``: it has to log in."""
        host = host_of_client(connection)
        if self._client_of is None:
            return Visitor("admin", "visitor", self._proof, host)
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._visitor(token.strip(), "", host)
        session = self._sessions.get(connection.cookies.get(COOKIE, ""))
        if session is None or self._monotonic() > session.until:
            return None
        return self._visitor(session.token, session.proof, host)

    def _visitor(self, token: str, proof: str, host: str) -> Visitor | None:
        role, name = self._client(token)
        return Visitor(role, name, proof, host) if role in ROLES else None

    def _client(self, token: str) -> tuple[str, str]:
        return (self._client_of and self._client_of(token)) or ("", "")

    def begin(self, token: str) -> str | None:
        """Begin a session; return its name for the cookie, or ``None``: the token is not known."""
        if self._client(token)[0] not in ROLES:
            return None
        name = secrets.token_urlsafe(24)
        until = self._monotonic() + SESSION_SECONDS_MAX
        self._sessions[name] = LogIn(token, secrets.token_urlsafe(24), until)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return name

    def end(self, connection: HTTPConnection) -> None:
        """End the session of a request, if it has one."""
        self._sessions.pop(connection.cookies.get(COOKIE, ""), None)

    @staticmethod
    def is_proven(visitor: Visitor, given: str) -> bool:
        """Return whether a form came from a page of this visitor."""
        return not visitor.proof or secrets.compare_digest(visitor.proof.encode(), given.encode())


def host_of_client(connection: HTTPConnection) -> str:
    """Return the host that a request comes from."""
    return connection.client.host if connection.client else "unknown"
