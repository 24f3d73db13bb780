"""The permissions of clients: three roles, and the requests that each allows.

::

    read ⊂ write ⊂ admin

========  ==========================================================================================
role      may
========  ==========================================================================================
read      read: keys, inboxes, queues, changes, waiting messages, counters, nodes and their state
write     also change stored data, send, reap, lock, claim, keep and forget positions of readers,
          and deal with dead letters and queues
admin     also change the nodes: let in, give another key, remove; restore an empty store
========  ==========================================================================================

A client has the role of the token that it shows; without a file of tokens, that of its certificate.
Unless a file says otherwise, both are ``write``: no client becomes an administrator by accident.
With ``--insecure``, every client is one.

The file of tokens has a token a line, or a role and a token; the file of roles a role and the
common name of a certificate a line, or ``*`` for all others::

    tokens                                     roles
        admin 5p0Nk1u...                           admin operator
        read  0aKz9Qe...                           read  reports
        Jx81mPq...            (write)              write *
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from postroom.errors import AccessDenied, Error, Invalid, Unavailable
from postroom.protocol.failures import failure_from
from postroom.protocol.permitted import Permitted
from postroom.protocol.requests import REQUESTS
from postroom.ranges.contract import Request, Role

ALLOWED: Final[dict[Role, frozenset[type[Request]]]] = {
    role: REQUESTS.allowed(role) for role in Role
}
"""The requests that each role may ask for. Any other request is refused to all clients."""


class Access(NamedTuple):
    """The terms on which a client was let in.

    Attributes:
        role: the role of the client.
        principal: the name of its certificate and its token; empty: its host. Principals
            share a node's capacity, and the clients of each of them its share.
        current: answers the role that it would have now; raises ``AccessDenied``.
    """

    role: Role = Role.WRITE
    principal: str = ""
    current: Callable[[], Role] | None = None

    def why_not_now(self) -> Error | None:
        """Return why the same proofs would not let a client in on the same terms now."""
        if self.current is None:
            return None
        try:
            role = self.current()
        except AccessDenied as denied:
            return denied
        if role is self.role:
            return None
        return Unavailable(f"this client's role is {role.value!r} now: connect again")


WRITER: Final = Access()
"""The terms without files that say more."""


def denied(role: Role, kind: type[Request]) -> AccessDenied:
    """Return the error for a client that asks for more than its role allows."""
    needed = kind.role
    who = "nobody" if needed is None else f'only clients with the role "{needed.value}"'
    return AccessDenied(
        f"this client has the role {role.value!r}, and {who} may ask for {kind.__name__}; nothing "
        "was done: show a token, or a certificate, of that role"
    )


@functools.cache
def permitted(role: Role) -> Permitted:
    """Return the decoders of the requests that a role may ask for, and no others."""
    return Permitted(ALLOWED[role], lambda kind: failure_from(denied(role, kind)))


class Roles:
    """The roles of names, read from a file.

    Args:
        lines: the lines of the file: a role and a name each; blank ones, and those that begin with
            ``#``, are passed over.

    Raises:
        Invalid: a line is none of these; the message tells which.
    """

    def __init__(self, lines: list[str]) -> None:
        self._roles: dict[str, Role] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and not text.startswith("#"):
                name, role = _parsed(number, text)
                self._roles[name] = role

    def of(self, name: str) -> Role | None:
        """Return the role of a certificate's common name; ``None``: it has none."""
        return self._roles.get(name, self._roles.get("*"))


def _parsed(number: int, text: str) -> tuple[str, Role]:
    role, _, name = text.partition(" ")
    if not name.strip():
        raise Invalid(f"line {number} is not a role and a name: {text[:40]!r}")
    try:
        return name.strip(), Role.named(role)
    except Invalid as error:
        raise Invalid(f"line {number}: {error}") from error


def token_of(line: bytes) -> tuple[bytes, Role]:
    """Return the token and the role in a line of a file of tokens.

    The line has a token, or a role and a token.

    Raises:
        Invalid: it has neither.
    """
    parts = line.split()
    if len(parts) == 1:
        return parts[0], Role.WRITE
    if len(parts) == 2:
        return parts[1], Role.named(parts[0].decode(errors="replace"))
    raise Invalid("a line of the tokens is a token, or a role and a token")


__all__: list[Any] = [
    "ALLOWED",
    "WRITER",
    "Access",
    "Role",
    "Roles",
    "denied",
    "permitted",
    "token_of",
]
