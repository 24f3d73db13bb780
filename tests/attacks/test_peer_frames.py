"""Frames of a node of the cluster: what one decodes to is bounded before anything is made of it.

A node is trusted with the state of the cluster, but where TLS is off anybody can pretend to be one.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import limits
from postroom.raft.frames import FrameIntake, FrameShape
from postroom.raft.interface import RaftOptions
from postroom.raft.membership import Members
from postroom.raft.messages import (
    FRAME_BYTES,
    Append,
    Chunk,
    Envelope,
    TimeoutNow,
    decode_frame,
    encode_frame,
    frames_of,
)
from postroom.raft.stored_log import COMMAND, NOOP
from postroom.ranges.contract import ROOT_ID
from postroom.server.assembly import NodeOptions
from postroom.server.cluster.peers import UnreadFrames
from tests.attacks.hostile import memory_below
from tests.attacks.test_memory import long_array
from tests.sim.cluster.cluster import Cluster

MIB = 1024 * 1024
OVERHEAD_BYTES = 16 * MIB
ENTRY = b"\x92\x00\xc4\x01" + NOOP
WIRE = b"\x94\x01\x00"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return a cluster whose rules of Raft are not checked: a liar may break them."""
    made = Cluster(1, [NodeOptions(disk_reserve_bytes=0)] * 3, [(1.0, 0.0, 0.0)] * 3)
    for name in ("acted", "written", "sends", "crashed"):
        monkeypatch.setattr(made.overseer, name, lambda *_: None)
    for machine in made.machines:
        assert machine.open()
    made.agenda.run(3.0)
    yield made
    made.abandon()


def append_of(entries: bytes) -> bytes:
    return b"\x92\x00\x97\x05\x00\x00\x00\x00\x00" + entries


def many_entries(size: int) -> bytes:
    return append_of(long_array(size // len(ENTRY), ENTRY))


def frame_of(count: int, envelope: bytes) -> bytes:
    return WIRE + long_array(count, envelope) + b"\x00"


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "entries": lambda size: frame_of(1, many_entries(size)),
    "entries in many messages": lambda size: frame_of(size // 20_000, many_entries(20_000)),
    "messages": lambda size: frame_of(size // 5, b"\x92\x00\x92\x09\x00"),
    "what a later version may say": lambda size: frame_of(
        1, b"\x92\x00\x93\x09\x00" + long_array(size, b"\x90")
    ),
    "nesting": lambda size: WIRE + b"\x91" * size,
    "what is announced": lambda size: WIRE + b"\xdd\xff\xff\xff\xff" + bytes(size),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_frame_of_too_many_items_takes_no_memory_and_no_turn(cluster: Cluster, kind: str) -> None:
    """38 MiB of entries of five bytes took a gigabyte, in one turn."""
    frame = HOSTILE[kind](38 * MIB)
    assert len(frame) <= limits.PEER_FRAME_BYTES_MAX
    victim, disks = cluster.machines[0], [machine.disk for machine in cluster.machines]
    node = victim.node
    assert node is not None
    with memory_below(OVERHEAD_BYTES, lambda: sum(disk.content.bytes_stored for disk in disks)):
        victim.arrive(3, victim.node_id, frame)
        cluster.agenda.run(0.3)
    assert victim.node is node
    assert node.failed is None


@pytest.mark.parametrize("size", [60_000, 1 * MIB])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_short_frame_takes_little_memory(kind: str, size: int) -> None:
    frame = HOSTILE[kind](size)
    with memory_below(max(8 * len(frame), 4 * MIB)):
        taken = list(FrameIntake(_Arrived([(1, frame)])).take())
    assert len(taken) <= 1


class _Arrived:
    """A transport in which frames wait."""

    def __init__(self, frames: list[tuple[int, bytes]]) -> None:
        self.frames = frames

    def send(self, to: int, frame: bytes) -> None:
        raise NotImplementedError

    def receive(self) -> Iterator[tuple[int, bytes]]:
        while self.frames:
            yield self.frames.pop(0)

    def connected(self, node: int) -> bool:
        raise NotImplementedError


def test_a_turn_takes_in_a_bounded_number_of_peer_frames_and_loses_none() -> None:
    few = encode_frame([(ROOT_ID, TimeoutNow(1))])
    long = encode_frame([(ROOT_ID, Append(1, 0, 0, 0, 0, ((1, NOOP),) * 16_000))] * 1)
    arrived = [(1, few)] * 1000 + [(2, long)] * 4 + [(1, few)] * 1000
    intake, taken, turns = FrameIntake(_Arrived(arrived[:])), [], 0
    while len(taken) < len(arrived):
        before = len(taken)
        taken += [(sender, frame) for sender, frame, _ in intake.take()]
        assert len(taken) - before <= limits.RECEIVED_STEPS_MAX // limits.RECEIVED_FRAME_STEPS + 1
        assert intake.waits or len(taken) == len(arrived)
        turns += 1
    assert turns > 15
    assert [sender for sender, _ in taken] == [sender for sender, _ in arrived]
    assert all(frame is not None for _, frame in taken)
    assert list(intake.take()) == []
    assert not intake.waits


def test_a_node_that_says_much_keeps_no_other_one_from_being_heard() -> None:
    unread = UnreadFrames()
    read_on: list[int] = []
    while unread.has_room(3, lambda: read_on.append(3)):
        unread.add(3, b"")
    assert unread.bytes[3] < 2 * limits.PEER_UNREAD_BYTES_MAX
    unread.add(2, b"heard")
    taken = unread.take()
    assert [next(taken), next(taken)] == [(3, b""), (2, b"heard")]
    assert read_on == [3], "the stream is read again as soon as there is room"
    assert unread.has_room(2, lambda: None)
    assert all(frame == (3, b"") for frame in taken)
    assert unread.bytes == {}


# --- honest frames --------------------------------------------------------------------------------


def is_taken(envelopes: list[Envelope]) -> bool:
    """Check whether a node takes each frame that another one makes."""
    said: list[Envelope] = []
    for part in frames_of(envelopes):
        intake = FrameIntake(_Arrived([(1, encode_frame(part))]))
        found: list[Any] = []
        while not found or intake.waits:
            found += intake.take()
        ((_, frame, problem),) = found
        assert frame is not None, problem
        said += frame.envelopes
    return said == envelopes


def append(entries: int, size: int, term: int = 2**62) -> Append:
    return Append(term, 2**62, 0, 2**62, 2**62, ((term, COMMAND + bytes(size - 1)),) * entries)


LARGEST = limits.COMMAND_BYTES_MAX + 1
MEMBERS = Members(tuple(range(2**62, 2**62 + 7)), tuple(range(2**61, 2**61 + 57)))
JOINT = msgspec.structs.replace(MEMBERS, outgoing=tuple(range(2**60, 2**60 + 64)))


@pytest.mark.parametrize(
    "messages",
    [
        [append(1, LARGEST)],
        [append(1, FRAME_BYTES - 1), append(1, LARGEST)],
        [append(1, FRAME_BYTES - 1), append(RaftOptions().append_entries_max, 1)],
        [append(RaftOptions().append_entries_max, 1)] * 20,
        [append(RaftOptions().append_entries_max, 256)] * 3,
        [TimeoutNow(2**62)] * 10_000,
        [
            append(1, FRAME_BYTES - 1),
            Chunk(2**62, 2**62, 2**62, 2**62, JOINT, 0, bytes(limits.CHUNK_BYTES_MAX), False),
        ],
        [Chunk(2**62, 2**62, 2**62, 2**62, JOINT, 0, b"", True)] * 5000,
    ],
    ids=lambda messages: f"{len(messages)} {type(messages[-1]).__name__}",
)
def test_a_node_takes_the_largest_frames_that_another_one_sends(messages: list[Any]) -> None:
    assert is_taken([(2**40, message) for message in messages])


def test_a_leader_that_feeds_many_short_entries_sends_what_is_taken() -> None:
    """A frame may have this many entries, of one byte or of 64 each."""
    limit = limits.APPENDED_ENTRIES_MAX
    assert decode_frame(encode_frame([(1, append(limit, 1))]))[0] is not None
    assert FrameShape(frame := encode_frame([(1, append(limit, 64))])).go_on(2**40)
    assert decode_frame(frame)[0] is not None
    assert limit >= RaftOptions().log_entries_max * RaftOptions().log_catching_up_factor


def test_going_over_an_honest_frame_makes_nothing() -> None:
    frame = encode_frame([(1, append(1, LARGEST))])
    tracemalloc.start()
    try:
        shape = FrameShape(frame)
        assert shape.go_on(100) > 50, "a large entry is a few headers"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert shape.fault == ""


# --- numbers of steps -----------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary() | st.binary(min_size=256, max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=300)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


def count_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_of, value)) + sum(map(count_of, value.values()))
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1


@given(_VALUES, st.integers(1, 7), st.integers(0, 1000))
def test_a_shape_is_that_of_the_frame(value: object, share: int, cut: int) -> None:
    packed = msgspec.msgpack.encode(value)
    shape = FrameShape(packed)
    while not shape.go_on(share):
        pass
    assert (shape.fault, shape.items) == ("", count_of(value))
    for wrong in (packed[:-1], packed + b"\x00", packed[:cut]):
        shape = FrameShape(wrong)
        while not shape.go_on(share):
            pass
        assert bool(shape.fault) == (wrong != packed)


@pytest.mark.parametrize("seed", range(20))
def test_a_check_of_random_bytes_comes_to_its_end(seed: int) -> None:
    random = Random(seed)
    for _ in range(200):
        shape = FrameShape(random.randbytes(random.randrange(1, 2000)))
        for _ in range(10_000):
            if shape.go_on(random.choice([1, 5, 1000])):
                break
        else:
            raise AssertionError("it goes on for ever")
