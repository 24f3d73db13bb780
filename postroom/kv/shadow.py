"""A shadow of a folder of LevelDB, to read it while its own device is full.

LevelDB writes when it opens a folder: a manifest, and a table of what is in its log. A shadow is a
folder on another device, in memory as a rule. It has links to the tables, and copies of the rest,
which is little. LevelDB's writes and deletions there do not touch the original.

A process that is killed leaves its shadow. The next one for the same folder removes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

IN_MEMORY: Final = Path("/dev/shm")
_COPIED: Final = ("CURRENT", "MANIFEST-*", "*.log")
_LINKED: Final = "*.ldb"


class Shadow:
    """See the module.

    Args:
        folder: the original, absolute.

    Attributes:
        path: the shadow.

    Raises:
        OSError: there is no room for it anywhere.
    """

    def __init__(self, folder: Path) -> None:
        name = f"postroom-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}"
        error: OSError | None = None
        for parent in (IN_MEMORY, Path(tempfile.gettempdir())):
            self.path = parent / name
            try:
                self._make(folder)
            except OSError as failure:
                error = failure
                self.remove()
            else:
                return
        assert error is not None
        raise error

    def _make(self, folder: Path) -> None:
        self.remove()
        self.path.mkdir(mode=0o700)  # fails if it is somebody else's
        for pattern in _COPIED:
            for file in folder.glob(pattern):
                shutil.copyfile(file, self.path / file.name)
        for file in folder.glob(_LINKED):
            (self.path / file.name).symlink_to(file)

    def remove(self) -> None:
        """Remove it, if it is this user's. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
