"""A socket in the file system, at which the programs of one user on one machine are served.

::

    bind ─▶ a path that is free, or a socket at which no process listens ─▶ mode 0600 ─▶ listen
              │ a process listens, or it is no socket
              └─▶ refused; it stays as it is

No process can connect before the socket listens, and then only its owner's can. There is no TLS:
nothing leaves the machine. A process that is killed leaves its socket behind; the next one replaces
it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path
from typing import Final

from postroom.errors import AccessDenied, Invalid
from postroom.kv.folder import FILE_MODE
from postroom.protocol.addresses import path_in

_DEAD: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})


class UnixSocket:
    """A bound socket, and its file; see the module.

    Args:
        address: the address, ``unix:PATH``.

    Attributes:
        socket: the socket, which does not listen yet.

    Raises:
        Invalid: another process listens there, or something else than a socket is there.
        AccessDenied: the file system does not permit it.
    """

    def __init__(self, address: str) -> None:
        self._path = path = Path(path_in(address))
        _make_room(path)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.setblocking(False)
            self.socket.bind(str(path))
            path.chmod(FILE_MODE)
            self._file = _identity(path)
        except OSError as error:
            self.socket.close()
            raise _cannot_bind(path, error) from error

    def unlink(self) -> None:
        """Delete the file, unless it is that of another socket by now."""
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._file:
                self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _make_room(path: Path) -> None:
    """Delete a socket at which no process listens.

    Raises:
        Invalid: a process listens, or it is no socket.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:  # binding it tells more
        return
    if not is_socket:
        raise Invalid(
            f"there is something else than a socket at {path}; nothing was changed: move it away, "
            "or give another path"
        )
    if _is_alive(path):
        raise Invalid(
            f"another process listens at {path}; nothing was changed: end it, or give another path"
        )
    with contextlib.suppress(OSError):
        path.unlink()


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in _DEAD


def _cannot_bind(path: Path, error: OSError) -> Invalid | AccessDenied:
    why = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return AccessDenied(
            f"no socket can be made at {path} ({why}); nothing was changed: check the owner and "
            "permissions of its folder"
        )
    return Invalid(
        f"no socket can be made at {path} ({why}); nothing was changed: make its folder, or give "
        "another path"
    )
