"""The interface of consensus: its state machine, its transport and its options.

A :class:`Transport` carries frames between nodes; :class:`MemoryTransport` is its twin for
simulation. :class:`RaftOptions` are times and sizes.

A :class:`StateMachine` has the state that a group replicates, and its snapshots. It never writes by
itself: it *stages* effects into the write set of the turn. An entry, its effect and the applied
index thereby become durable together or not at all, and no entry is applied twice after a restart.

Invariants that an implementation keeps:

* ``apply`` stages the applied index along with the effects.
* ``apply`` is deterministic: equal commands in equal order give equal state on every replica.
* ``apply`` does not fail. If it raises all the same, the replica stops (:mod:`.group`). The writes
  that the group staged in that turn are dropped, as if the node had crashed just before it.

::

    leader                              follower
    open_snapshot ─▶ chunks ─▶ wire ─▶ is_chunk ─▶ spool, on the engine (.spool)
                                           │ the last one came, may_install: one
                                           ▼ write makes the log speak of it
                                       install_snapshot: the state is replaced,
                                           ▼ in steps (.snapshots)
                                       snapshot_installed

The state machine alone knows the contents of the chunks. Neither side ever has the whole state in
memory. Chunks are read from a snapshot of the leader's engine as they are sent, and from the
spool as they are put in place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from postroom.kv.engine import WriteSet

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 (its type only)


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


CommittedEntry: TypeAlias = tuple[int, int, bytes | memoryview | None, object | None]
"""An entry to apply: index, term, command, context.

The command is the proposal, encoded; ``None``: it is an entry of consensus itself. It is empty if
it was never encoded: a group of one gives only the context if there is one. The context is what was
given to ``propose`` with the command, if that happened in this process and still waits for its
outcome; ``None`` otherwise.
"""


class StateMachine(Protocol):
    """The state of one replica."""

    def apply(self, entries: Iterable[CommittedEntry], staged: WriteSet) -> None:
        """Stage the effects of committed entries, in order, and the place of the last as applied.

        Args:
            entries: at least one, if the first one is prepared. The index of each is one more than
                that of the one before. Asking for the next one says that the last one is staged.
            staged: the write set of this turn. It may contain earlier entries of this group, and
                entries of other groups.

        Raises:
            Exception: one cannot be applied. The replica stops. If there is only that one, nothing
                was staged.
        """

    def prepare(self, index: int, term: int, command: memoryview) -> bool:
        """Return whether ``apply`` of the next entry, this one, fits into a turn.

        If it does not, this call does a part of the work, without any effect yet, and is repeated
        in the next turn. Entries that were proposed here need no preparation.
        """

    def applied_index(self) -> int:
        """Return the applied index that the engine held when the replica was opened; 0 if new."""

    def applied_term(self) -> int:
        """Return the term of that entry."""

    def open_snapshot(self) -> StateSnapshot:
        """Open the state that the engine contains now, for streaming.

        Writes staged in this turn are not in it.
        """

    def is_chunk(self, data: bytes) -> bool:
        """Return whether ``data``, from the network, can be a chunk of a state. Nothing changes."""

    def may_install(self, first: bytes, *, is_whole: bool) -> bool:
        """Return whether a snapshot that begins with the chunk ``first`` may replace the state now.

        Args:
            first: a chunk that ``is_chunk``.
            is_whole: whether all of it has come. If this returns true then, the installation is
                certain, and everything that the snapshot contains belongs to this replica.
        """

    def install_snapshot(self, chunks: Iterator[bytes]) -> Iterable[WriteSet]:
        """Yield the writes that replace the whole state by that of ``chunks``, with applied index.

        The state is not to be used from this call on. Each piece, of about a MiB, is written before
        the next one is asked for. After a crash in between the node calls this again, with the same
        chunks, on whatever state is there then.
        """

    def snapshot_installed(self) -> None:
        """Begin to use the state, all of which is written."""


class Transport(Protocol):
    """The sending and receiving of frames. It never blocks, nor raises for a peer that is away.

    A frame holds the messages of every group to one peer in one turn (:mod:`.messages`). The port
    promises little: a frame arrives whole or not at all; it may be lost, doubled, delayed or
    overtaken, and consensus lives with that. It must promise the true *sender* of a frame: votes
    and acknowledgements are counted by sender.

    Implementations: :class:`MemoryTransport` (simulation and tests), the server's streams, and
    :class:`NoPeers` for a node that is alone.
    """

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` over for delivery to ``to``, at most a few times, perhaps never."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return the frames that have arrived since the last call, with their true senders.

        They are taken one by one, perhaps in later turns: this is called again when all are taken.
        Frames that arrive meanwhile may be among them.
        """

    def connected(self, node: NodeId) -> bool:
        """Return whether ``node`` seems reachable. A hint."""


class NoPeers:
    """The transport of a node that is the whole cluster."""

    def send(self, to: NodeId, frame: bytes) -> None:
        """Drop the frame: there is no other node."""

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return no frames."""
        return ()

    def connected(self, node: NodeId) -> bool:
        """Return false: there is no other node."""
        return False


@dataclass(slots=True)
class NetworkFaults:
    """The faults of a network. Shares are between 0 and 1.

    Attributes:
        lost_share: the share of frames that never arrive.
        doubled_share: the share of frames that arrive twice, each time after its own delay.
        delay_seconds_min: the least time under way.
        delay_seconds_max: the longest time; frames overtake each other if it is larger.
    """

    lost_share: float = 0.0
    doubled_share: float = 0.0
    delay_seconds_min: float = 0.001
    delay_seconds_max: float = 0.001


class MemoryNetwork:
    """The network between the nodes. Attach each node, and again after it has crashed.

    ::

        MemoryTransport(1) ── send ──▶ MemoryNetwork: frames under way, each with ──▶ receive ── (2)
                                       its time of arrival, on the clock passed in

    Every choice (which frames are lost, doubled or delayed, and thereby overtaken) comes from the
    ``random.Random`` and the :class:`NetworkFaults` given, which lets a run repeat from its seed.
    Frames are copied as bytes and never looked into.
    """

    def __init__(
        self, random: Random, monotonic: Callable[[], float], faults: NetworkFaults | None = None
    ) -> None:
        """Create a network without nodes; ``faults`` may be changed at any time."""
        self.faults = NetworkFaults() if faults is None else faults
        self._random = random
        self._monotonic = monotonic
        self._under_way: list[tuple[float, int, NodeId, NodeId, bytes]] = []
        self._sent = 0
        self._attached: set[NodeId] = set()
        self._side_of: dict[NodeId, int] = {}

    def attach(self, node: NodeId) -> MemoryTransport:
        """Attach ``node``, which is up, and return its end of the network."""
        self._attached.add(node)
        return MemoryTransport(self, node)

    def detach(self, node: NodeId) -> None:
        """Detach ``node``, which is down: frames under way to it are lost."""
        self._attached.discard(node)
        self._under_way = [frame for frame in self._under_way if frame[3] != node]
        heapq.heapify(self._under_way)

    def partition(self, *sides: Collection[NodeId]) -> None:
        """Let only nodes of one side reach each other. A node that is not named stands alone."""
        self._side_of = {node: number for number, side in enumerate(sides) for node in side}
        for number, node in enumerate(sorted(self._attached - set(self._side_of), key=str)):
            self._side_of[node] = -1 - number

    def heal(self) -> None:
        """Let all nodes reach each other."""
        self._side_of = {}

    def connected(self, one: NodeId, other: NodeId) -> bool:
        """Return whether frames between the two arrive, as far as partitions and crashes decide."""
        return {one, other} <= self._attached and self._same_side(one, other)

    def next_arrival(self) -> float | None:
        """Return when the next frame arrives, or ``None`` if none is under way."""
        return self._under_way[0][0] if self._under_way else None

    def carry(self, sender: NodeId, to: NodeId, frame: bytes) -> None:
        """Send ``frame`` on its way. Only :class:`MemoryTransport` calls this."""
        copies = 1 + (self._random.random() < self.faults.doubled_share)
        for _ in range(copies):
            if self._random.random() >= self.faults.lost_share:
                self._set_out(sender, to, frame)

    def arrived(self, node: NodeId) -> list[tuple[NodeId, bytes]]:
        """Return the frames that have arrived at ``node``, for :class:`MemoryTransport`."""
        now = self._monotonic()
        due = sorted(each for each in self._under_way if each[0] <= now and each[3] == node)
        if due:
            taken = {number for _, number, *_ in due}
            self._under_way = [each for each in self._under_way if each[1] not in taken]
            heapq.heapify(self._under_way)
        # A frame outlives its sender: it still arrives if its sender has crashed.
        return [(each[2], each[4]) for each in due if self._same_side(each[2], node)]

    def _same_side(self, one: NodeId, other: NodeId) -> bool:
        return self._side_of.get(one) == self._side_of.get(other)

    def _set_out(self, sender: NodeId, to: NodeId, frame: bytes) -> None:
        faults = self.faults
        spread = faults.delay_seconds_max - faults.delay_seconds_min
        delay = faults.delay_seconds_min + spread * self._random.random()
        self._sent += 1
        arrival = (self._monotonic() + delay, self._sent, sender, to, bytes(frame))
        if self.connected(sender, to):
            heapq.heappush(self._under_way, arrival)


class MemoryTransport:
    """The end of one node of a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, node: NodeId) -> None:
        """Create the end of ``node``; see :meth:`MemoryNetwork.attach`."""
        self._network = network
        self._node = node

    def send(self, to: NodeId, frame: bytes) -> None:
        """Hand ``frame`` to the network."""
        self._network.carry(self._node, to, frame)

    def receive(self) -> Iterable[tuple[NodeId, bytes]]:
        """Return the frames that have arrived by now, in the order of arrival."""
        return self._network.arrived(self._node)

    def connected(self, node: NodeId) -> bool:
        """Return whether ``node`` is up and on the same side of any partition."""
        return self._network.connected(self._node, node)


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """The times and sizes of every group of a node. The defaults suit one data centre.

    ::

        heartbeat_seconds   <   election_seconds_min   <=   election_seconds_max
        how often a leader       how long a voter that       after which silence a follower
        speaks at least          heard a leader refuses      asks for votes, and a leader that
                                 to vote for another         hears no majority steps down

    The time that a broadcast takes must be far below the election time-out, and that far below the
    mean time between failures (Raft paper, section 5.6). The limits of decoding are not tunable:
    they are part of the wire format and stand in :mod:`postroom.raft.messages`.

    Raises:
        ValueError: the times are not in the order that the module's drawing shows.
    """

    heartbeat_seconds: float = 0.1
    election_seconds_min: float = 0.5
    election_seconds_max: float = 1.0

    quiet_after_seconds: float | None = 0.2
    """The idle time after which a group stops its heartbeats; ``None``: never."""

    orphan_seconds: float = 1.0
    """The time for which a deposed leader's proposals wait before they end as unknown."""

    append_bytes_max: int = 1024 * 1024
    """Entries of one append message; a single entry may be larger, and then goes alone."""

    append_entries_max: int = 4096
    """Entries of one append message, however short they are."""

    append_messages_in_flight_max: int = 8
    """The append messages with entries that one follower may be behind with."""

    append_bytes_in_flight_max: int = 8 * 1024 * 1024
    """Bytes of entries that one follower may be behind with; one message may exceed it."""

    snapshot_chunks_in_flight_max: int = 4
    """The chunks of a snapshot that one follower may be behind with."""

    snapshot_bytes_per_turn_max: int = 512 * 1024
    """The bytes after which no more chunks leave in a turn: entries go first."""

    snapshot_silent_seconds_max: float = 10.0
    """The silence of a follower after which the snapshot opened for it is closed."""

    log_entries_max: int = 4096
    """Entries kept for a silent member; beyond it, that member gets a snapshot."""

    log_bytes_max: int = 16 * 1024 * 1024
    """Bytes kept for a silent member; beyond it, that member gets a snapshot."""

    log_catching_up_factor: int = 4
    """The factor by which more is kept for a member that answers, or is being sent a snapshot."""

    def __post_init__(self) -> None:
        """Refuse times in an order that cannot work."""
        ordered = 0 < self.heartbeat_seconds * 2 < self.election_seconds_min
        if not ordered or self.election_seconds_min > self.election_seconds_max:
            raise ValueError(
                "need 0 < 2 * heartbeat_seconds < election_seconds_min <= election_seconds_max, "
                f"not {self.heartbeat_seconds}, {self.election_seconds_min}, "
                f"{self.election_seconds_max}"
            )
