"""The folder of an archive: its operations on a file system, on this machine or elsewhere.

Everything rests on four promises:

* a file that was written and closed is there for everybody who reads or lists afterwards;
* :meth:`ArchiveFolder.put_new` makes a file appear as a whole or not at all, and never over another
  one;
* after :meth:`ArchiveFolder.sync` files outlive a loss of power;
* deleting is not undone.

On this machine they are kept by ``fsync``, of files and of the folders that name them. A hard link
keeps the second one: it fails if there is a file. Elsewhere Spark's own file system is used,
Hadoop's ``FileSystem``. HDFS keeps all promises. Stores of objects keep the first, third and
fourth. Two runs that rename onto one name at once may both succeed there: only one run at a time
may archive into such a folder.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from postroom.errors import Invalid
from postroom.kv.folder import sync_path
from postroom.pipeline.jobs.job import JobFailed

_LOCAL: Final = {"", "file"}


class StoredFile(NamedTuple):
    """The path of a file below the folder, and its size in bytes."""

    path: str
    size: int


class ArchiveFolder(Protocol):
    """The folder of an archive: see the module. Paths are relative, with ``/``."""

    def uri(self, path: str = "") -> str:
        """Return the URI by which Spark names a path."""

    def files(self, path: str) -> list[StoredFile]:
        """Return all files below a path, in order; none if there is no such path."""

    def read(self, path: str) -> bytes:
        """Return the content of a small file.

        Raises:
            FileNotFoundError: there is none.
        """

    def put_new(self, path: str, content: bytes) -> bool:
        """Make a small file that outlives a loss of power.

        Returns:
            ``False`` if there is one already, and nothing was changed.
        """

    def sync(self, paths: list[str]) -> None:
        """Make these files outlive a loss of power from now on."""

    def delete(self, path: str) -> None:
        """Delete a file, or nothing if there is none."""


class LocalArchiveFolder:
    """A folder on this machine, or on a share that it has mounted.

    Args:
        root: need not be there yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def uri(self, path: str = "") -> str:
        """Return the URI by which Spark names a path; it takes percent signs literally."""
        return f"file://{self._root / path}"

    def files(self, path: str) -> list[StoredFile]:
        """Return all files below a path."""
        found = []
        for folder, _, names in os.walk(self._root / path, onerror=_raise_if_there):
            for each in (Path(folder, name) for name in names):
                try:
                    state = each.stat()
                except FileNotFoundError:  # it was deleted just now, or it is a draft
                    continue
                if stat.S_ISREG(state.st_mode):
                    found.append(StoredFile(each.relative_to(self._root).as_posix(), state.st_size))
        return sorted(found)

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        return (self._root / path).read_bytes()

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file under another name, sync and link it; a link fails if there is a file."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}.draft")
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, target)
            except FileExistsError:
                return False
        finally:
            draft.unlink(missing_ok=True)
        self._sync_folders({target.parent})
        return True

    def sync(self, paths: list[str]) -> None:
        """Sync files, and the folders that name them."""
        folders = set()
        for path in paths:
            target = self._root / path
            sync_path(target)
            folders.add(target.parent)
        self._sync_folders(folders)

    def _sync_folders(self, folders: set[Path]) -> None:
        every = set(folders)
        for folder in folders:
            every |= {each for each in folder.parents if each.is_relative_to(self._root.parent)}
        for folder in sorted(every, reverse=True):
            sync_path(folder)

    def delete(self, path: str) -> None:
        """Delete a file, and the folders that are empty then."""
        target = self._root / path
        target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self._root or not folder.is_relative_to(self._root):
                return
            try:
                folder.rmdir()
            except OSError:  # it is not empty, or is gone
                return


def _raise_if_there(error: OSError) -> None:
    """Raise an error unless it says that the folder is missing, and has no files."""
    if not isinstance(error, FileNotFoundError):
        raise error


class HadoopFolder:
    """A folder that Spark can write, reached through its own Java classes.

    Args:
        jvm: the gateway to Spark's Java.
        configuration: Hadoop's, of the session.
        root: a URI.
    """

    def __init__(self, jvm: Any, configuration: Any, root: str) -> None:
        self._jvm = jvm
        self._root = root.rstrip("/")
        self._system = self._path("").getFileSystem(configuration)
        self._top = str(self._system.makeQualified(self._path("")).toUri().getPath())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)

    def uri(self, path: str = "") -> str:
        """Return the URI by which Spark names a path."""
        return f"{self._root}/{path}" if path else self._root

    def files(self, path: str) -> list[StoredFile]:
        """Return all files below a path."""
        target, found = self._path(path), []
        if not self._system.exists(target):
            return []
        listed = self._system.listFiles(target, True)
        while listed.hasNext():
            each = listed.next()
            whole = str(each.getPath().toUri().getPath())
            found.append(StoredFile(whole.removeprefix(self._top).lstrip("/"), int(each.getLen())))
        return sorted(found)

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        try:
            stream = self._system.open(self._path(path))
        except Py4JError as error:
            if self._system.exists(self._path(path)):
                raise
            raise FileNotFoundError(self.uri(path)) from error
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file under another name and rename it, which fails if there is a file."""
        target, draft = self._path(path), self._path(f"{path}.{secrets.token_hex(8)}.draft")
        if self._system.exists(target):
            return False
        stream = self._system.create(draft, True)
        try:
            stream.write(bytearray(content))
            stream.hsync()
        finally:
            stream.close()
        if self._system.rename(draft, target):
            return True
        self._system.delete(draft, False)
        return False

    def sync(self, paths: list[str]) -> None:
        """Check that the files are there.

        By the promise of the file system, a file that was closed outlives a loss of power.
        """
        for path in paths:
            if not self._system.exists(self._path(path)):
                raise JobFailed(f"{self.uri(path)} was written, and is not there")

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._system.delete(self._path(path), False)


def literal_pattern(uri: str) -> str:
    """Return a URI as a pattern of Spark's readers that matches only itself."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", uri)


def open_folder(spark: SparkSession, where: str) -> ArchiveFolder:
    """Return the folder at a path, or at a URI.

    Raises:
        Invalid: it is elsewhere, and Spark's driver is too (Spark Connect).
    """
    parts = urlsplit(where)
    if parts.scheme in _LOCAL:
        return LocalArchiveFolder(Path(unquote(parts.path) if parts.scheme else where))
    jvm, context = getattr(spark, "_jvm", None), getattr(spark, "_jsc", None)
    if jvm is None or context is None:
        raise Invalid(f"{where} can be archived into only where Spark's driver is on this machine")
    return HadoopFolder(jvm, context.hadoopConfiguration(), where)
