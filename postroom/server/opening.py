"""Opening the folder of a node: the engine that holds its state, and beside it the log.

::

    folder/           the engine's own files, and ``owner``
    folder/log/       segments, and the mark
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from pathlib import Path
from typing import Final

from postroom.kv.beside import StateThread
from postroom.kv.engine import Engine, EngineFailed
from postroom.kv.engine_file import EngineName
from postroom.kv.folder import explain
from postroom.kv.log.device import FolderDevice
from postroom.kv.log.format import LOG_ID_BYTES
from postroom.kv.opening import open_engine
from postroom.kv.storage import Storage
from postroom.limits import LOG_SEGMENT_BYTES
from postroom.server.store import stopped_by

LOG_FOLDER: Final = "log"

_SEGMENT_BYTES_MIN: Final = 1024 * 1024
_DEVICE_SHARE: Final = 8
"""On a small device, no segment takes more than this part of what is free."""


def open_storage(
    folder: Path,
    randomness: random.Random,
    *,
    create: bool = True,
    engine_name: EngineName | None = None,
    segment_bytes: int | None = None,
) -> Storage:
    """The storage in ``folder``, made if there is none; one of an earlier format is converted.

    Args:
        folder: where it lies.
        randomness: for the id of a new log.
        create: whether it may be missing.
        engine_name: which engine holds the state; ``None``: the one that wrote the folder, for a
            new one the first of them that is installed.
        segment_bytes: of the log, from now on; ``None``: as usual, less on a small device.

    Raises:
        StoreLocked, StoreCorrupted, VersionMismatch, AccessDenied, Unavailable: it cannot be
            opened.
    """
    engine = open_engine(folder, engine_name, create=create, replays=True)
    device: FolderDevice | None = None
    try:
        device = FolderDevice(folder / LOG_FOLDER)
        return Storage.open(
            engine,
            device,
            lambda: randomness.randbytes(LOG_ID_BYTES),
            segment_bytes=segment_bytes or _fitting(engine),
            beside=StateThread(),
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
