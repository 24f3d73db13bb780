"""A data folder from outside: who has it open, what is in it, and what its errors mean.

:class:`FolderLock` is one process's hold on a folder; :func:`prepare` makes the folder or refuses
it; :func:`explain` turns what LevelDB and the operating system say into errors that tell a user
what to do. Files here are those of LevelDB (``CURRENT``, ``MANIFEST-*``, ``*.log``, ``*.ldb``,
``LOCK``, ``LOG``) and ours: ``owner``, and ``*.torn`` (:mod:`postroom.kv.torn_log`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from pathlib import Path
from typing import Final

from postroom import errors

OWNER_FILE: Final = "owner"

_DATA_FILE: Final = re.compile(r"[0-9]+\.(ldb|sst|log)")
"""As LevelDB names them; any other ``*.log`` is somebody else's."""

_DENIED: Final = (
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Not a directory",
    "File exists",
    "Is a directory",
)
_FULL: Final = ("No space left", "Disk quota exceeded", "Too many open files")
_LOCKED: Final = ("already held by process", "/LOCK: Resource temporarily unavailable")


class FolderLock:
    """Holds the file ``owner`` of a folder locked, with process id and host name in it.

    ``flock`` belongs to the opened file rather than to the process, so it also keeps the same
    process from opening a folder twice. The kernel drops it when the process ends, however.

    Raises:
        StoreLocked: somebody else holds it, named in the message.
        AccessDenied, Unavailable: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise at once."""
        try:
            self._descriptor = os.open(folder / OWNER_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise explain(error, folder) from error
        try:
            self._take(folder)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let go. To be called once. A child process that inherited the lock loses it as well."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 300, 0).decode(errors="replace")
            raise locked(folder, owner) from None
        except OSError as error:
            raise explain(error, folder) from error


def prepare(folder: Path, *, create: bool) -> None:
    """Make sure that ``folder`` is one that can hold a store, or already does.

    LevelDB would start anew, and delete every table, in a folder that merely lacks ``CURRENT``.

    Raises:
        StoreCorrupted: there is no store and ``create`` is false, or only the remains of one.
        AccessDenied, Unavailable: the folder cannot be made or read.
    """
    try:
        if create and not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
        names = os.listdir(folder) if create or folder.is_dir() else []  # noqa: PTH208 (one look)
    except OSError as error:
        raise explain(error, folder) from error
    if "CURRENT" in names:
        return
    if any(_DATA_FILE.fullmatch(name) for name in names):
        raise damaged(folder, "it has data files but no file CURRENT that lists them")
    if not create:
        raise errors.StoreCorrupted(
            f"There is no store in {folder}. Check the path, or open it so that it is created."
        )


def logs(folder: Path) -> list[Path]:
    """LevelDB's logs, oldest first."""
    found = [path for path in folder.glob("*.log") if _DATA_FILE.fullmatch(path.name)]
    return sorted(found, key=lambda log: int(log.stem))


def newest_log(folder: Path) -> Path | None:
    """The log that LevelDB wrote last, or is writing."""
    return next(reversed(logs(folder)), None)


def sync_newest_log(folder: Path) -> None:
    """Make durable what LevelDB has written to its log, without holding up who writes it."""
    while (log := newest_log(folder)) is not None:
        try:
            descriptor = os.open(log, os.O_RDONLY)
        except FileNotFoundError:  # it has just become a table file
            continue
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, as ``fsync`` of a file does its content."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: Exception, folder: Path) -> errors.Error:
    """The error to raise instead of ``error``, which came up on opening ``folder``."""
    what = reason(error)
    if any(part in what for part in _LOCKED):
        return locked(folder, "")
    if any(part in what for part in _FULL):
        return errors.Unavailable(
            f"The store in {folder} cannot be opened: {what}. Free some room and try again.",
            retry_after=1.0,
        )
    if isinstance(error, PermissionError) or any(part in what for part in _DENIED):
        return errors.AccessDenied(
            f"The store in {folder} cannot be opened for writing: {what}. "
            "Check the path, its owner and permissions, and how its device is mounted."
        )
    return damaged(folder, what)


def locked(folder: Path, owner: str) -> errors.StoreLocked:
    """The error that names the ``owner``, as it is written in the file of that name."""
    process, _, host = owner.strip().partition(" ")
    who = f"process {process} on host {host}" if host else "another process"
    return errors.StoreLocked(
        f"The store in {folder} is open in {who}; close it there or use postroom.connect."
    )


def damaged(folder: Path, what: str) -> errors.StoreCorrupted:
    """The error for a folder whose content is not what it must be."""
    return errors.StoreCorrupted(
        f"The store in {folder} is damaged: {what}. Nothing was changed. Restore the folder from "
        "a backup, or copy it aside and repair the copy (plyvel.repair_db keeps what is readable)."
    )


def reason(error: Exception) -> str:
    """What LevelDB (whose messages are bytes) or the operating system says."""
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(error)
