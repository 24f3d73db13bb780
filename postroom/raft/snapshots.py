"""The snapshots of a group: read and sent by the leader, spooled and put in place by a follower.

*The leader's side.* Chunks are read as they are sent, a few at a time.

::

    engine snapshot ──▶ read ──▶ window: sent, not acknowledged ──▶ forgotten
                                    │          ▲
                    no news for long└─ again ──┘ from the first, which must be answered before more

Every answer names the chunk that is wanted next, and lost, doubled and late messages do no harm. A
follower that wants a chunk which is forgotten here, and goes on wanting it, has lost what it had:
a new snapshot is begun. The same follower back after a break goes on where it was. *Long* is an
election time-out: frames are rarely lost unless a stream breaks, and a repetition would make a slow
transfer slower.

A follower may refuse a chunk for long because the range was split since, and another range of its
node has keys of the snapshot. If the state is another one by then, a new snapshot is begun.

A transfer takes no more than its share of a turn (``snapshot_bytes_per_turn_max``, all peers
together), and does not slow the group's entries.

*The follower's side.* It spools the chunks, then puts the state in place, step by step.

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
* Chunks that the state machine does not recognise change nothing. A snapshot that it does not want
  yet is asked for again and again, by its sender, from the chunk that was refused.
* A former member takes no snapshot of before its removal.

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
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from pysyncobj.node import Node

from postroom.errors import StoreCorrupted
from postroom.kv.engine import Reader, WriteSet
from postroom.raft.election import Elections
from postroom.raft.interface import NodeId, StateMachine, StateSnapshot
from postroom.raft.membership import Members
from postroom.raft.messages import Appended, Chunk, ChunkTaken
from postroom.raft.syncobj_core import LEADER, Core

# --- the leader's side ----------------------------------------------------------------------------


@dataclass(slots=True)
class _OutgoingSnapshot:
    """A transfer under way. One chunk is read ahead, to know which is the last."""

    number: int
    snapshot: StateSnapshot
    term: int
    members: Members
    ahead: bytes | None
    window: deque[bytes] = field(default_factory=deque)
    first_ordinal: int = 0
    sent: int = 0
    news_at: float = 0.0
    probing: bool = False
    wants_earlier_since: float | None = None
    refused_since: float | None = None

    def read(self) -> bool:
        """Put the next chunk into the window, if there is one."""
        if self.ahead is None:
            return False
        self.window.append(self.ahead)
        self.ahead = next(self.snapshot.chunks, None)
        return True

    def taken(self, next_ordinal: int, now: float) -> None:
        """Note that the follower has the chunks before ``next_ordinal``."""
        while self.first_ordinal < next_ordinal and self.window:
            self.window.popleft()
            self.first_ordinal += 1
            self.sent = max(self.sent - 1, 0)
            self.news_at, self.probing = now, False


class SnapshotSender:
    """The leader's transfers, at most one for each peer."""

    def __init__(self, core: Core, state_machine: StateMachine) -> None:
        """Create it without a transfer under way."""
        self._core = core
        self._state_machine = state_machine
        self._transfers: dict[Node, _OutgoingSnapshot] = {}
        self._opened = 0
        self._room_bytes = 0

    def begin_turn(self) -> None:
        """Begin a turn, which may send its share anew."""
        self._room_bytes = self._core.options.snapshot_bytes_per_turn_max

    def feed(self, peer: Node) -> bool:
        """Send ``peer`` the chunks it lacks, as far as there is room.

        Returns:
            Whether any chunk was sent.
        """
        core, options = self._core, self._core.options
        transfer = self._transfers.get(peer)
        if transfer is None:
            transfer = self._transfers[peer] = self._open()
        elif core.now - transfer.news_at >= options.election_seconds_max:
            transfer.news_at, transfer.sent, transfer.probing = core.now, 0, True
        in_flight_max = 1 if transfer.probing else options.snapshot_chunks_in_flight_max
        before = transfer.sent
        while transfer.sent < in_flight_max and self._room_bytes > 0:
            if transfer.sent == len(transfer.window) and not transfer.read():
                break
            self._room_bytes -= len(transfer.window[transfer.sent])
            core.send(peer.id, self._chunk(transfer, transfer.sent))
            transfer.sent += 1
        return transfer.sent > before

    def on_taken(self, sender: NodeId, message: ChunkTaken) -> None:
        """Note that a follower has all chunks before the one it names."""
        core = self._core
        peer = core.peer(sender)
        transfer = None if peer is None else self._transfers.get(peer)
        if peer is None or transfer is None or message.transfer != transfer.number:
            return
        core.answered_at[peer] = core.now
        if message.next_ordinal > transfer.first_ordinal:
            transfer.wants_earlier_since = transfer.refused_since = None
            transfer.taken(message.next_ordinal, core.now)
        elif message.next_ordinal == transfer.first_ordinal:
            transfer.wants_earlier_since = None
            if self._is_outdated(transfer):
                self.end(peer)
        elif transfer.wants_earlier_since is None:
            transfer.wants_earlier_since = core.now
        elif core.now >= transfer.wants_earlier_since + 2 * core.options.heartbeat_seconds:
            self.end(peer)

    def _is_outdated(self, transfer: _OutgoingSnapshot) -> bool:
        """Return whether a follower has refused a chunk for long, and the state is another one."""
        core = self._core
        if transfer.refused_since is None:
            transfer.refused_since = core.now
        is_refused = core.now >= transfer.refused_since + core.options.election_seconds_max
        return is_refused and core.applied_index > transfer.snapshot.index

    def is_under_way(self, peer: Node) -> bool:
        """Return whether ``peer`` is being sent a snapshot."""
        return peer in self._transfers

    @property
    def are_under_way(self) -> bool:
        """Return whether a snapshot is on its way to any peer."""
        return bool(self._transfers)

    def index_for(self, peer: Node) -> int:
        """Return the last entry that the snapshot on its way to ``peer`` includes, or 0."""
        transfer = self._transfers.get(peer)
        return 0 if transfer is None else transfer.snapshot.index

    def forget(self, peer: Node, index: int) -> None:
        """End an older snapshot to ``peer``, which has the log up to ``index``."""
        if index >= self.index_for(peer):
            self.end(peer)

    def end(self, peer: Node) -> None:
        """End the transfer to ``peer``."""
        transfer = self._transfers.pop(peer, None)
        if transfer is not None:
            transfer.snapshot.close()

    def close(self) -> None:
        """End all transfers."""
        for peer in list(self._transfers):
            self.end(peer)

    def _open(self) -> _OutgoingSnapshot:
        snapshot = self._state_machine.open_snapshot()
        log = self._core.journal
        term = log.term_at(snapshot.index)
        assert term is not None, f"the state ends at {snapshot.index}, before the log begins"
        self._opened += 1
        transfer = _OutgoingSnapshot(
            self._opened,
            snapshot,
            term,
            log.members_at(snapshot.index),
            next(snapshot.chunks, b""),
        )
        transfer.news_at = self._core.now
        return transfer

    def _chunk(self, transfer: _OutgoingSnapshot, index: int) -> Chunk:
        return Chunk(
            self._core.term,
            transfer.number,
            transfer.snapshot.index,
            transfer.term,
            transfer.members,
            transfer.first_ordinal + index,
            transfer.window[index],
            transfer.ahead is None and index == len(transfer.window) - 1,
        )


# --- the follower's side --------------------------------------------------------------------------


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
        """Open the spool that ``stored`` contains under the group's ``prefix``.

        Raises:
            StoreCorrupted: the record is unreadable, or chunks of a complete snapshot are missing.
        """
        self._stored = stored
        self._key = prefix + b"s"
        self.arriving = self._read_record()
        self.next_ordinal = 0
        self._first = b""
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
        if not self.next_ordinal:
            self._first = data
        self.next_ordinal += 1

    def finish(self, staged: WriteSet) -> None:
        """Mark the snapshot as complete: all chunks are here."""
        assert self.arriving is not None
        self.arriving = msgspec.structs.replace(self.arriving, chunks=self.next_ordinal)
        staged[self._key] = _encode(self.arriving)

    def first(self) -> bytes:
        """Return the first chunk, which tells what the snapshot is about."""
        assert self.next_ordinal, "no chunk has come"
        return self._first or self._chunk(0)

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of the complete snapshot, each read when it is asked for."""
        return map(self._chunk, range(self.next_ordinal))

    def _chunk(self, ordinal: int) -> bytes:
        chunk = self._stored.get(self._chunk_key(ordinal))
        if chunk is None:
            raise self._corrupted(f"chunk {ordinal} is missing")
        return chunk

    def clear(self, staged: WriteSet) -> None:
        """Stage the removal of everything: one key for each chunk, and the record."""
        if self.arriving is not None:
            staged[self._key] = None
        for ordinal in range(self.next_ordinal):
            staged[self._chunk_key(ordinal)] = None
        self.arriving, self.next_ordinal, self._first = None, 0, b""

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

    def clear(self, staged: WriteSet) -> None:
        """Clear the spool, because the replica ends."""
        self._spool.clear(staged)

    def tidy(self, staged: WriteSet) -> None:
        """Clear an incomplete snapshot if the log has got past it."""
        arriving = self._spool.arriving
        if arriving is None or self._core.installing or arriving.index > self._core.commit_index:
            return
        self._spool.clear(staged)

    def _has(self, message: Chunk) -> bool:
        """Return whether the log contains the snapshot's last entry.

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
        if message.index < self._core.journal.least_index:
            return False
        if not self._state_machine.is_chunk(message.data):
            logger.warning("ignored a chunk of a snapshot that is no part of any state")
            return False
        if (message.ordinal == 0 or message.final) and not self._may_install(message):
            return False
        if message.ordinal == 0:
            number = (message.term, message.transfer)
            last_entry = (message.index, message.index_term)
            self._spool.begin(ArrivingSnapshot(number, *last_entry, message.members), staged)
        self._spool.add(message.data, staged)
        return message.final

    def _may_install(self, message: Chunk) -> bool:
        first = message.data if message.ordinal == 0 else self._spool.first()
        return self._state_machine.may_install(first, is_whole=message.final)

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
