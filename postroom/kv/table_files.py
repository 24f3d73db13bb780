"""The size of table files, and the number of them that stay open.

Opening a table file means reading its index and its filter: as long as a thousand look-ups take.
The tables are large enough that all of them stay open as long as the system has descriptors. They
are small enough that merging one of them is no long work. LevelDB maps the first thousand into
memory, which takes no descriptor.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

TABLE_BYTES: Final = 16 * 1024 * 1024
SMALLEST_TABLE_BYTES: Final = 2 * 1024 * 1024
LARGEST_TABLE_BYTES: Final = 256 * 1024 * 1024

TABLES_WANTED: Final = 1000
"""A store with more tables than that gets larger ones, from its next opening on."""

DEVICE_SHARE: Final = 128
"""On a small device, no table takes more than this part of it: merging takes ten times as much."""

WRITE_BUFFER_SHARE: Final = 64
SMALLEST_WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""On a small device, memtables are this part of it, but not smaller than that."""

DESCRIPTORS_SHARE: Final = 5
"""This part of the descriptors is for table files."""

_UNLIMITED: Final = 50_000


def table_bytes(folder: Path) -> int:
    """Return how large new table files in ``folder`` are: as the store, and its device, suggest."""
    stored = sum(each.stat().st_size for each in os.scandir(folder) if _is_table(each.name))
    device = os.statvfs(folder)
    wanted = TABLE_BYTES
    while wanted < LARGEST_TABLE_BYTES and wanted * TABLES_WANTED < stored:
        wanted *= 2
    return max(min(wanted, device.f_blocks * device.f_frsize // DEVICE_SHARE), SMALLEST_TABLE_BYTES)


def fitting_write_buffer(wanted_bytes: int, device_bytes: int) -> int:
    """Return how large a memtable is: less than wanted on a small device.

    A memtable has a log of its size, and becomes a table. Up to twelve of those lie side by side
    until they are merged.
    """
    share = max(device_bytes // WRITE_BUFFER_SHARE, SMALLEST_WRITE_BUFFER_BYTES)
    return min(wanted_bytes, share)


def descriptors_for_tables() -> int:
    """Return how many descriptors table files may take, by ``ulimit -n``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    return min(limit // DESCRIPTORS_SHARE, _UNLIMITED)


def _is_table(name: str) -> bool:
    return name.endswith((".ldb", ".sst"))
