"""The addresses of sockets in the file system, ``unix:PATH``: for programs of one machine."""

from __future__ import annotations

import os
from typing import Final

from postroom.errors import Invalid
from postroom.limits import SOCKET_PATH_BYTES_MAX

UNIX: Final = "unix:"
_NO_ENDS: Final = frozenset("\x00\n")
LOCAL: Final = "local"
"""The host of a caller that has come through a socket in the file system."""


def is_unix(address: str) -> bool:
    """Return whether an address is that of a socket in the file system."""
    return address.startswith(UNIX)


def path_in(address: str) -> str:
    """Return the path in an address ``unix:PATH``.

    Raises:
        ValueError: it is no such address.
        Invalid: the path is too long for the system.
    """
    path = address.removeprefix(UNIX)
    if path == address or not path or not _NO_ENDS.isdisjoint(path):
        raise ValueError(f'{address!r} is no socket: give "unix:" and a path')
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise Invalid(
            f"the path of the socket {path[:40]}... has {size} bytes, and the system takes "
            f"{SOCKET_PATH_BYTES_MAX}; nothing was changed: give a shorter one, as "
            '"unix:/run/user/1000/shop"'
        )
    return path
