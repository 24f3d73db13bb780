"""A data folder from outside: who has it open, what is in it, and what its errors mean.

:class:`FolderLock` is one process's hold on a folder. :func:`prepare` makes the folder or refuses
it. :func:`explain` turns messages of an engine and of the operating system into errors that tell a
user what to do. Files here are those of LevelDB (``CURRENT``, ``MANIFEST-*``, ``*.log``, ``*.ldb``,
``LOCK``, ``LOG``) or of RocksDB (``*.sst`` for ``*.ldb``; ``OPTIONS-*``, ``IDENTITY``), and ours:
``owner``, ``engine`` (:mod:`.engine_folder`) and ``*.torn`` (:mod:`.leveldb_files`). A store that
its application serves has ``served``, with the address, and perhaps ``socket``.

A folder is a store if it contains ``CURRENT`` and ``owner``. It may become one if it is missing,
empty, or has only the files of a first start that was cut short. Any other folder is left alone:
nothing in it is touched. A store belongs to its owner alone: a new folder has the mode 0700. Its
files have 0600, by its default access control list (``acl(5)``). LevelDB itself makes them with
0644, less the mask that is the whole process's, not ours.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from postroom import errors
from postroom.kv import forks
from postroom.kv.engine import BlockDamaged

OWNER_FILE: Final = "owner"
SERVED_FILE: Final = "served"

_DATA_FILE: Final = re.compile(r"[0-9]+\.(ldb|sst|log)")
"""The names that LevelDB gives; any other ``*.log`` is not ours."""

_BEGUN: Final = re.compile(
    r"owner|engine(\.new)?|LOCK|LOG(\.old.*)?|MANIFEST-[0-9]+|[0-9]+\.dbtmp|IDENTITY|OPTIONS-[0-9]+(\.dbtmp)?|rocksdict-config\.json"
)
"""The files that a first start leaves that is cut short before ``CURRENT``; ``owner`` is first."""

_OWNER: Final = re.compile(rb"([0-9]+ [^\n]*\n)?")
_OWNER_BYTES: Final = 300
_SERVED: Final = re.compile(r"(unix:[^\n]+)\n")
_SERVED_BYTES: Final = 200

_NO_PATH: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP})
"""The errors for a path at which nothing can be, and so nothing is damaged."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_ACL: Final = "system.posix_acl_default"
# The user has rwx, group and others nothing.
_OWNER_ONLY: Final = struct.pack("<I" + "HHi" * 3, 2, 0x01, 7, -1, 0x04, 0, -1, 0x20, 0, -1)
"""Version 2; tag, permissions and id of each entry, as in the kernel's ``posix_acl_xattr.h``."""

_DENIED: Final = (
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Not a directory",
    "File exists",
    "Is a directory",
)
_FULL: Final = ("No space left", "Disk quota exceeded")
_SCARCE: Final = "Too many open files"
_LOCKED: Final = ("already held by process", "/LOCK: Resource temporarily unavailable")


class DeviceFull(errors.Unavailable):
    """A folder cannot be opened, since its device has no room. To users it is ``Unavailable``."""


class FolderLock:
    """A lock: it holds the file ``owner`` of a folder, with process id and host name in it.

    ``flock`` belongs to the opened file rather than to the process, so it also keeps the same
    process from opening a folder twice. The kernel drops it when the process ends, however.

    Raises:
        StoreLocked: somebody else holds it, named in the message.
        AccessDenied, Unavailable: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise at once."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(folder / OWNER_FILE, flags, FILE_MODE)
        except OSError as error:
            if (folder / OWNER_FILE).is_symlink():
                raise _foreign_owner(folder) from error
            raise explain(error, folder) from error
        try:
            self._check(folder)
            self._take(folder)
            forget_served(folder)  # a process that was killed has left it
        except BaseException:
            os.close(self._descriptor)
            raise
        forks.mind(self)

    def forked(self) -> None:
        """Close the descriptor in the child of a fork: the lock is the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock. Idempotent.

        Another file may have the number of the descriptor by now, also in the child of a later
        fork.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _check(self, folder: Path) -> None:
        """Check that the file has nothing in it that must not be overwritten."""
        is_file = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        if not is_file or not _is_owner(os.pread(self._descriptor, _OWNER_BYTES + 1, 0)):
            raise _foreign_owner(folder)

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(self._descriptor, _OWNER_BYTES, 0).decode(errors="replace")
            raise locked(folder, owner) from None
        except OSError as error:
            if not is_full(error):  # else it is held all the same, only without a name in it
                raise explain(error, folder) from error


def prepare(folder: Path, *, create: bool) -> None:
    """Make sure that ``folder`` is one that can contain a store, or already does.

    LevelDB would start anew, and delete every table, in a folder that merely lacks ``CURRENT``.

    Raises:
        Invalid: it is a file, or contains something else; or there is no store and ``create`` is
            false.
        StoreCorrupted: it contains only the remains of a store.
        AccessDenied, Unavailable: the folder cannot be made or read.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise errors.Invalid(
                f"{folder} is a file, and a store is a folder; nothing was changed: give the path "
                "of a folder, which may be missing"
            )
        names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 (one look)
        if _is_store(folder, names):
            return
        if not create:
            raise errors.Invalid(
                f"there is no store in {folder}; nothing was changed: check the path, or create a "
                "store there"
            )
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            sync_path(folder.parent)
        _keep_others_out(folder)
    except OSError as error:
        if error.errno in _NO_PATH:
            raise errors.Invalid(
                f"there can be no folder {folder}: {error.strerror}; nothing was changed: give "
                "another path"
            ) from error
        raise explain(error, folder) from error


def _is_store(folder: Path, names: list[str]) -> bool:
    """Return whether the folder with these ``names`` in it is a store, or may become one.

    Raises:
        Invalid, StoreCorrupted: neither.
    """
    begun = OWNER_FILE in names
    if "CURRENT" in names and begun:
        return True
    if begun and any(_DATA_FILE.fullmatch(name) for name in names):
        raise damaged(folder, "it has data files but no file CURRENT that lists them")
    if not names or (begun and all(_BEGUN.fullmatch(name) for name in names)):
        return False
    if "CURRENT" in names:
        what = (
            f"a database on LevelDB, but no file {OWNER_FILE!r}, which every store has: if it is a "
            "store, copied without that file, make an empty one"
        )
    else:
        what = f"something else ({min(names)!r}, for one)"
    raise errors.Invalid(
        f"{folder} contains {what}; nothing was changed: give a folder that is a store, that is "
        "empty, or that is not there yet"
    )


def _keep_others_out(folder: Path) -> None:
    """Keep other users out of a folder that becomes a store, by its mode and its list.

    Either of both is enough. The device, or the owner of the folder, may not allow it.
    """
    with contextlib.suppress(OSError):  # it was made by somebody else, who decides
        folder.chmod(FOLDER_MODE)
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(folder, _ACL, _OWNER_ONLY)


def _is_owner(content: bytes) -> bool:
    return len(content) <= _OWNER_BYTES and _OWNER.fullmatch(content) is not None


def _foreign_owner(folder: Path) -> errors.Invalid:
    return errors.Invalid(
        f"{folder / OWNER_FILE} is a link, or has something else than the process that has the "
        "store open; nothing was changed: move it away, or give another folder"
    )


def logs(folder: Path) -> list[Path]:
    """Return LevelDB's logs, oldest first."""
    found = [path for path in folder.glob("*.log") if _DATA_FILE.fullmatch(path.name)]
    return sorted(found, key=lambda log: int(log.stem))


def newest_log(folder: Path) -> Path | None:
    """Return the log that LevelDB wrote last, or is writing."""
    return next(reversed(logs(folder)), None)


def sync_logs(folder: Path) -> None:
    """Make durable what LevelDB has written to its logs, without holding up who writes them."""
    for log in logs(folder):
        with contextlib.suppress(FileNotFoundError):  # it has become a table file, which is synced
            descriptor = os.open(log, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
    sync_path(folder)


def sync_path(path: Path) -> None:
    """Make durable the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain(error: Exception, folder: Path) -> errors.Error:
    """Return the error to raise instead of ``error``, which came up on opening ``folder``."""
    what = reason(error)
    if any(phrase in what for phrase in _LOCKED):
        return locked(folder, "")
    if is_full(error) or _SCARCE in what:
        kind = DeviceFull if is_full(error) else errors.Unavailable
        return kind(
            f"The store in {folder} cannot be opened: {what}. Free some room and try again.",
            retry_after=1.0,
        )
    if isinstance(error, PermissionError) or any(phrase in what for phrase in _DENIED):
        return errors.AccessDenied(
            f"The store in {folder} cannot be opened for writing: {what}. "
            "Check the path, its owner and permissions, and how its device is mounted."
        )
    return damaged(folder, what)


def is_full(error: Exception) -> bool:
    """Return whether an engine, or the operating system, says that the device has no room."""
    what = reason(error)
    return any(phrase in what for phrase in _FULL)


def locked(folder: Path, owner: str) -> errors.StoreLocked:
    """Return the error that names the ``owner``, as it is written in the file of that name."""
    process, _, host = owner.strip().partition(" ")
    address = served_at(folder)
    if process == str(os.getpid()) and host == socket.gethostname():
        return errors.StoreLocked(
            f"The store in {folder} is open already, in this process ({process}): use that "
            "Database, which may be shared by any number of threads, or close it first.",
            address,
        )
    who = f"process {process} on host {host}" if host else "another process"
    if address:
        return errors.StoreLocked(
            f"The store in {folder} is open in {who}, which serves it; nothing was changed: use "
            f"postroom.connect({address!r}).",
            address,
        )
    return errors.StoreLocked(
        f"The store in {folder} is open in {who}; nothing was changed: close it there; or have "
        f"that process serve it, postroom.open(..., serve='unix:'), or 'postroom serve --path "
        f"{folder} --listen 127.0.0.1:7400 --insecure', and use it from any number of others: "
        "postroom.connect('127.0.0.1:7400', insecure=True). If that process is a node already, "
        "connect to its address."
    )


def note_served(folder: Path, address: str) -> None:
    """Put the address at which the store in a folder is served into the folder, for others.

    Raises:
        AccessDenied, Unavailable: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(folder / SERVED_FILE, flags, FILE_MODE)
        try:
            os.write(descriptor, f"{address}\n".encode(errors="surrogateescape"))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise explain(error, folder) from error


def forget_served(folder: Path) -> None:
    """Delete the address from a folder: its store is not served any more."""
    with contextlib.suppress(OSError):
        (folder / SERVED_FILE).unlink()


def served_at(folder: Path) -> str:
    """Return the address at which the store in a folder is served; empty: none is known."""
    try:
        with (folder / SERVED_FILE).open("rb") as file:
            said = file.read(_SERVED_BYTES).decode(errors="surrogateescape")
    except OSError:
        return ""
    found = _SERVED.fullmatch(said)
    return found[1] if found else ""


def damaged(folder: Path, what: str) -> errors.StoreCorrupted:
    """Return the error for a folder whose content is not what it must be."""
    return errors.StoreCorrupted(
        f"The store in {folder} is damaged: {what}. Nothing was changed. Restore the folder from "
        "a backup, or copy it aside and repair the copy by its library (plyvel.repair_db "
        "or rocksdict.Rdict.repair keeps what is readable)."
    )


def unreadable(folder: Path, what: str) -> BlockDamaged:
    """Return the error for a part of the data that cannot be read while the store is open."""
    return BlockDamaged(str(damaged(folder, what)))


def reason(error: Exception) -> str:
    """Return the message of the engine, or of the operating system, in one line.

    LevelDB's messages are bytes.
    """
    first = error.args[0] if error.args else ""
    text = first.decode(errors="replace") if isinstance(first, bytes) else str(error)
    return " ".join(text.split())
