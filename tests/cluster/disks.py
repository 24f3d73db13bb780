"""The places of a test cluster's data: a folder, or a small disk that can fill up.

A small disk is a ``tmpfs``, which needs root. It is full when a ballast file takes what is left.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

_BLOCK_BYTES = 1 << 16


class Disk(Protocol):
    """A node's data folder."""

    folder: Path

    def wipe(self) -> None:
        """Lose everything."""

    def close(self) -> None:
        """Remove the place: it is not needed any more."""


class Folder:
    """A folder on the disk that this machine has for such things."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wipe(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Leave the folder: it is the test's."""


class SmallDisk:
    """A small file system, with the data in a folder of it, and the ballast beside that."""

    def __init__(self, mount: Path, size_bytes: int) -> None:
        self._mount = mount
        self.folder = mount / "data"
        self._ballast = mount / "ballast"
        mount.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mount))

    def wipe(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, left_bytes: int) -> None:
        """Leave ``left_bytes``, or less if the node writes meanwhile."""
        with self._ballast.open("ab") as ballast:
            while (amount := self._free_bytes() - left_bytes) > 0:
                size = os.fstat(ballast.fileno()).st_size
                try:
                    os.posix_fallocate(ballast.fileno(), size, amount)
                except OSError as error:  # the node has taken some of it
                    if error.errno != errno.ENOSPC:
                        raise

    def _free_bytes(self) -> int:
        free = os.statvfs(self._mount)
        return free.f_bavail * free.f_bsize

    def free(self) -> None:
        """Remove the ballast."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(("umount", "-l", str(self._mount)), check=False, capture_output=True)


@cache
def small_disks_work() -> bool:
    """Return whether this machine allows small disks: root, and a kernel that lets it mount."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with TemporaryDirectory() as folder:
        try:
            SmallDisk(Path(folder), _BLOCK_BYTES).close()
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
