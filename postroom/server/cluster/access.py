"""The permissions of clients: three roles, the requests that each allows, and the files of both.

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

The file of tokens has a token a line, or a role and a token. The file of roles has a role and the
common name of a certificate a line, or ``*`` for all others::

    tokens                                     roles
        admin 5p0Nk1u...                           admin operator
        read  0aKz9Qe...                           read  reports
        Jx81mPq...            (write)              write *

They are read again when they change. While one is being replaced, or is faulty, its last content
counts.
"""

from __future__ import annotations

import functools
import hmac
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from postroom.errors import AccessDenied, Error, Invalid, Unavailable
from postroom.protocol.failures import failure_from
from postroom.protocol.frames import Permitted
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
    words = line.split()
    if len(words) == 1:
        return words[0], Role.WRITE
    if len(words) == 2:
        return words[1], Role.named(words[0].decode(errors="replace"))
    raise Invalid("a line of the tokens is a token, or a role and a token")


Parsed = TypeVar("Parsed")

_log = logging.getLogger(__name__)


class WatchedFile(Generic[Parsed]):
    """A file, and its parsed content.

    Args:
        path: the file.
        parse: parses the content; raises ``Invalid``.

    Attributes:
        readings: how often new content was accepted.

    Raises:
        AccessDenied: the file cannot be read, or has other content.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], Parsed]) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, ...] = ()
        self.readings = 0
        try:
            self._seen = self._look()
            self._parsed = parse(path.read_bytes())
        except OSError as error:
            raise AccessDenied(f"cannot read {path}: {error.strerror}") from error
        except Invalid as error:
            raise AccessDenied(f"{path}: {error}") from error

    def current(self) -> Parsed:
        """Return the present content of the file."""
        try:
            seen = self._look()
            content = None if seen == self._seen else self._path.read_bytes()
        except OSError:
            return self._parsed  # it is being replaced
        if content is not None:
            self._seen = seen
            self._take_over(content)
        return self._parsed

    def _take_over(self, content: bytes) -> None:
        try:
            self._parsed = self._parse(content)
        except Invalid as error:
            _log.error("%s is not taken over, what it said before counts: %s", self._path, error)
        else:
            self.readings += 1
            _log.info("read %s again", self._path)

    def _look(self) -> tuple[int, ...]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


class Tokens:
    """The tokens that clients may show, and the role of each.

    Args:
        path: the file: a token a line, or a role and a token.

    Raises:
        AccessDenied: it cannot be read, or contains no token, or a malformed line.
    """

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, _tokens)
        warn_if_others_may_read(path)
        if not self._file.current():
            raise AccessDenied(f"{path} contains no token: write one a line")

    def role_of(self, token: str) -> Role | None:
        """Return the role of ``token``; ``None``: it is unknown. The time is constant."""
        shown = token.encode()
        found = None
        for each, role in self._file.current():  # all of them: the time would tell which it was
            if hmac.compare_digest(each, shown):
                found = role
        return found

    def readings(self) -> int:
        """Look at the file, and return how often new content was accepted."""
        self._file.current()
        return self._file.readings

    def first_of(self, role: Role) -> str:
        """Return the first token of a role; empty: there is none."""
        tokens = self._file.current()
        return next((token.decode() for token, its_role in tokens if its_role is role), "")


def warn_if_others_may_read(path: Path) -> None:
    """Log a warning if other users of the machine may read a file of secrets."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # the next reading says why that is impossible
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning(
            "%s has the mode %04o: other users may read its secrets. Run: chmod 600 %s",
            path, mode, path,
        )  # fmt: skip


def _tokens(content: bytes) -> list[tuple[bytes, Role]]:
    return [token_of(line) for line in content.splitlines() if line.strip()]


def roles_of_certificates(path: Path) -> WatchedFile[Roles]:
    """Return the roles of certificates, by their common names.

    Raises:
        AccessDenied: the file cannot be read, or a line is no role and name.
    """
    return WatchedFile(path, lambda content: Roles(content.decode(errors="replace").splitlines()))
