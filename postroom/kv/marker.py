"""The marker of the state, and how a store gets its log: a new one, and one of format 1.

::

    01 store     version · id of the log · a record of it that was durable

The marker is where format 1 had its record of the store, and begins with the version, as that did:
so an earlier version of Postroom, which reads that first, leaves the folder alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import keys
from postroom.kv.engine import Engine, WriteSet
from postroom.kv.log.device import Device
from postroom.kv.log.format import LOG_ID_BYTES
from postroom.kv.log.reader import NEW_SUFFIX
from postroom.kv.log.writer import create_log

FORMAT_VERSION: Final = 2
"""Version 1 had the raft log and the records of the store in the engine, and no other log."""

MARKER_KEY: Final = keys.store_key("store")
_MARKER: Final = b"\x93\x02\xc4\x10%b\xcf%b"
"""MessagePack: a list of the version (which every version of Postroom reads first), 16 bytes, and a
number of 8 bytes."""
_MARKER_BYTES: Final = 4 + LOG_ID_BYTES + 9

_RAFT_LOG: Final = keys.RAFT_LOG[0]
_SPOOL: Final = b"s"
_WITH_STATE: Final = (_SPOOL, b"m")


def create(
    state: Engine, device: Device, new_id: Callable[[], bytes], segment_bytes: int
) -> tuple[bytes, int]:
    """Give an empty state, or one of format 1, its log; the id of that, and its last record.

    The log is made under another name; the state then lets go of what the log has, and gets its
    marker, in one synced write; then the log gets its name. If that is cut short before the
    write it is done again, after it only the renaming is left.
    """
    if any(not name.endswith(NEW_SUFFIX) for name in device.names()):
        raise StoreCorrupted(
            "The state of the store is missing: there is a log, and nothing that it belongs to. "
            "Nothing was changed. Restore the whole folder from a backup; a node of a cluster is "
            "replaced as if its disk were lost."
        )
    notes: WriteSet = {
        key: value for key, value in state.iterate(b"", keys.RANGE) if is_logged(key)
    }
    if not any(key.startswith(keys.STORE) for key in notes):
        for key, _ in state.iterate(b"", b"\xff" * 8):
            raise StoreCorrupted(
                f"the folder holds a database (its first key is {key!r}) that is not a Postroom "
                "store; nothing was changed: give another folder"
            )
    log_id = new_id()
    create_log(device, log_id, segment_bytes, notes)
    removed: WriteSet = dict.fromkeys(notes)
    state.write({**removed, MARKER_KEY: encode_marker(log_id, 1)}, sync=True)
    return log_id, 1


def encode_marker(log_id: bytes, durable: int) -> bytes:
    """As it is stored."""
    return _MARKER % (log_id, keys.u64(durable))


def version_of(stored: bytes) -> int | None:
    """Of a marker, or of the record that was in its place in format 1."""
    if len(stored) > 1 and 0x90 < stored[0] <= 0x9F and stored[1] < 0x80:
        return stored[1]
    return None


def decode_marker(stored: bytes) -> tuple[bytes, int]:
    """The id of the log, and the record.

    Raises:
        VersionMismatch: a later version wrote it.
        StoreCorrupted: it cannot be read.
    """
    version = version_of(stored)
    if version is not None and version != FORMAT_VERSION:
        raise VersionMismatch(
            f"the store is written in format {version}, this version of Postroom knows "
            f"{FORMAT_VERSION}; nothing was changed: open it with a version that knows its format"
        )
    log_id, durable = stored[4 : 4 + LOG_ID_BYTES], stored[-8:]
    if len(stored) != _MARKER_BYTES or stored != _MARKER % (log_id, durable):
        raise StoreCorrupted(
            "the record that says what this store is cannot be read; nothing was changed: restore "
            "a backup"
        )
    return log_id, int.from_bytes(durable, "big")


def is_of_state(key: bytes) -> bool:
    """Whether a key of consensus lies with the state: what that includes, and a snapshot that has
    yet to be put in place.
    """
    return key[:1] == keys.RAFT_LOG and key[9:10] in _WITH_STATE


def is_logged(key: bytes) -> bool:
    """Whether a key lies in the log."""
    return key < keys.RANGE and not is_of_state(key)


def split(writes: WriteSet) -> tuple[WriteSet, bool]:
    """Take out of ``writes`` what goes into the log; what is left goes into the state.

    Returns:
        That, and whether what is left tells of a snapshot that arrives.
    """
    logged: WriteSet = {}
    tells_of_snapshot = False
    for key in [key for key in writes if key < keys.RANGE]:
        if key[0] != _RAFT_LOG or key[9:10] not in _WITH_STATE:  # as ``is_of_state`` says
            logged[key] = writes.pop(key)
        elif key[9:] == _SPOOL:
            tells_of_snapshot = True
    return logged, tells_of_snapshot
