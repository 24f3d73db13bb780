"""The snapshots, which give a member the state when its entries are gone (paper, section 7).

::

    leader                              follower
    open_snapshot ─▶ chunks ─▶ wire ─▶ is_chunk ─▶ spool, on the engine (.spool)
                                           │ the last one came: one write makes
                                           ▼ the log speak of the snapshot
                                       install_snapshot: the state is replaced,
                                           ▼ in steps (.snapshot_receiver)
                                       snapshot_installed

The state machine alone knows the contents of the chunks. Neither side ever has the whole state in
memory. Chunks are read from a snapshot of the leader's engine as they are sent, and from the
spool as they are put in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A state on its way out.

    Attributes:
        index: the last entry that the state includes.
        chunks: the state, in order, each chunk at most ``messages.CHUNK_BYTES_MAX`` bytes. It is
            closed, if it has a ``close``, whenever the transfer ends.
    """

    index: int
    chunks: Iterator[bytes]

    def close(self) -> None:
        """Close the source of the chunks. Idempotent."""
        close = getattr(self.chunks, "close", None)
        if close is not None:
            close()
