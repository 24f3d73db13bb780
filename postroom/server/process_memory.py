"""The memory of this process: its own, and that of files that the system maps into it.

Mapped files are read again from the disk when the system wants their memory for something else.
Other processes can have that memory; a limit must be compared with the process's own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

_STATUS: Final = Path("/proc/self/status")
_OWN: Final = ("RssAnon",)
_MAPPED: Final = ("RssFile", "RssShmem")
"""The names of mapped memory. Files in memory file systems count as shared memory."""


class ProcessMemory(NamedTuple):
    """The memory of a process, in bytes; 0: this system does not tell."""

    own_bytes: int = 0
    mapped_bytes: int = 0


def process_memory() -> ProcessMemory:
    """Return the memory of this process, read from Linux's process file system."""
    told: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in _OWN + _MAPPED:
                told[name] = int(value.split()[0]) * 1024
    return ProcessMemory(*(sum(told.get(name, 0) for name in names) for names in (_OWN, _MAPPED)))
