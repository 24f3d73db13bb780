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

import logging
from collections.abc import Iterator

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv.engine import Reader, WriteSet
from postroom.raft.election import Elections
from postroom.raft.membership import Members
from postroom.raft.messages import Appended, Chunk, ChunkTaken
from postroom.raft.state_machine import NodeId, StateMachine
from postroom.raft.syncobj_core import LEADER, Core


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
            last_entry = (message.index, message.index_term)
            self._spool.begin(ArrivingSnapshot(number, *last_entry, message.members), staged)
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
