"""Snapshots: how a member gets the state when the entries that made it are gone (paper, section 7).

The leader opens a :class:`Snapshot` and sends its chunks one by one; the follower feeds a
:class:`SnapshotSink`. Only ``finish`` changes the replica, by staging everything into the turn's
write set, where the log's new beginning joins it: installed whole or not at all.

What the chunks hold is the state machine's own business. Where a large state cannot be held in one
write set, a sink may write chunks ahead, outside the replica's visible keys, and let ``finish``
stage the switch; a resumed transfer begins at the chunk that the follower names. Neither changes
this port.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from postroom.kv.engine import WriteSet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state on its way out.

    Attributes:
        index: the last entry that the state includes.
        chunks: the state, in order, each chunk at most ``messages.CHUNK_BYTES_MAX`` bytes. It is
            closed, if it has a ``close``, when the transfer ends in whatever way.
    """

    index: int
    chunks: Iterator[bytes]

    def close(self) -> None:
        """Let go of what the chunks are read from. Idempotent."""
        close = getattr(self.chunks, "close", None)
        if close is not None:
            close()


class SnapshotSink(Protocol):
    """A state on its way in. One of ``finish`` and ``abort`` ends it."""

    def begin(self, index: int, term: int) -> None:
        """A snapshot that ends with the entry (``index``, ``term``) follows."""

    def chunk(self, data: bytes) -> None:
        """The next chunk, in order."""

    def finish(self, staged: WriteSet) -> None:
        """Stage the replacement of the whole state, applied index included."""

    def abort(self) -> None:
        """Forget what came so far: the transfer broke off."""
