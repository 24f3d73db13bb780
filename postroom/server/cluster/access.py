"""The permissions of clients: their roles, the requests that each allows, the files of both.

::

    none ⊂ read ⊂ write ⊂ admin

========  ==========================================================================================
role      may
========  ==========================================================================================
none      what is granted to its name (:mod:`postroom.ranges.access`); grants add to any role
read      read: keys, inboxes, queues, changes, waiting messages, counters, nodes and their state
write     also change stored data, send, reap, lock, claim, keep and forget positions of readers,
          and deal with dead letters and queues
admin     also change the nodes: let in, give another key, remove; restore an empty store
========  ==========================================================================================

A client has the role of the token that it shows; without a file of tokens, that of its certificate.
Unless a file says otherwise, both are ``write``: no client becomes an administrator by accident.
With ``--insecure``, every client is one.

The file of tokens has a token a line, or a role and a token, and perhaps a name: that to which
rights are granted. Tokens of one name have the same grants. The file of roles has a role and the
common name of a certificate a line, or ``*`` for all others::

    tokens                                     roles
        admin 5p0Nk1u...                           admin operator
        none  0aKz9Qe... reports                   none  reports
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

import msgspec

from postroom.errors import AccessDenied, Error, Invalid, Unavailable
from postroom.protocol.failures import failure_from
from postroom.protocol.frames import Permitted
from postroom.protocol.requests import REQUESTS
from postroom.protocol.streams import OnBehalf
from postroom.ranges.access import Grants, granted_by
from postroom.ranges.contract import Request, Role
from postroom.ranges.rights import Rights

ALLOWED: Final[dict[Role, frozenset[type[Request]]]] = {
    role: REQUESTS.allowed(role) for role in Role
}
"""The requests that each role may ask for. Any other request is refused to all clients."""


_on_behalf: Final = msgspec.msgpack.Decoder(OnBehalf)


class Access(NamedTuple):
    """The terms on which a client was let in.

    Attributes:
        role: the role of the client.
        principal: the name of its certificate and its token; empty: its host. Principals
            share a node's capacity, and the clients of each of them its share.
        current: answers the terms that it would have now; raises ``AccessDenied``.
        name: the name to which rights are granted: that of its token, else of its certificate;
            empty: it has none.
        on_behalf: the client for which a gateway talks, which limits its rights; ``None``: none.
    """

    role: Role = Role.WRITE
    principal: str = ""
    current: Callable[[], Access] | None = None
    name: str = ""
    on_behalf: OnBehalf | None = None

    def who(self, host: str) -> str:
        """Return the name of the client for the audit log; ``host``, if it has none."""
        own = self.name or self.principal or host
        return own if self.on_behalf is None else f"{self.on_behalf.name} through {own}"

    def for_another(self, argument: bytes) -> Access:
        """Return the terms of a stream on behalf of the client that its opening names.

        Raises:
            AccessDenied: the argument is malformed, or names no role.
        """
        if not argument:
            return self
        try:
            on_behalf = _on_behalf.decode(argument)
            if on_behalf.role:
                Role.named(on_behalf.role)
        except (msgspec.DecodeError, ValueError, Invalid) as error:
            raise AccessDenied(f"the client that is asked for is malformed: {error}") from error
        return self._replace(on_behalf=on_behalf)

    def why_not_now(self) -> Error | None:
        """Return why the same proofs would not let a client in on the same terms now."""
        if self.current is None:
            return None
        try:
            now = self.current()
        except AccessDenied as denied:
            return denied
        if now.role is not self.role:
            return Unavailable(f"this client's role is {now.role.value!r} now: connect again")
        return None if now.name == self.name else changed_rights()


def changed_rights() -> Unavailable:
    """Return the error that ends the stream of a client with other rights than before."""
    return Unavailable("the rights of this client have changed: connect again", retry_after=0.0)


WRITER: Final = Access()
"""The terms without files that say more."""


def rights_of(access: Access, grants: Grants) -> Rights | None:
    """Return the rights of a client; ``None``: its role tells what it may ask for."""
    role, own = access.role, grants.of(access.name)
    has_only_role = role is Role.ADMIN or (not own and role is not Role.NONE)
    client = access.on_behalf
    others = None
    if client is not None and client.role:
        clients = Role.named(client.role)
        if not (has_only_role and clients.includes(role)):
            others = Rights([*granted_by(clients), *grants.of(client.name)])
    if has_only_role and others is None:
        return None
    return Rights([*granted_by(role), *own], others)


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


class TokenLine(NamedTuple):
    """A line of a file of tokens; the name may be empty."""

    token: bytes
    role: Role = Role.WRITE
    name: str = ""


def token_of(line: bytes) -> TokenLine:
    """Return the token in a line of a file of tokens, its role, and its name.

    The line has a token, or a role and a token, and perhaps a name.

    Raises:
        Invalid: it has neither.
    """
    words = line.split()
    if len(words) == 1:
        return TokenLine(words[0])
    if len(words) in {2, 3}:
        role = Role.named(words[0].decode(errors="replace"))
        return TokenLine(words[1], role, b"".join(words[2:]).decode(errors="replace"))
    raise Invalid("a line of the tokens is a token, or a role, a token and perhaps a name")


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

    def line_of(self, token: str) -> TokenLine | None:
        """Return the line of ``token``; ``None``: it is unknown. The time is constant."""
        shown = token.encode()
        found = None
        for each in self._file.current():  # all of them: the time would tell which it was
            if hmac.compare_digest(each.token, shown):
                found = each
        return found

    def role_of(self, token: str) -> Role | None:
        """Return the role of ``token``; ``None``: it is unknown."""
        line = self.line_of(token)
        return None if line is None else line.role

    def readings(self) -> int:
        """Look at the file, and return how often new content was accepted."""
        self._file.current()
        return self._file.readings

    def first_of(self, role: Role) -> str:
        """Return the first token of a role; empty: there is none."""
        tokens = self._file.current()
        return next((each.token.decode() for each in tokens if each.role is role), "")


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


def _tokens(content: bytes) -> list[TokenLine]:
    return [token_of(line) for line in content.splitlines() if line.strip()]


def roles_of_certificates(path: Path) -> WatchedFile[Roles]:
    """Return the roles of certificates, by their common names.

    Raises:
        AccessDenied: the file cannot be read, or a line is no role and name.
    """
    return WatchedFile(path, lambda content: Roles(content.decode(errors="replace").splitlines()))
