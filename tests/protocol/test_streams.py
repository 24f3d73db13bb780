"""Native streams as bytes: preambles, lengths, refusals; and which door a connection asks for."""

from __future__ import annotations

import contextlib
import ssl
from random import Random  # noqa: TID251 (seeded)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.protocol import streams
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    ALPN,
    GRPC_DOOR,
    NATIVE_DOOR,
    PREAMBLE,
    Accepted,
    Incoming,
    Opening,
    OtherProtocol,
    OtherVersion,
    Refusal,
    door_of,
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
    with pytest.raises(OtherProtocol):
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
    for reply in (Accepted(b"answer"), Refusal("denied", "why")):
        (frame,) = fed(Incoming(), streams.reply_bytes(reply))
        assert streams.read_reply(frame) == reply


@given(st.binary(max_size=40))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    for read in (streams.read_opening, streams.read_reply):
        with contextlib.suppress(WireError):
            read(noise)


# --- which door -----------------------------------------------------------------------------------


def client_hello(*alpn: str) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(incoming, outgoing, server_hostname="node-1.example.com")
    with pytest.raises(ssl.SSLWantReadError):
        wrapped.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("first", "door"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", GRPC_DOOR),
        (PREAMBLE, NATIVE_DOOR),
        (b"postroom/9\n", NATIVE_DOOR),
        (b"postroom", None),
        (b"p", None),
        (b"pq", GRPC_DOOR),
        (b"GET /", GRPC_DOOR),
        (client_hello("h2"), GRPC_DOOR),
        (client_hello(), GRPC_DOOR),
        (client_hello(ALPN), NATIVE_DOOR),
        (client_hello("h2", ALPN), NATIVE_DOOR),
        (client_hello(ALPN)[:4], None),
        (client_hello(ALPN)[:-1], None),
        (b"\x16\x03\x01\xff\xff" + bytes(20_000), GRPC_DOOR),
    ],
)
def test_the_door_is_told_by_the_first_bytes(first: bytes, door: str | None) -> None:
    assert door_of(first) == door


@pytest.mark.parametrize("seed", range(200))
def test_a_client_hello_with_lies_in_it_is_gone_through_all_the_same(seed: int) -> None:
    random = Random(seed)
    spoiled = bytearray(client_hello("h2", ALPN))
    for _ in range(random.randint(1, 6)):
        spoiled[random.randrange(len(spoiled))] = random.choice([0, 255, random.randrange(256)])
    first = bytes(spoiled[: random.randint(1, len(spoiled))])
    assert door_of(first) in {NATIVE_DOOR, GRPC_DOOR, None}
