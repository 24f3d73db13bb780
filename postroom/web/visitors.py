"""Visitors of the pages: roles, sessions, and the proof that a form came from a page.

There are two ways. Without roles each visitor may do everything; the proof is then one secret of
this process, which a page of another origin cannot read. With roles a visitor logs in with a token.
A cookie names the session, which has a proof of its own. Each request asks again for the role of
the token: a token that is taken back ends its sessions.

A program sends its token as ``Authorization: Bearer TOKEN``. It needs no proof, since no browser
adds that header by itself.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from postroom.web.limits import SESSION_SECONDS_MAX, SESSIONS_MAX

COOKIE: Final = "postroom_session"
ROLES: Final = ("read", "write", "admin")


@dataclass(frozen=True)
class Visitor:
    """A visitor, or a program.

    Attributes:
        role: ``read``, ``write`` or ``admin``.
        proof: the text that its forms must contain; empty: they need none.
        named: the name in the log of actions.
    """

    role: str
    proof: str
    named: str

    def may(self, role: str) -> bool:
        """Return whether it may do what needs a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class LogIn:
    """A visitor that has logged in."""

    token: str
    proof: str
    until: float


class Visitors:
    """The visitors that are known.

    Args:
        role_of: returns the role of a token, or ``None``; ``None`` itself: there are no roles.
        monotonic: returns the time in seconds.
    """

    def __init__(
        self,
        role_of: Callable[[str], str | None] | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._role_of = role_of
        self._monotonic = monotonic
        self._proof = secrets.token_urlsafe(24)
        self._sessions: OrderedDict[str, LogIn] = OrderedDict()

    @property
    def log_in(self) -> bool:
        """Return whether visitors have to log in."""
        return self._role_of is not None

    def of(self, connection: HTTPConnection) -> Visitor | None:
        """Return the visitor of a request; ``None``: it has to log in."""
        client = connection.client.host if connection.client else "unknown"
        if self._role_of is None:
            return Visitor("admin", self._proof, client)
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._visitor(token.strip(), "", client)
        session = self._sessions.get(connection.cookies.get(COOKIE, ""))
        if session is None or self._monotonic() > session.until:
            return None
        return self._visitor(session.token, session.proof, client)

    def _visitor(self, token: str, proof: str, client: str) -> Visitor | None:
        role = None if self._role_of is None else self._role_of(token)
        return Visitor(role, proof, f"{role} at {client}") if role in ROLES else None

    def begin(self, token: str) -> str | None:
        """Begin a session; return its name for the cookie, or ``None``: the token is not known."""
        if self._role_of is None or self._role_of(token) not in ROLES:
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
