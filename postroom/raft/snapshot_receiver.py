"""The follower's side of a snapshot: spool the chunks, then put the state in place, step by step.

::

    chunks ──▶ spool ──▶ complete ──▶ old keys out, new keys in ──▶ installed
               any turn    one write     about a MiB a turn           spool goes
                           = log restarted at the snapshot's index

A crash before *complete* costs at most the chunks that were not written yet: the spool names the
chunk that it lacks. After a later crash the installation begins again from the spool, whatever was
in place.

Invariants:

* The log begins at the snapshot's index in the very write that completes the spool (figure 13,
  steps 6 to 8). The promises that this member made with its log are therefore never in doubt.
* While a snapshot is being installed the member votes, stores entries and acknowledges them. It
  applies nothing, and does not lead: its state is a mixture of the old one and the new one.
* Chunks that the state machine does not recognise change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from postroom.errors import StoreCorrupted
from postroom.kv.engine import WriteSet
from postroom.raft.election import Elections
from postroom.raft.messages import Appended, Chunk, ChunkTaken
from postroom.raft.spool import ArrivingSnapshot, Spool
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import LEADER, Core

logger = logging.getLogger(__name__)


class SnapshotReceiver:
    """The reception of at most one snapshot at a time."""

    def __init__(
        self, core: Core, elections: Elections, state_machine: StateMachine, spool: Spool
    ) -> None:
        """Create it from the spool. An installation that a crash interrupted begins again."""
        self._core = core
        self._elections = elections
        self._state_machine = state_machine
        self._spool = spool
        self._steps: Iterator[WriteSet] | None = None
        core.installing = spool.complete is not None
        self.installed_index = 0
        """The index up to which proposals whose entries were not seen have an unknown outcome."""

    def on_chunk(self, leader: NodeId, message: Chunk, staged: WriteSet) -> None:
        """Take InstallSnapshot of a term that is not behind (figure 13)."""
        core = self._core
        if core.role == LEADER and message.term == core.term:
            return
        self._elections.hear_leader(leader, message.term)
        if self._has(message):
            core.commit_index = max(core.commit_index, message.index)
            self._acknowledge(leader, message.index)
        elif self._take(message, staged):
            self._complete(message, staged)
            self._acknowledge(leader, message.index)
        else:
            core.send(leader, ChunkTaken(core.term, message.transfer, self._wanted(message)))

    def step(self, staged: WriteSet) -> None:
        """Stage the next piece of an installation that is under way, one a turn."""
        if self._steps is None:
            self._steps = iter(self._state_machine.install_snapshot(self._spool.chunks()))
        piece = next(self._steps, None)
        if piece is not None:
            staged.update(piece)
            return
        # Everything is in place, and was written in earlier turns.
        self._steps = None
        self._state_machine.snapshot_installed()
        complete, applied_index = self._spool.complete, self._state_machine.applied_index()
        assert complete is not None
        if applied_index != complete.index:
            raise StoreCorrupted(
                f"the state that came ends at entry {applied_index}, its sender had announced "
                f"{complete.index}; this replica stops: wipe it, and let it be fed again"
            )
        self._spool.clear(staged)
        self._core.installing = False

    def tidy(self, staged: WriteSet) -> None:
        """Clear an incomplete snapshot if the log has got past it."""
        arriving = self._spool.arriving
        if arriving is None or self._core.installing or arriving.index > self._core.commit_index:
            return
        self._spool.clear(staged)

    def _has(self, message: Chunk) -> bool:
        """Return whether the log holds the snapshot's last entry.

        The entries that follow it then stay (step 6).
        """
        core = self._core
        if message.index <= core.commit_index:
            return True
        return core.journal.term_at(message.index) == message.index_term

    def _take(self, message: Chunk, staged: WriteSet) -> bool:
        """Spool a chunk if it is the next one, and return whether the snapshot is complete."""
        if self._core.installing or not self._is_next(message):
            return False
        if not self._state_machine.is_chunk(message.data):
            logger.warning("ignored a chunk of a snapshot that is no part of any state")
            return False
        if message.ordinal == 0:
            number = (message.term, message.transfer)
            place = (message.index, message.index_term)
            self._spool.begin(ArrivingSnapshot(number, *place, message.members), staged)
        self._spool.add(message.data, staged)
        return message.final

    def _is_next(self, message: Chunk) -> bool:
        arriving, number = self._spool.arriving, (message.term, message.transfer)
        if message.ordinal == 0 and (arriving is None or number > arriving.number):
            return True
        return self._is_of(message) and message.ordinal == self._spool.next_ordinal

    def _is_of(self, message: Chunk) -> bool:
        arriving = self._spool.arriving
        return arriving is not None and (
            arriving.number == (message.term, message.transfer)
            and (arriving.index, arriving.index_term) == (message.index, message.index_term)
        )

    def _wanted(self, message: Chunk) -> int:
        return self._spool.next_ordinal if self._is_of(message) else 0

    def _complete(self, message: Chunk, staged: WriteSet) -> None:
        core = self._core
        self._spool.finish(staged)
        core.installing = True
        core.journal.restart(message.index, message.index_term, message.members)
        core.commit_index = core.applied_index = self.installed_index = message.index
        core.adopt_members()

    def _acknowledge(self, leader: NodeId, index: int) -> None:
        core = self._core
        core.send(leader, Appended(core.term, True, index, installing=core.installing))
