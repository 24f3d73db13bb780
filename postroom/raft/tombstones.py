"""The tombstone of a replica that was destroyed, since its node is no member of the group any more.

::

    prefix | "t"     least index, term, vote, span to clear

A node that comes back to a group has forgotten what it has acknowledged. It must not help to elect
a leader that lacks it. It therefore takes only snapshots from the *least index* on, the applied
index of the state that said that the node is gone. Until then it votes for nobody. Term and vote
stay as they were. A tombstone has some forty bytes, and stays for good.

::

    replica ── one synced write: log out, tombstone in ──▶ destroyed ── state, in pieces ──▶ gone

Spans that are not cleared yet belong to no range. A node that opens does not take the range for
one that it has, and takes no snapshot that overlaps the span.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv.engine import ValueReader, WriteSet
from postroom.raft.interface import NodeId

ClearedSpan: TypeAlias = tuple[bytes, bytes | None]
"""The bounds of keys whose data has to go."""


class Tombstone(msgspec.Struct, frozen=True, array_like=True):
    """The record of a replica that was destroyed.

    Attributes:
        least_index: the least index of a snapshot that may come.
        term, vote: as they were.
        clears: the spans whose data has still to go, with all metadata of the range; none: all of
            it has gone.
    """

    least_index: int
    term: int = 0
    vote: NodeId | None = None
    clears: tuple[ClearedSpan, ...] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Tombstone).decode


def read_tombstone(stored: ValueReader, prefix: bytes) -> Tombstone | None:
    """Return the tombstone in the log of a group; ``None``: no replica was destroyed here.

    Raises:
        StoreCorrupted: it is unreadable.
    """
    packed = stored.get(prefix + b"t")
    try:
        return None if packed is None else _decode(packed)
    except (ValueError, msgspec.DecodeError) as error:
        raise StoreCorrupted(
            f"raft log {prefix.hex()}: the tombstone is unreadable ({error}); "
            "restore this node from the others, or from a backup"
        ) from error


def stage_tombstone(prefix: bytes, tombstone: Tombstone, staged: WriteSet) -> None:
    """Stage a tombstone in the log of a group, whose keys begin with ``prefix``."""
    staged[prefix + b"t"] = _encode(tombstone)
