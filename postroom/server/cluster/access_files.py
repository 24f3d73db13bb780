"""The files that say who may do what: tokens, and roles of certificates. Read again when they
change; while one is being replaced, or is faulty, what was read last goes on counting.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from postroom.errors import AccessDenied, Invalid
from postroom.server.cluster.access import Role, Roles, token_of

Parsed = TypeVar("Parsed")

_log = logging.getLogger(__name__)


class WatchedFile(Generic[Parsed]):
    """A file, and what it comes to.

    Args:
        path: the file.
        parse: makes it of the content; raises ``Invalid``.

    Raises:
        AccessDenied: it cannot be read, or says something else.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], Parsed]) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, ...] = ()
        try:
            self._seen = self._look()
            self._parsed = parse(path.read_bytes())
        except OSError as error:
            raise AccessDenied(f"cannot read {path}: {error.strerror}") from error
        except Invalid as error:
            raise AccessDenied(f"{path}: {error}") from error

    def current(self) -> Parsed:
        """As the file is now."""
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
            _log.info("read %s again", self._path)

    def _look(self) -> tuple[int, ...]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


class Tokens:
    """The tokens that clients may show, and the role of each.

    Args:
        path: the file: a token a line, or a role and a token.

    Raises:
        AccessDenied: it cannot be read, holds no token, or a line that is none.
    """

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, _tokens)
        if not self._file.current():
            raise AccessDenied(f"{path} holds no token: write one a line")

    def role_of(self, token: str) -> Role | None:
        """The role that comes with ``token``; ``None``: it is unknown. Takes as long for each."""
        shown = token.encode()
        found = None
        for each, role in self._file.current():  # all of them: the time would tell which it was
            if hmac.compare_digest(each, shown):
                found = role
        return found

    def first_of(self, role: Role) -> str:
        """The first token of a role; empty: there is none."""
        tokens = self._file.current()
        return next((token.decode() for token, its_role in tokens if its_role is role), "")


def _tokens(content: bytes) -> list[tuple[bytes, Role]]:
    return [token_of(line) for line in content.splitlines() if line.strip()]


def roles_of_certificates(path: Path) -> WatchedFile[Roles]:
    """The roles of certificates, by their common names.

    Raises:
        AccessDenied: it cannot be read, or a line is no role and name.
    """
    return WatchedFile(path, lambda content: Roles(content.decode(errors="replace").splitlines()))


__all__: list[Any] = ["Tokens", "WatchedFile", "roles_of_certificates"]
