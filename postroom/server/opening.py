"""The opening of a node's folder: the engine that holds its state, and beside it the log.

::

    folder/           the engine's own files, and ``owner``
    folder/log/       segments, and the mark
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from pathlib import Path
from typing import Final

from postroom.kv.budget import Budget
from postroom.kv.engine import Engine, EngineFailed
from postroom.kv.engine_file import EngineName
from postroom.kv.folder import explain
from postroom.kv.log.device import FolderDevice
from postroom.kv.log.format import LOG_ID_BYTES
from postroom.kv.opening import open_engine, open_to_read
from postroom.kv.reopening import ReopeningEngine
from postroom.kv.state_writer import StateWriterThread
from postroom.kv.storage import Storage
from postroom.limits import LOG_SEGMENT_BYTES, MEMORY_BYTES
from postroom.server.store import stopped_by

LOG_FOLDER: Final = "log"

_SEGMENT_BYTES_MIN: Final = 1024 * 1024
_DEVICE_SHARE: Final = 8
"""The part of the free space that a segment takes at most, as on a small device."""


def open_storage(
    folder: Path,
    randomness: random.Random,
    *,
    create: bool = True,
    engine_name: EngineName | None = None,
    segment_bytes: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> Storage:
    """Open the storage in ``folder``, or make it if there is none.

    A storage of an older format that is read gets the newest one.

    Args:
        folder: the folder of the node.
        randomness: for the id of a new log.
        create: whether it may be missing.
        engine_name: the engine of the state; ``None``: the one that wrote the folder, or for a
            new folder the first of them that is installed.
        segment_bytes: the length of the log's new segments; ``None``: the default, or less on a
            small device.
        memory_bytes: the budget of memory (:mod:`postroom.kv.budget`).

    Raises:
        StoreLocked, StoreCorrupted, VersionMismatch, AccessDenied, Unavailable: it cannot be
            opened.
    """
    budget = Budget(memory_bytes)
    engine = ReopeningEngine(
        lambda: open_engine(folder, engine_name, create=create, replays=True, budget=budget),
        lambda: open_to_read(folder, budget),
    )
    device: FolderDevice | None = None
    try:
        device = FolderDevice(folder / LOG_FOLDER)
        return Storage.open(
            engine,
            device,
            lambda: randomness.randbytes(LOG_ID_BYTES),
            segment_bytes=segment_bytes or _fitting(engine),
            writer=StateWriterThread(),
        )
    except BaseException as error:
        if device is not None:
            device.close()
        engine.close()
        if isinstance(error, OSError):
            raise explain(error, folder) from error
        if isinstance(error, EngineFailed):
            raise stopped_by(error) from error
        raise


def _fitting(engine: Engine) -> int:
    share = engine.free_bytes() // _DEVICE_SHARE
    return min(LOG_SEGMENT_BYTES, max(share, _SEGMENT_BYTES_MIN))
