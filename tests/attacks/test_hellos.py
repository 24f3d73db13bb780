"""Hellos: a stream has one, whatever number it gives itself, and nothing is left when it ends."""

from __future__ import annotations

import logging

import pytest

from postroom.protocol import frames, streams
from postroom.ranges.requests import Get
from tests.attacks.hostile import Target
from tests.attacks.test_wire import Attacker as Connected
from tests.attacks.test_wire import eventually
from tests.remote.client_names import secret_of
from tests.remote.servers import Server


def hello(number: int, stream: int = 0) -> bytes:
    return frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"%d" % number), stream))


@pytest.mark.parametrize("stream", [0, 1, 2**63])
def test_a_second_hello_ends_the_stream(target: Target, stream: int) -> None:
    session = target.sessions.open("ipv4:10.0.0.1:999", lambda: None)
    session.received(hello(1, stream))
    assert len(target.sessions) == 1
    session.received(hello(2, stream))
    assert session.ended
    assert len(target.sessions) == 0, "what the stream has opened goes with it"
    target.check_alive()


def test_a_stream_with_the_number_0_is_served(target: Target) -> None:
    session = target.sessions.open("ipv4:10.0.0.1:999", lambda: None)
    session.received(hello(1))
    session.received(frames.encode((1, 0, [(7, Get(b"k"))])))
    target.settle()
    assert session.take() is not None, "the Welcome"
    said = frames.from_node(session.take() or b"")
    assert isinstance(said, frames.Answers)
    assert [answer.number for answer in said.answers] == [7]
    session.close()
    target.check_alive()


def test_many_hellos_on_one_connection_take_no_places(caplog: pytest.LogCaptureFixture) -> None:
    """They took all 1,000 places of clients, and the node wrote to the connection later."""
    with Server() as server:
        with caplog.at_level(logging.WARNING), Connected(server.address, hello=False) as attacker:
            said = b"".join(streams.framed(hello(number)) for number in range(4000))
            attacker.socket.sendall(said)
            attacker.socket.close()
            eventually(lambda: not len(server.native.connections))
        assert len(server.sessions) == 0
        assert "raised exception" not in caplog.text
