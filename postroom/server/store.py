"""The identity of a store: the first record in its folder, with its ids and its format.

A folder is a store from the moment that this record is durable. A database without it, or in
another format, is left alone.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final, TypeVar

import msgspec

from postroom.errors import StoreCorrupted, Unavailable, VersionMismatch
from postroom.kv import keys
from postroom.kv.engine import Engine, EngineFailed

FORMAT_VERSION: Final = 2
"""The number of the format.

Version 1 had no log of its own (:mod:`postroom.kv.storage`), and no kind of its own for the value
that ``Increment`` writes.
"""
FORMAT_VERSIONS_READ: Final = (1, 2)
"""The formats that can be opened. A store of format 1 becomes one of format 2; its data stays."""
STORE_KEY: Final = keys.store_key("store")

T = TypeVar("T")


class StoreRecord(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a store, and its format."""

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
    version = _decoded(stored, list[Any])[0]
    if version not in FORMAT_VERSIONS_READ:
        raise VersionMismatch(
            f"the store is written in format {version}, this version of Postroom knows "
            f"{FORMAT_VERSION}; nothing was changed: open it with a version that knows its format"
        )
    return _decoded(stored, StoreRecord)


def _decoded(stored: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(stored, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreCorrupted(
            f"the record that says what this store is cannot be read ({error}); nothing was "
            "changed: restore a backup"
        ) from error


def check_empty(engine: Engine) -> None:
    """Check that ``engine`` is empty.

    Raises:
        StoreCorrupted: it is not.
    """
    for key, _ in engine.iterate(b"", b"\xff"):
        raise StoreCorrupted(
            f"the folder holds a database (its first key is {key!r}) that is not a Postroom store; "
            "nothing was changed: give another folder"
        )


def interrupted() -> Unavailable:
    """Return the error for callers after an exception has left a turn half-way."""
    return Unavailable(
        "the store has stopped because an exception (an interrupt, as a rule) in the thread that "
        "wrote has ended a write half-way; whether that took place is unknown, and nothing more is "
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
