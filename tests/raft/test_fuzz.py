"""Random input from peers: no exception leaves ``stage``, and a malformed message changes nothing.

There are three kinds of input, each to members in every state that they can be in. They are bytes
that are no frame, valid frames with a few bytes changed, and messages that make no sense then.
The last may change state (numbers are the sender's), but never stop a member.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.errors import StoreCorrupted
from postroom.raft.interface import RaftOptions
from postroom.raft.membership import AddLearner, Members
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    Clocks,
    Message,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
    encode_frame,
)
from postroom.raft.stored_log import membership_payload
from tests.raft.cluster import APPLIED, GROUP_ID, HISTORY
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command

OPTIONS = RaftOptions(log_entries_max=3, log_catching_up_factor=1, quiet_after_seconds=0.1)

# States.


def fresh() -> ScriptedPeers:
    return ScriptedPeers(options=OPTIONS)


def following() -> ScriptedPeers:
    peers = fresh()
    entries = [(1, NOOP_PAYLOAD), (1, command(b"a")), (2, command(b"b"))]
    peers.turn((2, peers.append(2, (0, 0), *entries, commit=2)))
    return peers


def quiet() -> ScriptedPeers:
    peers = following()
    peers.turn((2, Append(2, 3, 2, 3, 0, (), quiet=True)))
    assert peers.group.is_quiet
    return peers


def campaigning() -> ScriptedPeers:
    peers = following()
    peers.wait(1.1)
    peers.turn((2, PreVoted(3, True)))
    return peers


def leading() -> ScriptedPeers:
    """Make a leader with a member that gets a snapshot, and with a learner."""
    peers = fresh()
    peers.lead()
    peers.acknowledge(2)
    peers.group.change_members(AddLearner(4), peers.outcomes.append)
    for _ in range(6):
        peers.propose(b"x")
        peers.turn()
        peers.acknowledge(2)
    peers.turn((3, Appended(1, False, 0)))
    assert peers.group.progress()[3].snapshot_under_way
    return peers


def handing_over() -> ScriptedPeers:
    peers = leading()
    peers.propose(b"waits")
    peers.group.transfer_leadership(2)
    peers.turn()
    return peers


def leading_quietly() -> ScriptedPeers:
    peers = fresh()
    peers.lead()
    for _ in range(4):
        peers.now += 0.1
        peers.turn(*[(node, Appended(1, True, 1, quiet=True)) for node in (2, 3)])
    assert peers.group.is_quiet
    return peers


def receiving() -> ScriptedPeers:
    peers = following()
    peers.turn((2, chunk(0)))
    return peers


def installing() -> ScriptedPeers:
    peers = following()
    peers.turn((2, chunk(0, final=True)))
    assert peers.group.is_installing
    return peers


def alone() -> ScriptedPeers:
    peers = ScriptedPeers((1,), options=OPTIONS)
    peers.propose(b"x")
    peers.turn()
    return peers


def outside() -> ScriptedPeers:
    return ScriptedPeers((), options=OPTIONS)


STATES = [
    fresh, following, quiet, campaigning, leading, handing_over, leading_quietly, receiving,
    installing, alone, outside,
]  # fmt: skip

# Messages.


def chunk(ordinal: int, *, index: int = 9, final: bool = False) -> Chunk:
    pairs = [(APPLIED, index.to_bytes(8, "big")), (HISTORY + b"\0" * 7 + b"\1", b"s")]
    data = msgspec.msgpack.encode(pairs)
    return Chunk(2, 1, index, 2, Members((1, 2, 3)), ordinal, data, final)


number = st.one_of(st.integers(0, 12), st.sampled_from([2**31, 2**62]))
small = st.integers(0, 4)
flag = st.booleans()
payload = st.sampled_from([
    NOOP_PAYLOAD, command(b"z"), membership_payload(Members((1, 2, 3))),
    membership_payload(Members((2, 3), (1,))), membership_payload(Members((1,))),
    membership_payload(Members((1, 2, 3, 4))),
])  # fmt: skip


@st.composite
def appends(draw: st.DrawFn) -> Append:
    prev_term = draw(small)
    terms = sorted(draw(st.lists(st.integers(prev_term, 5), max_size=4)))
    term = draw(st.integers(max([prev_term, *terms]), 6))
    entries = tuple((each, draw(payload)) for each in terms)
    return Append(term, draw(number), prev_term, draw(number), draw(number), entries, draw(flag))


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    index_term = draw(small)
    members = draw(st.sampled_from([Members((1, 2, 3)), Members((2,), (1,)), Members((7, 8))]))
    whole = chunk(0, index=draw(st.integers(1, 20)))
    data = draw(st.sampled_from([whole.data, b"", b"nonsense"]))
    return Chunk(
        draw(st.integers(index_term, 6)), draw(small), whole.index, index_term, members,
        draw(small), data, draw(flag),
    )  # fmt: skip


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, number, number, number),
    st.builds(PreVoted, number, flag),
    st.builds(Vote, number, number, number, flag),
    st.builds(Voted, number, flag),
    appends(),
    st.builds(Appended, number, flag, number, flag, flag),
    chunks(),
    st.builds(ChunkTaken, number, small, number),
    st.builds(TimeoutNow, small),
)
said = st.lists(st.tuples(st.integers(1, 5), messages), max_size=8)

unhurried = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def durable(peers: ScriptedPeers) -> dict[bytes, bytes]:
    return dict(peers.engine.iterate(b"", b"\xff"))


@pytest.mark.parametrize("state", STATES)
@unhurried
@given(st.binary(max_size=80))
def test_bytes_that_are_no_frame_change_nothing(
    state: Callable[[], ScriptedPeers], frame: bytes
) -> None:
    peers = state()
    while peers.group.is_installing:
        peers.turn()
    blamed: list = []
    peers.consensus._on_malformed = blamed.append
    before = durable(peers)
    peers.inbound.append((2, frame))
    assert peers.consensus.stage() == {}
    peers.consensus.release()
    assert (blamed, durable(peers)) == ([2], before)
    assert peers.group.stopped is None


@pytest.mark.parametrize("state", STATES)
@unhurried
@given(said, st.data())
def test_damaged_frames_do_no_harm(
    state: Callable[[], ScriptedPeers], talk: list[tuple[int, Message]], data: st.DataObject
) -> None:
    peers = state()
    frame = bytearray(
        encode_frame([(GROUP_ID, message) for _, message in talk], Clocks(1234, 1233, 1232))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    blamed: list = []
    peers.consensus._on_malformed = blamed.append
    before = durable(peers)
    peers.inbound.append((2, bytes(frame[:cut] if data.draw(flag) else frame)))
    writes = peers.consensus.stage()
    if blamed and state is not installing:
        assert writes == {}
        assert durable(peers) == before
    # A state that says of itself what its sender did not is found out once it is there.
    assert peers.group.stopped is None or isinstance(peers.group.stopped, StoreCorrupted)


@pytest.mark.parametrize("state", STATES)
@unhurried
@given(said, st.lists(st.sampled_from([0.0, 0.01, 0.2, 1.1]), min_size=8, max_size=8))
def test_well_formed_nonsense_stops_no_member(
    state: Callable[[], ScriptedPeers], talk: list[tuple[int, Message]], waits: list[float]
) -> None:
    peers = state()
    for (sender, message), wait in zip(talk, waits, strict=False):
        peers.now += wait
        peers.propose(b"p")
        peers.turn((sender, message))
        assert peers.group.stopped is None
    for _ in range(6):
        peers.wait(0.3)
    assert peers.group.stopped is None


@pytest.mark.parametrize("state", STATES)
@unhurried
@given(said)
def test_the_state_after_nonsense_can_be_opened_again(
    state: Callable[[], ScriptedPeers], talk: list[tuple[int, Message]]
) -> None:
    peers = state()
    for sender, message in talk:
        peers.turn((sender, message))
    engine = peers.engine
    engine.disk.crash()
    again = ScriptedPeers(engine=type(engine)(engine.disk), options=OPTIONS)
    again.wait(1.1)
    assert again.group.stopped is None
