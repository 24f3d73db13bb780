"""The ports of the state that a group replicates, and of its snapshots.

A state machine never writes by itself. It *stages* effects into the write set of the turn. An
entry, its effect and the applied index thereby become durable together or not at all, and no entry
is applied twice after a restart.

Invariants that an implementation keeps:

* ``apply`` and ``noop`` stage the applied index along with the effects.
* ``apply`` is deterministic: equal commands in equal order give equal state on every replica.
* ``apply`` does not fail. If it raises all the same, the replica stops (:mod:`.group`). The writes
  that the group staged in that turn are dropped, as if the node had crashed just before it.

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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from postroom.kv.engine import WriteSet


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


NodeId: TypeAlias = int | str
"""The name of a node. Use one of the two types throughout a cluster."""


class StateMachine(Protocol):
    """The state of one replica."""

    def apply(
        self,
        index: int,
        term: int,
        command: bytes | memoryview,
        context: object | None,
        staged: WriteSet,
    ) -> None:
        """Stage the effects of the entry at ``index``, and ``index`` as applied.

        Args:
            index: the index in the log; one more than that of the call before.
            term: term of the leader that appended the entry.
            command: the proposal, encoded. Empty if it was never encoded: a group of one gives
                only the context if there is one.
            context: the context given to ``propose`` with the command, if that happened in this
                process and still waits for its outcome; ``None`` otherwise.
            staged: the write set of this turn. It may hold earlier entries of this group, and
                entries of other groups.

        Raises:
            Exception: it cannot be applied; nothing was staged. The replica stops.
        """

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """Return whether ``apply`` of the next entry, this one, fits into a turn.

        If it does not, this call does a part of the work, without any effect yet, and is repeated
        in the next turn. Entries that were proposed here need no preparation.
        """

    def noop(self, index: int, term: int, staged: WriteSet) -> None:
        """Stage ``index`` and ``term`` as applied, for an entry of consensus itself."""

    def applied_index(self) -> int:
        """Return the applied index that the engine held when the replica was opened; 0 if new."""

    def applied_term(self) -> int:
        """Return the term of that entry."""

    def open_snapshot(self) -> StateSnapshot:
        """Open the state that the engine holds now, for streaming.

        Writes staged in this turn are not in it.
        """

    def is_chunk(self, data: bytes) -> bool:
        """Return whether ``data``, from the network, can be a chunk of a state. Nothing changes."""

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterable[WriteSet]:
        """Yield the writes that replace the whole state by that of ``chunks``, with applied index.

        The state is not to be used from this call on. Each piece, of about a MiB, is written before
        the next one is asked for. After a crash in between the node calls this again, with the same
        chunks, on whatever state is there then.
        """

    def snapshot_installed(self) -> None:
        """Begin to use the state, all of which is written."""
