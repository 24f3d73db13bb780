"""The opening of a node's folder: the store's identity, the engine of its state, and its log.

::

    folder/           the engine's own files, and ``owner``
    folder/log/       segments, and the mark

A folder is a store from the moment that this record is durable. A database without it, or in a
format that this version does not read, is left alone.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from postroom.errors import StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.kv.background import StateWriterThread
from postroom.kv.engine import Budget, Engine, EngineFailed
from postroom.kv.engine_folder import EngineName
from postroom.kv.folder import explain
from postroom.kv.full_device import ReopeningEngine
from postroom.kv.log_device import FolderDevice
from postroom.kv.log_reader import LOG_ID_BYTES
from postroom.kv.marker import FORMAT_NAME, FORMAT_VERSION, check_format, unreadable
from postroom.kv.opening import open_engine, open_to_read
from postroom.kv.storage import Storage
from postroom.limits import LOG_SEGMENT_BYTES, MEMORY_BYTES
from postroom.raft.consensus import Consensus

STORE_KEY: Final = keys.store_key("store")


class StoreRecord(msgspec.Struct, frozen=True, array_like=True, tag=FORMAT_NAME):
    """The identity of a store, and its format.

    Attributes:
        format_version: the number of the format (:mod:`postroom.kv.marker`).
        cluster_id: 16 random bytes.
        node_id: the number of the node.
    """

    format_version: int
    cluster_id: bytes
    node_id: int


def open_store(engine: Engine, randomness: random.Random, node_id: int) -> StoreRecord:
    """Return the record of the store in ``engine``, made if the engine is empty.

    Raises:
        StoreCorrupted, VersionMismatch, Unavailable: it cannot be opened.
    """
    known = read_store(engine)
    if known is None:
        check_empty(engine)
        record = StoreRecord(FORMAT_VERSION, randomness.randbytes(16), node_id)
    elif known.format_version != FORMAT_VERSION:
        record = msgspec.structs.replace(known, format_version=FORMAT_VERSION)
    else:
        return known
    try:
        engine.write({STORE_KEY: msgspec.msgpack.encode(record)}, sync=True)
    except EngineFailed as failure:
        raise stopped_by(failure) from failure
    return record


def read_store(engine: Engine) -> StoreRecord | None:
    """Return the record of the store in ``engine``, or ``None`` if it is no store yet.

    Raises:
        StoreCorrupted, VersionMismatch: it cannot be opened.
    """
    stored = engine.get(STORE_KEY)
    if stored is None:
        return None
    check_format(stored)
    try:
        return msgspec.msgpack.decode(stored, type=StoreRecord)
    except msgspec.MsgspecError as error:
        raise unreadable(f" ({error})") from error


def check_empty(engine: Engine) -> None:
    """Check that ``engine`` is empty.

    Raises:
        StoreCorrupted: it is not.
    """
    for key, _ in engine.iterate(b"", b"\xff"):
        raise StoreCorrupted(
            f"the folder has a database (its first key is {key!r}) that is not a Postroom store; "
            "nothing was changed: give another folder"
        )


def interrupted() -> Unavailable:
    """Return the error for callers after an exception has left a turn half-way."""
    return Unavailable(
        "the store has stopped because an exception (an interrupt, as a rule) in the thread that "
        "wrote has ended a write half-way; its outcome is unknown, and nothing more is "
        "written: open it again",
        retry_after=5.0,
    )


def stopped_by(failure: EngineFailed) -> Unavailable:
    """Return the error for callers after a write has failed."""
    return Unavailable(
        f"the store has stopped because a write failed ({failure}); nothing more is "
        "written: make sure that the device has room and works, then open it again",
        retry_after=5.0,
    )


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
        memory_bytes: the budget of memory (:class:`.Budget`).

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
            heads_bytes=budget.heads_bytes,
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


def bring_up_to_date(
    storage: Storage, consensus: Consensus, after_piece: Callable[[], None]
) -> None:
    """Apply the entries that are known to be committed, once all groups are open, piece by piece.

    Args:
        storage: the storage.
        consensus: the groups.
        after_piece: called when a piece is written; it may open more groups, which follow.

    Raises:
        Unavailable: a write failed.
    """
    try:
        for writes in consensus.replay():
            storage.write_turn(writes, sync=False)
            after_piece()
    except EngineFailed as failure:
        raise stopped_by(failure) from failure
    storage.serve(consensus.retained)
