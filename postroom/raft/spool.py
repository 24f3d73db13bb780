"""The spool of a snapshot: its chunks wait on the node's engine until all of them are there.

::

    prefix | "s"                  which snapshot, and whether it is complete
    prefix | "s" | ordinal (4)    its chunks

An incomplete spool only saves time: it is written without a sync, and a loss of power may shorten
it. Because the engine loses only the newest writes, a beginning without gaps is left. The follower
asks for the chunk after it. *Completing* it is the point from which log and hard state speak of the
snapshot, in the same write. The record then also is the marker of an installation that is under
way.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv.engine import Reader, WriteSet
from postroom.raft.membership import Members


class ArrivingSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The record of a snapshot that is arriving.

    Attributes:
        number: the term of the leader that sends it, and its count of transfers. The number of a
            later transfer is larger, because a term has one leader.
        index: the last entry that the state includes.
        index_term: the term of that entry.
        members: the members at the time of that entry.
        chunks: how many there are, once it is complete; 0 until then.
    """

    number: tuple[int, int]
    index: int
    index_term: int
    members: Members
    chunks: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ArrivingSnapshot).decode


class Spool:
    """The spool of one group. Staged chunks are readable from the next turn on."""

    def __init__(self, stored: Reader, prefix: bytes) -> None:
        """Open the spool that ``stored`` holds under the group's ``prefix``.

        Raises:
            StoreCorrupted: the record is unreadable, or chunks of a complete snapshot are missing.
        """
        self._stored = stored
        self._key = prefix + b"s"
        self.arriving = self._read_record()
        self.next_ordinal = 0
        if self.arriving is not None:
            while stored.get(self._chunk_key(self.next_ordinal)) is not None:
                self.next_ordinal += 1
            if self.next_ordinal < self.arriving.chunks:
                raise self._corrupted(f"chunk {self.next_ordinal} is missing")

    @property
    def complete(self) -> ArrivingSnapshot | None:
        """Return the complete snapshot that waits to be installed, or ``None``."""
        return self.arriving if self.arriving is not None and self.arriving.chunks else None

    def begin(self, arriving: ArrivingSnapshot, staged: WriteSet) -> None:
        """Begin another snapshot."""
        self.clear(staged)
        self.arriving = arriving
        staged[self._key] = _encode(arriving)

    def add(self, data: bytes, staged: WriteSet) -> None:
        """Add the next chunk."""
        staged[self._chunk_key(self.next_ordinal)] = data
        self.next_ordinal += 1

    def finish(self, staged: WriteSet) -> None:
        """Mark the snapshot as complete: all chunks are here."""
        assert self.arriving is not None
        self.arriving = msgspec.structs.replace(self.arriving, chunks=self.next_ordinal)
        staged[self._key] = _encode(self.arriving)

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of the complete snapshot, each read when it is asked for."""
        for ordinal in range(self.next_ordinal):
            chunk = self._stored.get(self._chunk_key(ordinal))
            if chunk is None:
                raise self._corrupted(f"chunk {ordinal} is missing")
            yield chunk

    def clear(self, staged: WriteSet) -> None:
        """Stage the removal of everything: one key for each chunk, and the record."""
        if self.arriving is not None:
            staged[self._key] = None
        for ordinal in range(self.next_ordinal):
            staged[self._chunk_key(ordinal)] = None
        self.arriving, self.next_ordinal = None, 0

    def _chunk_key(self, ordinal: int) -> bytes:
        return self._key + ordinal.to_bytes(4, "big")

    def _read_record(self) -> ArrivingSnapshot | None:
        stored = self._stored.get(self._key)
        if stored is None:
            return None
        try:
            return _decode(stored)
        except (ValueError, msgspec.DecodeError) as error:
            raise self._corrupted(f"its record is unreadable ({error})") from error

    def _corrupted(self, what: str) -> StoreCorrupted:
        return StoreCorrupted(
            f"snapshot spool {self._key.hex()}: {what}; "
            "restore this node from the others, or from a backup"
        )
