"""The folder of a backup: files of parts, and a manifest that is written last.

::

    FOLDER/part-00000      what belongs to no key: outboxes, dead letters, queues, counters
    FOLDER/part-00001 ...  spans of keys
    FOLDER/trail-00000 ... the trail of each of them, if it was kept (:mod:`.trail`)
    FOLDER/manifest.json   now it is a backup

Files without a manifest are those of a backup that was killed. The next one removes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Self

from postroom.backup import manifest as manifests
from postroom.backup.blocks import HEADING, Block, Entries, block_of, packed, read_blocks
from postroom.backup.manifest import MANIFEST, BackupManifest, BackupPart
from postroom.errors import AccessDenied, Invalid, Unavailable
from postroom.kv.folder import FOLDER_MODE, is_full, sync_path
from postroom.limits import BACKUP_BLOCK_ROWS_MAX, BACKUP_MANIFEST_BYTES_MAX

_NEW: Final = f"{MANIFEST}.new"
_OURS: Final = re.compile(rf"(part|trail)-[0-9]{{5}}|{re.escape(_NEW)}")
_GATHERED_BYTES: Final = 1024 * 1024
_GATHERED_ROWS: Final = BACKUP_BLOCK_ROWS_MAX // 2
_HASHED_AT_ONCE: Final = 1024 * 1024


class BackupFolder:
    """The folder of a backup.

    Args:
        path: its path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def manifest(self) -> BackupManifest | None:
        """Return the manifest; ``None``: there is none.

        Raises:
            Invalid: it is damaged, or of another format.
        """
        path = self.path / MANIFEST
        try:
            with _opened(path) as file:
                content = file.read(BACKUP_MANIFEST_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(content) > BACKUP_MANIFEST_BYTES_MAX:
            raise Invalid(f"{path} is no manifest: it is too large; nothing was changed")
        return manifests.decoded(content, path)

    def complete(self) -> BackupManifest:
        """Return the manifest.

        Raises:
            Invalid: there is none, or it is damaged.
        """
        found = self.manifest()
        if found is None:
            raise Invalid(
                f"there is no complete backup in {self.path}: {MANIFEST} is not there; nothing was "
                "changed: give the folder of a backup, or run a backup that was killed again"
            )
        return found

    @contextmanager
    def written(self) -> Generator[None]:
        """Keep others from writing a backup here, in a block; remove the files of a killed one.

        Raises:
            Invalid: something else is in the folder.
            Unavailable: another backup is being written into it, or the device is full.
            AccessDenied: it cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise Invalid(f"{self.path} is a file; nothing was changed: give the name of a folder")
        with _explained(self.path):
            self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._lock(descriptor)
                self._remove_remains()
                yield
            finally:
                os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another backup is being written into {self.path}; nothing was changed: wait for "
                "it, or give another folder"
            ) from None

    def _remove_remains(self) -> None:
        if self.manifest() is not None:
            return
        found = sorted(self.path.iterdir())
        for path in found:
            if not _OURS.fullmatch(path.name) or path.is_dir():
                raise Invalid(
                    f"{self.path} is not empty ({path.name} is in it); nothing was changed: give "
                    "a folder of its own"
                )
        for path in found:
            path.unlink()

    def commit(self, manifest: BackupManifest) -> None:
        """Make the files a backup, in one step."""
        new = self.path / _NEW
        new.write_bytes(manifests.encoded(manifest))
        sync_path(new)
        new.replace(self.path / MANIFEST)
        sync_path(self.path)
        sync_path(self.path.parent)

    def check(self, name: str, part: BackupPart) -> None:
        """Check that the file of a name is the one that was written for a part.

        Raises:
            Invalid: it is not.
        """
        path = self.path / name
        digest = hashlib.sha256()
        try:
            with _opened(path) as file:
                if os.fstat(file.fileno()).st_size == part.bytes:
                    while content := file.read(_HASHED_AT_ONCE):
                        digest.update(content)
        except FileNotFoundError:
            raise _another(path, "is gone") from None
        if digest.hexdigest() != part.sha256:
            raise _another(path, "is not as it was written: its checksum is another one")

    def read(self, name: str) -> Iterator[Entries]:
        """Iterate over the entries of a file, a block at a time.

        Raises:
            Invalid: the file is damaged.
        """
        path = self.path / name
        with _opened(path) as file:
            yield from read_blocks(file, path)


class PartFile:
    """The file of a part in the making.

    Use it in a ``with`` block, which closes it.

    Args:
        folder: the folder of the backup.
        name: the name of the file.

    Attributes:
        entries: the number of entries in it.
    """

    def __init__(self, folder: BackupFolder, name: str) -> None:
        self._file = (folder.path / name).open("xb")
        self._digest = hashlib.sha256()
        self._bytes = self.entries = 0
        self._names: list[bytes] = []
        self._stored: list[bytes | None] = []
        self._gathered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._bytes += len(content)

    def begin(self) -> None:
        """Write the first line."""
        self._write(HEADING)

    def add_block(self, block: Block, entries: int) -> None:
        """Add a block."""
        self._write(packed(block))
        self.entries += entries

    def add(self, entries: Entries) -> None:
        """Add entries, gathered into blocks, since few changes would make small ones."""
        names, stored = entries
        self._names += names
        self._stored += stored
        self._gathered += sum(map(len, names)) + sum(len(each or b"") for each in stored)
        while self._gathered >= _GATHERED_BYTES or len(self._names) >= _GATHERED_ROWS:
            self._flush()

    def _flush(self) -> None:
        some = self._names[:_GATHERED_ROWS], self._stored[:_GATHERED_ROWS]
        del self._names[:_GATHERED_ROWS], self._stored[:_GATHERED_ROWS]
        if some[0]:
            self.add_block(block_of(some), len(some[0]))
        if not self._names:
            self._gathered = 0

    def end(self, start: bytes, end: bytes | None) -> BackupPart:
        """Complete the file, on the disk; return its part."""
        while self._names:
            self._flush()
        self._file.flush()
        os.fsync(self._file.fileno())
        ended = None if end is None else end.hex()
        return BackupPart(start.hex(), ended, self.entries, self._bytes, self._digest.hexdigest())


def _opened(path: Path) -> BinaryIO:
    """Open a file to be read, which is neither a link nor a pipe.

    Raises:
        Invalid: it is.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise _another(path, "is a link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _another(path, "is no file")
    return os.fdopen(descriptor, "rb")


def _another(path: Path, what: str) -> Invalid:
    return Invalid(f"{path} {what}; nothing was changed: get the backup from where it is sound")


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Turn errors of the system in writing a folder into those that say what to do."""
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(
            f"{path} cannot be written: {error}; there is no backup in it"
        ) from error
    except OSError as error:
        if not is_full(error):
            if error.filename is None:
                raise
            raise Invalid(
                f"{error.filename} cannot be written: {error.strerror}; there is no backup in "
                f"{path}: give another folder"
            ) from error
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}; there is no backup in it: free some "
            "room, and run it again"
        ) from error
