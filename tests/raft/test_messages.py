"""Frames: what is written is read again, and what is unsound is dropped and does nothing."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.raft import messages
from postroom.raft.membership import Members
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    ChunkTaken,
    Clocks,
    PreVote,
    PreVoted,
    TimeoutNow,
    Vote,
    Voted,
    decode_frame,
    encode_frame,
)
from postroom.raft.stored_log import membership_payload

EVERY_MESSAGE = [
    PreVote(1, 2, 3),
    PreVoted(1, True),
    Vote(1, 2, 3, True),
    Voted(1, False),
    Append(
        3, 2, 1, 4, 0, ((1, b"\0x"), (3, b"\1"), (3, membership_payload(Members((1,), (2,))))), True
    ),
    Appended(1, True, 2, True, False),
    Chunk(3, 1, 9, 2, Members((1, 2), (3,)), 0, msgspec.msgpack.encode((1, b"state")), True),
    ChunkTaken(1, 1, 1),
    TimeoutNow(1),
]


def test_every_message_is_read_as_it_was_written() -> None:
    envelopes = list(enumerate(EVERY_MESSAGE))
    frame = decode_frame(encode_frame(envelopes, Clocks(1234, 1233, 1232)))[0]
    assert frame is not None
    assert (frame.clocks, frame.envelopes) == ((1234, 1233, 1232), envelopes)


def test_the_bytes_of_a_frame_are_fixed() -> None:
    clocks = Clocks(5, 6, 7)
    assert encode_frame([(7, Voted(3, True))], clocks) == (
        b"\x96\1\5\x91\x92\x07\x93\4\3\xc3\2\6\7"
    )
    assert encode_frame([], clocks) == b"\x96\1\5\x90\2\6\7", "I live"


def test_a_frame_of_a_node_that_tells_only_its_own_clock_is_read() -> None:
    frame = decode_frame(b"\x94\1\5\x90\2")[0]
    assert frame is not None
    assert frame.clocks == Clocks(5)


def test_another_version_is_dropped() -> None:
    for frame in ([2, 5, [[7, Voted(3, True)]]], [2, "all is different"]):
        assert decode_frame(msgspec.msgpack.encode(frame)) == (None, "unknown version 2")


def test_a_frame_that_is_too_large_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PEER_FRAME_BYTES_MAX", 5)
    frame, problem = decode_frame(encode_frame([(7, Voted(3, True))]))
    assert frame is None
    assert "too large" in problem


@pytest.mark.parametrize(
    "unsound",
    [
        [1, 0, [[7, [4, -1, True]]]],
        [1, 0, [[7, [99, 1, True]]]],
        [1, 0, [[-7, [4, 1, True]]]],
        [1, 0, [[7, [4, 2**63, True]]]],
        [1, 0, [[7, [4, 1, "yes"]]]],
        [1, 0, [[7, [4]]]],
        [1, 0, [[7, [5, 1, 2, 3, 4, 0, [[1, b""]]]]]],
        [1, 0, [[7, [7, 1, 1, 9, 2, [list(range(65)), []], 0, b"", True]]]],
        [1, 0, [[7, [5, 1, 2, 2, 4, 0, []]]]],
        [1, 0, [[7, [5, 3, 2, 2, 4, 0, [[1, b"\0x"]]]]]],
        [1, 0, [[7, [5, 3, 2, 2, 4, 0, [[3, b"\3?"]]]]]],
        [1, 0, [[7, [5, 3, 2, 2, 4, 0, [[3, b"\2\x90"]]]]]],
        [1, 0, [[7, [7, 1, 1, 9, 2, [[1], []], 0, b"", True]]]],
        [1, 0, [[7, [7, 3, 1, 9, 2, [[], [1]], 0, b"", True]]]],
        [1, 0, [[7, [7, 3, 1, 9, 2, [[1], [1]], 0, b"", True]]]],
        [1, 0, [[7, [5, 3, 2, 2, 4, 0, [[3, b"\3\x92\x90\x91\1"]]]]]],
        [1, -1, []],
        [1],
        {"version": 1},
        None,
    ],
)
def test_a_malformed_frame_is_dropped(unsound: object) -> None:
    frame, problem = decode_frame(msgspec.msgpack.encode(unsound))
    assert frame is None
    assert problem


def test_a_pickle_is_nothing_but_malformed() -> None:
    assert decode_frame(pickle.dumps(("request_vote", 1)))[0] is None


def test_deep_nesting_is_dropped() -> None:
    assert decode_frame(b"\x91" * 100_000)[0] is None


@given(st.binary(max_size=60))
def test_random_bytes_do_nothing(frame: bytes) -> None:
    assert decode_frame(frame)[0] is None


VALID = encode_frame(list(enumerate(EVERY_MESSAGE)))


@given(st.integers(0, len(VALID) - 1), st.integers(0, 255), st.integers(0, len(VALID)))
def test_damaged_frames_never_raise(position: int, value: int, length: int) -> None:
    damaged = bytearray(VALID)
    damaged[position] = value
    frame = decode_frame(bytes(damaged[:length]))[0]
    for _, message in [] if frame is None else frame.envelopes:
        assert isinstance(message, messages.Message)


def test_frames_are_cut_where_they_grow_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups of a turn share a frame, unless there is too much for one."""
    monkeypatch.setattr(messages, "FRAME_BYTES", 10)

    def append(group: int, size: int) -> tuple[int, Append]:
        return group, Append(1, 0, 0, 0, 0, ((1, b"\0" * size),))

    envelopes = [append(1, 4), append(2, 5), append(3, 100), append(4, 3), append(5, 8)]
    assert [len(part) for part in messages.frames_of(envelopes)] == [3, 2]
    assert [len(part) for part in messages.frames_of([append(1, 100), append(2, 1)])] == [1, 1]
    assert [len(part) for part in messages.frames_of([])] == [0], "an empty frame is one, too"
