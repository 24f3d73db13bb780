"""The marker of the state, the format of a folder, and the log of a new store.

::

    01 store     "postroom" · format · id of the log · number of a record of it that was durable

A folder has one format number, which covers every record in it. Opening checks it before anything
else. The name in front tells it from the marker of Postroom 0.1, which begins with a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import keys
from postroom.kv.engine import Engine, WriteSet
from postroom.kv.log_device import Device
from postroom.kv.log_reader import LOG_ID_BYTES, NEW_SUFFIX
from postroom.kv.log_writer import create_log

FORMAT_VERSION: Final = 1
"""The format of the folders that are written."""
OLDEST_FORMAT_READ: Final = 1
"""The oldest format of folders that are read. An opened folder gets ``FORMAT_VERSION``."""
FORMAT_NAME: Final = "postroom"
"""The first field of the records that tell a format."""

MARKER_KEY: Final = keys.store_key("store")
_MARKER: Final = b"\x94\xa8postroom%c\xc4\x10%b\xcf%b"
"""MessagePack: a list of the name, the format, 16 bytes, and a number of 8 bytes."""
_MARKER_BYTES: Final = 13 + LOG_ID_BYTES + 9

_RAFT_LOG: Final = keys.RAFT_LOG[0]
_SPOOL: Final = b"s"
_TOMBSTONE: Final = b"t"
_WITH_STATE: Final = (_SPOOL, b"m")


def create(
    state: Engine, device: Device, new_id: Callable[[], bytes], segment_bytes: int
) -> tuple[bytes, int]:
    """Give an empty state its log.

    The log is made under a temporary name. Then the state gets its marker, in a synced write, and
    after that the log gets its name. If the power fails before the write, all of it is done again.
    If it fails afterwards, only the renaming is left to do.

    Returns:
        The id of the log, and the number of its last record.

    Raises:
        StoreCorrupted: there is a log already, or the state is not empty.
    """
    if any(not name.endswith(NEW_SUFFIX) for name in device.names()):
        raise StoreCorrupted(
            "The state of the store is missing: there is a log, and nothing that it belongs to. "
            "Nothing was changed. Restore the whole folder from a backup; a node of a cluster is "
            "replaced as if its disk were lost."
        )
    for key, _ in state.iterate(b"", b"\xff" * 8):
        raise StoreCorrupted(
            f"the folder contains a database (its first key is {key!r}) that is not a Postroom "
            "store; nothing was changed: give another folder"
        )
    log_id = new_id()
    create_log(device, log_id, segment_bytes)
    state.write({MARKER_KEY: encode_marker(log_id, 1)}, sync=True)
    return log_id, 1


def encode_marker(log_id: bytes, durable: int) -> bytes:
    """Return the marker as it is stored."""
    return _MARKER % (FORMAT_VERSION, log_id, keys.u64(durable))


def decode_marker(stored: bytes) -> tuple[bytes, int]:
    """Return the id of the log, and the number of the record.

    Raises:
        VersionMismatch: the folder has a format that this version does not read.
        StoreCorrupted: the marker cannot be read.
    """
    version = check_format(stored)
    log_id, durable = stored[13 : 13 + LOG_ID_BYTES], stored[-8:]
    if len(stored) != _MARKER_BYTES or stored != _MARKER % (version, log_id, durable):
        raise unreadable("")
    return log_id, int.from_bytes(durable, "big")


def is_outdated(stored: bytes) -> bool:
    """Return whether a marker tells an older format than the one that is written."""
    return check_format(stored) < FORMAT_VERSION


def check_format(stored: bytes) -> int:
    """Return the format that a marker, or the record of a store, tells.

    Raises:
        VersionMismatch: this version does not read that format.
        StoreCorrupted: ``stored`` is neither a marker nor such a record.
    """
    try:
        fields = msgspec.msgpack.decode(stored, type=list)
    except (ValueError, msgspec.DecodeError) as error:
        raise unreadable(f" ({error})") from error
    match fields:
        case [str(name), int(version), *_] if name == FORMAT_NAME:
            if OLDEST_FORMAT_READ <= version <= FORMAT_VERSION:
                return version
            raise VersionMismatch(
                f"the store is written in format {version}, this version of Postroom reads "
                f"{_formats_read()}; nothing was changed: open it with a version that knows its "
                "format"
            )
        case [int(version), *_]:
            raise VersionMismatch(
                f"the store was written by Postroom 0.1 (its format {version}), which this version "
                "does not read; nothing was changed: open it with Postroom 0.1, or give another "
                "folder for a new store"
            )
    raise unreadable("")


def unreadable(why: str) -> StoreCorrupted:
    """Return the error for a marker, or a record of a store, that cannot be read."""
    return StoreCorrupted(
        f"the record that says what this store is cannot be read{why}; nothing was changed: "
        "restore a backup"
    )


def _formats_read() -> str:
    if OLDEST_FORMAT_READ == FORMAT_VERSION:
        return f"format {FORMAT_VERSION}"
    return f"formats {OLDEST_FORMAT_READ} to {FORMAT_VERSION}"


def is_of_state(key: bytes) -> bool:
    """Return whether a key of consensus lies with the state.

    These keys tell which entry the state includes, and contain a snapshot that has arrived.
    """
    return key[:1] == keys.RAFT_LOG and key[9:10] in _WITH_STATE


def is_logged(key: bytes) -> bool:
    """Return whether a key lies in the log."""
    return key < keys.RANGE and not is_of_state(key)


def split(writes: WriteSet) -> tuple[WriteSet, bool]:
    """Take the writes that go into the log out of ``writes``; the others go into the state.

    Returns:
        The writes for the log, and whether the state must be durable before them: a snapshot
        arrives, or a tombstone says that data has gone.
    """
    logged: WriteSet = {}
    is_state_first = False
    for key in [key for key in writes if key < keys.RANGE]:
        kind = key[9:10] if key[0] == _RAFT_LOG else b""
        if kind not in _WITH_STATE:  # see ``is_of_state``
            logged[key] = writes.pop(key)
            if kind == _TOMBSTONE:
                is_state_first = True
        elif key[9:] == _SPOOL:
            is_state_first = True
    return logged, is_state_first
