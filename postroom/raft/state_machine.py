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

from typing import Protocol, TypeAlias

from postroom.kv.engine import WriteSet
from postroom.raft.snapshot import Snapshot, SnapshotSink

NodeId: TypeAlias = int | str
"""Names a node. Use one of the two types throughout a cluster."""


class StateMachine(Protocol):
    """One replica's state."""

    def apply(
        self, index: int, term: int, command: bytes, context: object | None, staged: WriteSet
    ) -> None:
        """Stage the effects of the entry at ``index``, and ``index`` as applied.

        Args:
            index: position in the log; one more than that of the call before.
            term: term of the leader that appended the entry.
            command: what was proposed, encoded. Empty if it was never encoded: a group of one gives
                only the context where there is one.
            context: what was given to ``propose`` along with the command if that happened in this
                process and still waits for its outcome; ``None`` otherwise.
            staged: what this group writes in this turn, earlier entries included.
        """

    def noop(self, index: int, term: int, staged: WriteSet) -> None:
        """Stage ``index`` as applied: the entry is consensus's own."""

    def applied_index(self) -> int:
        """The applied index as the engine held it when the replica was opened; 0 if new."""

    def open_snapshot(self) -> Snapshot:
        """The state as it is durably applied now, to be streamed to a member that lags."""

    def snapshot_sink(self) -> SnapshotSink:
        """Where a snapshot from the leader goes."""
