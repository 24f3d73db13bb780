"""The identity of a store: the first record in its folder, with its ids and its format.

A folder is a store from the moment that this record is durable. A database without it, or in a
format that this version does not read, is left alone.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from typing import Final

import msgspec

from postroom.errors import StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.kv.engine import Engine, EngineFailed
from postroom.kv.marker import FORMAT_NAME, FORMAT_VERSION, check_format, unreadable

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
