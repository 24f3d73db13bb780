"""What a group replicates: the port that :mod:`postroom.ranges` implements, one per replica.

A state machine never writes by itself. It *stages* effects into the write set of the turn, so an
entry, its effect and the applied index become durable together or not at all; that is why nothing
is applied twice after a restart.

Invariants that an implementation keeps:

* ``apply`` and ``noop`` stage the applied index along with the effects.
* ``apply`` is deterministic: equal commands in equal order give equal state on every replica.
* ``apply`` does not fail. If it raises all the same, the replica stops (:mod:`.group`), and what
  the group staged in that turn is dropped: as if the node had crashed just before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from postroom.kv.engine import WriteSet
from postroom.raft.snapshot import Snapshot

NodeId: TypeAlias = int | str
"""Names a node. Use one of the two types throughout a cluster."""


class StateMachine(Protocol):
    """One replica's state."""

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
            index: position in the log; one more than that of the call before.
            term: term of the leader that appended the entry.
            command: what was proposed, encoded. Empty if it was never encoded: a group of one gives
                only the context where there is one.
            context: what was given to ``propose`` along with the command if that happened in this
                process and still waits for its outcome; ``None`` otherwise.
            staged: what is written in this turn: of this group earlier entries included, and of
                other groups perhaps.

        Raises:
            Exception: it cannot be applied; nothing was staged. The replica stops.
        """

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """Whether ``apply`` of this entry, the next one, is no more than a turn has room for.

        If it is more, this call does a part of the work, without any effect yet, and is repeated in
        the next turn. Entries that were proposed here need no preparation.
        """

    def noop(self, index: int, term: int, staged: WriteSet) -> None:
        """Stage ``index`` as applied: the entry is consensus's own."""

    def applied_index(self) -> int:
        """The applied index as the engine held it when the replica was opened; 0 if new."""

    def open_snapshot(self) -> Snapshot:
        """The state as the engine holds it now, without what this turn stages, to be streamed."""

    def is_chunk(self, data: bytes) -> bool:
        """Whether ``data``, from the network, can be a chunk of a state. Has no other effect."""

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterable[WriteSet]:
        """What replaces the whole state by that of ``chunks``, applied index included.

        The state is not to be used from this call on. Each piece, of about a MiB, is written before
        the next one is asked for. After a crash in between the node calls this again, with the same
        chunks, on whatever state is there then.
        """

    def snapshot_installed(self) -> None:
        """All of it is written: the state can be used."""
