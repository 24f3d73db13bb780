"""The files of permissions: tokens, and roles of certificates.

They are read again when they change. While one is being replaced, or is faulty, its last content
counts.
"""

from __future__ import annotations

import hmac
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from postroom.errors import AccessDenied, Invalid
from postroom.server.cluster.access import Role, Roles, token_of

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
        AccessDenied: it cannot be read, or holds no token, or a malformed line.
    """

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, _tokens)
        warn_if_others_may_read(path)
        if not self._file.current():
            raise AccessDenied(f"{path} holds no token: write one a line")

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


__all__: list[Any] = ["Tokens", "WatchedFile", "roles_of_certificates", "warn_if_others_may_read"]
