"""Callers who may come in, and harm on the wire: noise, lies about lengths, not reading."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)

import pytest

import postroom
from postroom.errors import Invalid
from postroom.protocol import frames, streams
from postroom.ranges.requests import Get
from postroom.server.cluster.session import Session
from tests.remote.client_names import secret_of
from tests.remote.servers import Server

TALK = streams.opening_bytes(streams.Opening(streams.TALK))
HELLO = frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"attacker"), 1))
SLOW_ANSWER_BYTES = 64 * 1024


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


class Attacker:
    """A client that may come in, byte by byte."""

    def __init__(self, address: str, *, hello: bool = True) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.sendall(TALK)
        self._incoming = streams.Incoming(frames.FRAME_BYTES_MAX)
        self._frames: list[bytes] = []
        assert isinstance(streams.read_reply(self.frame()), streams.Accepted)
        if hello:
            self.say(HELLO)
            assert isinstance(frames.from_node(self.frame()), frames.Welcome)

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, frame: bytes) -> None:
        self.socket.sendall(streams.framed(frame))

    def ask_without_reading(self) -> None:
        """Send requests until the node takes no more."""
        self.socket.setblocking(False)
        asks = b"".join(
            streams.framed(frames.encode((1, 0, [(16 * n + k, Get(b"large")) for k in range(16)])))
            for n in range(4096)
        )
        sent = 0
        while sent < len(asks):
            _, writable, _ = select.select([], [self.socket], [], 1.0)
            if not writable:
                break
            sent += self.socket.send(asks[sent:])

    def frame(self) -> bytes:
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._frames += self._incoming.feed(data)
        return self._frames.pop(0)

    def last_words(self) -> object:
        """Read frames until the node ends the stream, and return the last one."""
        last: object = None
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                frame = self.frame()
                try:
                    last = frames.from_node(frame)
                except frames.WireError:
                    last = streams.read_reply(frame)
        return last


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@contextlib.contextmanager
def who_does_not_read(server: Server) -> Iterator[Session]:
    """Yield the session of a client, the only one, from which the node stops reading."""
    with postroom.connect(server.address, insecure=True) as db:
        db.put(b"large", bytes(SLOW_ANSWER_BYTES))
    eventually(lambda: not len(server.native.connections))
    with Attacker(server.address) as attacker:
        attacker.ask_without_reading()
        (session,) = server.sessions._open.values()
        eventually(lambda: not session.reading)
        yield session


@pytest.mark.parametrize("seed", range(3))
def test_noise_in_frames_of_a_client_ends_its_stream_and_nothing_else(
    server: Server, seed: int
) -> None:
    random = Random(seed)
    good = frames.encode((1, 0, [(1, Get(b"key")), (2, Get(b"other"))]))
    with postroom.connect(server.address, insecure=True) as db:
        for _ in range(60):
            spoiled = bytearray(good)
            for _ in range(random.randint(1, 4)):
                spoiled[random.randrange(len(spoiled))] = random.randrange(256)
            with Attacker(server.address, hello=random.random() < 0.9) as attacker:
                attacker.say(bytes(spoiled[: random.randint(0, len(spoiled))]))
                attacker.say(b"\xc1")
                said = attacker.last_words()
                assert isinstance(said, frames.Goodbye | streams.StreamRefusal | frames.Answers)
        db.put(b"key", b"unharmed")
        assert db.get(b"key") == b"unharmed"
        eventually(lambda: len(server.sessions) == 1)
    assert server.sessions.admission.requests == 0
    eventually(lambda: not len(server.native.connections))


def test_a_length_that_lies_ends_the_stream_with_the_reason(server: Server) -> None:
    with Attacker(server.address) as attacker:
        attacker.socket.sendall((frames.FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
        said = attacker.last_words()
        assert isinstance(said, streams.StreamRefusal)
        assert f"the limit is {frames.FRAME_BYTES_MAX}" in said.reason


def test_a_frame_that_never_ends_leaves_others_served(server: Server) -> None:
    with Attacker(server.address) as attacker:
        attacker.socket.sendall((frames.FRAME_BYTES_MAX).to_bytes(4, "big") + bytes(100_000))
        with postroom.connect(server.address, insecure=True) as db:
            db.put(b"key", b"1")
    eventually(lambda: not len(server.native.connections))


def test_a_node_stops_reading_from_a_client_that_does_not_read_answers(server: Server) -> None:
    limits = server.sessions.admission.limits
    with who_does_not_read(server) as session:
        server.on_loop(asyncio.sleep(0.3))  # the taken requests are answered
        assert session.unread_bytes < 8 * limits.unread_bytes_max
        with postroom.connect(server.address, insecure=True) as db:
            assert db.get(b"large") == bytes(SLOW_ANSWER_BYTES)
    eventually(lambda: not len(server.sessions))


def test_answers_for_a_client_whose_stream_has_ended_are_dropped(server: Server) -> None:
    """It did not count any more, and stayed: a client could come again and again for more."""
    with who_does_not_read(server) as session, Attacker(server.address, hello=False) as newer:
        newer.say(frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"attacker"), 2)))
        assert isinstance(frames.from_node(newer.frame()), frames.Welcome)
        assert session.ended
        assert session.unread_bytes < SLOW_ANSWER_BYTES
        eventually(lambda: len(server.native.connections) == 1)


def test_a_client_that_does_not_read_is_cut_off_when_its_stream_ends(server: Server) -> None:
    with who_does_not_read(server) as session:

        async def end() -> None:
            session.end(Invalid("for the test"))

        server.on_loop(end())
        eventually(lambda: not len(server.native.connections))


def test_a_broken_connection_is_not_written_to(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Without that, asyncio logs a line for each answer."""

    async def break_and_write() -> None:
        (stream,) = server.native.streams
        stream._transport.abort()
        for _ in range(100):
            stream.write(b"an answer")

    with caplog.at_level(logging.WARNING), Attacker(server.address):
        server.on_loop(break_and_write())
        eventually(lambda: not server.native.streams)
    assert "raised exception" not in caplog.text
