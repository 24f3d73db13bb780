"""The frames between nodes: those that one turn takes in and sends, and the nodes that are heard.

*Incoming frames* are limited, and the items of each.

::

    transport ──▶ next frame ──▶ decoded ──▶ groups
                      └ long: its shape first (FrameShape), in parts

A turn takes in frames worth about ``RECEIVED_STEPS_MAX`` steps. The rest stays with the transport,
which serves peers by turns, until the next turn; clients are served in between. Mostly one turn
takes in all that has arrived.

In memory an entry of five bytes takes a hundred. A frame is therefore decoded only when it is
certain that it has few items. A short frame has few in any case::

    PEER_FRAME_ITEMS_MAX bytes ──▶ decoded at once: no item is shorter than a byte
    more ──▶ Shape: gone over, header by header, some thousand in each turn ──▶ decoded, or refused

A value is passed over by its length, however long it is. An honest frame of 32 MiB, which is one
large entry, has a few headers, and costs microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from postroom import limits
from postroom.raft.interface import NodeId, RaftOptions, Transport
from postroom.raft.messages import Append, Envelope, Frame, decode_frame, frames_of
from postroom.raft.stored_log import ENTRIES_VERSION_MIN

_BYTES, _ITEMS, _PAIRS, _INVALID = range(4)
"""The things that a length in a header counts."""


def _layouts() -> list[tuple[int, int, int, int]]:
    """Return what each first byte of a header means.

    For each byte: the thing that the length counts, how many bytes the length has, and the length
    itself if it has none. The fourth number is how many bytes the item has apart from what the
    length counts.
    """
    made = [(_BYTES, 0, 0, 1)] * 256
    for first in range(16):
        made[0x80 + first] = (_PAIRS, 0, first, 1)
        made[0x90 + first] = (_ITEMS, 0, first, 1)
    for first in range(32):
        made[0xA0 + first] = (_BYTES, 0, first, 1)
    made[0xC1] = (_INVALID, 0, 0, 1)
    for first, size in {
        0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
        0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
    }.items():  # fmt: skip
        made[first] = (_BYTES, 0, size, 1)
    for power in range(3):
        size = 1 << power
        made[0xC4 + power] = (_BYTES, size, 0, 1 + size)
        made[0xC7 + power] = (_BYTES, size, 0, 2 + size)
        made[0xD9 + power] = (_BYTES, size, 0, 1 + size)
    for power in (1, 2):
        size = 1 << power
        made[0xDC + power - 1] = (_ITEMS, size, 0, 1 + size)
        made[0xDE + power - 1] = (_PAIRS, size, 0, 1 + size)
    return made


_LAYOUTS: Final = _layouts()


class FrameShape:
    """A walk over the items of one frame, without decoding it.

    Args:
        frame: the bytes that have come in.

    Attributes:
        items: how many items there are in the part gone over, with all that its headers announce.
        fault: why the frame is not to be decoded; empty while no fault is found.
    """

    __slots__ = ("_at", "_frame", "_open", "fault", "items")

    def __init__(self, frame: bytes) -> None:
        self.items = 1
        self.fault = ""
        self._frame = frame
        self._at = 0
        self._open = [1]

    def go_on(self, count: int) -> int:  # noqa: C901 - one loop, which is hot
        """Go over at most ``count`` more items.

        Returns:
            How many of them were not needed. If it is not 0, the walk has ended: the whole frame
            has been gone over, or ``fault`` is set.
        """
        frame, at, left_open, layouts = self._frame, self._at, self._open, _LAYOUTS
        end, left = len(frame), left_open.pop()
        while count:
            while not left and left_open:
                left = left_open.pop()
            if not left:
                if at != end:
                    self.fault = "something follows it" if at < end else "it ends early"
                return count
            if at >= end:
                return self._refuse("it ends early", count)
            count -= 1
            left -= 1
            counts, size, length, head = layouts[frame[at]]
            if size:
                length = int.from_bytes(frame[at + 1 : at + 1 + size], "big")
            at += head
            if counts == _BYTES:
                at += length
                continue
            if counts == _INVALID:
                return self._refuse("it is no MessagePack", count)
            length *= counts
            self.items += length
            if self.items > limits.PEER_FRAME_ITEMS_MAX:
                return self._refuse(f"more than {limits.PEER_FRAME_ITEMS_MAX} items", count)
            left_open.append(left)
            left = length
            if len(left_open) > limits.PEER_FRAME_DEPTH_MAX:
                return self._refuse("it is nested too deeply", count)
        left_open.append(left)
        self._at = at
        return 0

    def _refuse(self, fault: str, count: int) -> int:
        self.fault = fault
        return max(count, 1)


_BYTES_PER_STEP: Final = 512


class FrameIntake:
    """The frames that a node takes in, turn by turn; see the module.

    Args:
        transport: the source of frames.

    Attributes:
        waits: whether another turn is wanted.
    """

    def __init__(self, transport: Transport) -> None:
        self.waits = False
        self._transport = transport
        self._arrived: Iterator[tuple[NodeId, bytes]] = iter(())
        self._current: tuple[NodeId, bytes, FrameShape] | None = None

    def clear(self) -> None:
        """Forget the frames that were begun."""
        self._arrived, self._current, self.waits = iter(()), None, False

    def take(self) -> Iterator[tuple[NodeId, Frame | None, str]]:
        """Yield the frames of this turn: the sender, the frame or ``None``, and the fault."""
        steps = limits.RECEIVED_STEPS_MAX
        if self._current is not None:
            sender, received, shape = self._current
            steps = shape.go_on(steps)
            if not steps:
                return
            self._current = None
            frame, problem = (None, shape.fault) if shape.fault else decode_frame(received)
            steps -= _steps_of(received, frame)
            yield sender, frame, problem
            if steps <= 0:
                return
        if not self.waits:
            self._arrived = iter(self._transport.receive())
        for sender, received in self._arrived:
            problem = ""
            if limits.PEER_FRAME_ITEMS_MAX < len(received) <= limits.PEER_FRAME_BYTES_MAX:
                shape = FrameShape(received)
                steps = shape.go_on(steps)
                if not steps:
                    self._current, self.waits = (sender, received, shape), True
                    return
                problem = shape.fault
            frame, problem = (None, problem) if problem else decode_frame(received)
            steps -= _steps_of(received, frame)
            yield sender, frame, problem
            if steps <= 0:
                self.waits = True
                return
        self.waits = False


def _steps_of(received: bytes, frame: Frame | None) -> int:
    """Return the cost of taking in a frame, in steps, without that of going over its shape."""
    steps = limits.RECEIVED_FRAME_STEPS + len(received) // _BYTES_PER_STEP
    if frame is None:
        return steps
    for _, message in frame.envelopes:
        steps += limits.RECEIVED_MESSAGE_STEPS
        if type(message) is Append:
            steps += len(message.entries)
    return steps


SENT_BYTES_A_TURN: Final = 8 * 1024 * 1024
"""The bytes after which no other frame leaves in a turn."""


class OutgoingMessages:
    """The frames that wait to leave, by node.

    A leader encodes a large entry for each follower, and hands it to the network, which takes as
    long as copying it a few times. Frames beyond ``SENT_BYTES_A_TURN`` therefore wait for the next
    turn, and later frames to the same node wait behind them.

    Args:
        send: encodes and sends a frame; answers its length.
    """

    def __init__(self, send: Callable[[NodeId, Sequence[Envelope]], int]) -> None:
        self._send = send
        self._sent_bytes = 0
        self._waiting: dict[NodeId, deque[Sequence[Envelope]]] = {}

    @property
    def waits(self) -> bool:
        """Return whether another turn is wanted."""
        return bool(self._waiting)

    def begin_turn(self) -> None:
        """Begin a turn: send the frames that wait, as far as there is room."""
        self._sent_bytes = 0
        for to, frames in list(self._waiting.items()):
            while frames and self._has_room():
                self._sent_bytes += self._send(to, frames.popleft())
            # The node that comes first in this turn comes last in the next one.
            del self._waiting[to]
            if frames:
                self._waiting[to] = frames

    def send(self, to: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Send ``envelopes`` to a node, in order."""
        for frame in frames_of(envelopes):
            if to not in self._waiting and self._has_room():
                self._sent_bytes += self._send(to, frame)
            else:
                self._waiting.setdefault(to, deque()).append(frame)

    def clear(self) -> None:
        """Forget all frames that wait."""
        self._waiting.clear()

    def _has_room(self) -> bool:
        return self._sent_bytes < SENT_BYTES_A_TURN


class Liveness:
    """The times at which one node has heard its peers, and sent to them.

    A group that has nothing to do stops its own heartbeats (:mod:`.replication`); it must still
    know whether its leader's node lives. Every node therefore sends each of its peers a frame at
    least once a heartbeat, an empty one if there is nothing to say. It remembers when it heard each
    peer::

        heard ── nothing for election_seconds_min ──▶ silent      groups that were quiet are told
          ▲                                              │
          └───────────────── any frame ──────────────────┘        and again

    A peer that was never heard counts as heard when it became a peer: it has an election time-out
    to say something.
    """

    def __init__(self, monotonic: Callable[[], float], options: RaftOptions) -> None:
        """Create a record without peers."""
        self.monotonic = monotonic
        self._options = options
        self._peers: dict[NodeId, float] = {}
        self._heard_at: dict[NodeId, float] = {}
        self._sent_at: dict[NodeId, float] = {}
        self._silent: set[NodeId] = set()
        self._entries_versions: dict[NodeId, int] = {}
        self._beat_at = 0.0

    def set_peers(self, peers: Iterable[NodeId]) -> None:
        """Set the nodes that share a group with this one."""
        now, before = self.monotonic(), self._peers
        self._peers = {peer: before.get(peer, now) for peer in peers}
        self._silent &= set(self._peers)
        self._sent_at = {peer: at for peer, at in self._sent_at.items() if peer in self._peers}

    def heard_at(self, node: NodeId) -> float | None:
        """Return when the last frame of ``node`` came, on the monotonic clock."""
        return self._heard_at.get(node)

    def seems_alive_at(self, node: NodeId) -> float:
        """Return when ``node`` was last heard, or else when it became a peer."""
        return self._heard_at.get(node, self._peers.get(node, float("-inf")))

    def is_silent(self, node: NodeId) -> bool:
        """Return whether the last ``beat`` found ``node`` silent for an election time-out."""
        return node in self._silent

    def entries_version(self, node: NodeId) -> int:
        """Return the version of the entries that ``node`` can read, by its last frame."""
        return self._entries_versions.get(node, ENTRIES_VERSION_MIN)

    def hear(self, node: NodeId, now: float, entries_version: int) -> bool:
        """Note a frame of ``node``, and return whether it ends a silence."""
        self._heard_at[node] = now
        self._entries_versions[node] = entries_version
        if node in self._silent:
            self._silent.remove(node)
            return True
        return False

    def sent(self, node: NodeId, now: float) -> None:
        """Note that a frame was sent to ``node``."""
        self._sent_at[node] = now

    def deadline(self) -> float | None:
        """Return when ``beat`` has something to do, or ``None`` without peers."""
        return self._beat_at if self._peers else None

    def beat(self, now: float) -> list[NodeId]:
        """Return the nodes that have fallen silent since the last heartbeat."""
        if not self._peers or now < self._beat_at:
            return []
        self._beat_at = now + self._options.heartbeat_seconds
        patience = self._options.election_seconds_min
        fallen = [
            peer
            for peer in self._peers
            if peer not in self._silent and now - self.seems_alive_at(peer) >= patience
        ]
        self._silent.update(fallen)
        return fallen

    def unspoken(self, now: float) -> list[NodeId]:
        """Return the peers that were sent nothing for half a heartbeat: they want a frame."""
        due = now - self._options.heartbeat_seconds / 2
        never = float("-inf")
        return [peer for peer in self._peers if self._sent_at.get(peer, never) <= due]
