"""The figures of the process, which any thread reads."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from postroom.metrics.table import Point
from postroom.server.describe import process_memory

_DESCRIPTORS: Final = Path("/proc/self/fd")


def process() -> Iterator[Point]:
    """Read memory and file descriptors, as far as the system tells them."""
    memory = process_memory()
    yield Point("postroom_memory_bytes", memory.own_bytes, ("own",))
    yield Point("postroom_memory_bytes", memory.mapped_bytes, ("mapped",))
    yield Point("postroom_descriptors_max", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError):
        yield Point("postroom_descriptors", sum(1 for _ in _DESCRIPTORS.iterdir()))
