"""Native streams as bytes: preambles, lengths, refusals."""

from __future__ import annotations

import contextlib
from random import Random  # noqa: TID251 (seeded)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.protocol import streams
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    PREAMBLE,
    Accepted,
    Incoming,
    Opening,
    OtherVersion,
    StreamRefusal,
    framed,
)


def fed(incoming: Incoming, *parts: bytes) -> list[bytes]:
    return [frame for part in parts for frame in incoming.feed(part)]


@given(st.lists(st.binary(max_size=50), max_size=8), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[bytes], random: Random
) -> None:
    data = PREAMBLE + b"".join(framed(frame) for frame in frames)
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(12)))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert fed(Incoming(), *parts) == frames


def test_a_byte_at_a_time() -> None:
    data = PREAMBLE + framed(b"one") + framed(b"") + framed(bytes(300))
    assert fed(Incoming(), *(bytes([each]) for each in data)) == [b"one", b"", bytes(300)]


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1", b"\x00\x00\x18\x04", b"p\n", b"postroom/22222222"]
)
def test_another_protocol_is_told_from_this_one(first: bytes) -> None:
    with pytest.raises(WireError, match="no native stream"):
        fed(Incoming(), first)


@pytest.mark.parametrize("version", [b"1", b"3", b"x\x1b"])
def test_another_version_is_named(version: bytes) -> None:
    with pytest.raises(OtherVersion, match="use the same version"):
        fed(Incoming(), b"postroom/" + version + b"\n")


def test_a_length_is_checked_before_anything_behind_it_is_kept() -> None:
    incoming = Incoming(10)
    assert fed(incoming, PREAMBLE + framed(bytes(10))) == [bytes(10)]
    with pytest.raises(WireError, match="a frame of 11 bytes, the limit is 10"):
        fed(incoming, (11).to_bytes(4, "big"))


def test_what_was_whole_before_a_length_that_is_too_large_comes_out() -> None:
    frames = Incoming(10).feed(PREAMBLE + framed(b"good") + b"\xff" * 4)
    assert next(frames) == b"good"
    with pytest.raises(WireError):
        next(frames)


def test_the_limit_may_be_raised_between_two_frames() -> None:
    incoming, got = Incoming(10), []
    for frame in incoming.feed(PREAMBLE + framed(b"hello") + framed(bytes(100))):
        got.append(frame)
        incoming.frame_bytes_max = 100
    assert got == [b"hello", bytes(100)]


def test_openings_and_replies_there_and_back() -> None:
    opening = Opening("talk", b"x", "token")
    (frame,) = fed(Incoming(), streams.opening_bytes(opening))
    assert streams.read_opening(frame) == opening
    for reply in (Accepted(b"answer"), StreamRefusal("denied", "why")):
        (frame,) = fed(Incoming(), streams.reply_bytes(reply))
        assert streams.read_reply(frame) == reply


@given(st.binary(max_size=40))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    for read in (streams.read_opening, streams.read_reply):
        with contextlib.suppress(WireError):
            read(noise)
