"""Snapshots: how a member gets the state when the entries that made it are gone (paper, section 7).

::

    leader                              follower
    open_snapshot ─▶ chunks ─▶ wire ─▶ is_chunk ─▶ spool, on the engine (.spool)
                                           │ the last one came: one write makes
                                           ▼ the log speak of the snapshot
                                       install_snapshot: the state is replaced,
                                           ▼ in steps (.snapshot_receiver)
                                       snapshot_installed

What the chunks hold is the state machine's own business. Neither side ever has the whole state in
memory: chunks are read from a snapshot of the leader's engine as they are sent, and from the
spool as they are put in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


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
