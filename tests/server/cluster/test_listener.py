"""The beginning of a connection: its first byte, TLS, and the end of those that are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from postroom.protocol import streams
from postroom.protocol.streams import PREAMBLE, Incoming, Opening, StreamRefusal
from postroom.server.cluster.admission import Connection
from postroom.server.cluster.listener import Listener
from postroom.server.cluster.security import Security
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker, run, until


async def refusal(talker: Talker, said: bytes) -> StreamRefusal:
    """Return the words with which the node ends a connection on which this is said."""
    reader, writer = await asyncio.open_connection(talker.host, talker.port)
    writer.write(said)
    async with asyncio.timeout(10):
        (frame,) = Incoming().feed(await reader.read())
    writer.close()
    reply = streams.read_reply(frame)
    assert isinstance(reply, StreamRefusal)
    return reply


def test_a_caller_without_tls_is_told_that_the_node_asks_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        talker = Talker(1, Security(Authority(tmp_path).node("127.0.0.1")))
        await talker.listen()
        try:
            for said in (streams.opening_bytes(Opening(streams.HELLO)), b"p", b"GET / HTTP/1.1"):
                assert await refusal(talker, said) == StreamRefusal(
                    streams.DENIED, "this node asks for TLS; nothing was done"
                )
            await until(lambda: not len(talker.server.connections))
        finally:
            await talker.close()

    run(main())


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01"])
def test_a_caller_of_another_protocol_is_told_that_it_is_not_understood(said: bytes) -> None:
    async def main() -> None:
        talker = Talker(1)
        await talker.listen()
        try:
            told = await refusal(talker, said)
            assert (told.code, told.reason) == (
                streams.MALFORMED, "no native stream of Postroom"
            )  # fmt: skip
        finally:
            await talker.close()

    run(main())


@pytest.mark.parametrize("first", [b"", PREAMBLE])
def test_a_connection_that_is_dropped_at_its_beginning_is_closed(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is closed although the task that opens the stream has not begun."""
    begin = Listener._begin

    def begin_and_drop(
        listener: Listener, connected: socket.socket, connection: Connection
    ) -> None:
        begin(listener, connected, connection)
        connection.drop()

    monkeypatch.setattr(Listener, "_begin", begin_and_drop)

    async def main() -> None:
        talker = Talker(1)
        await talker.listen()
        try:
            reader, writer = await asyncio.open_connection(talker.host, talker.port)
            await until(lambda: len(talker.server.connections) == 1)
            writer.write(first)
            if not first:
                talker.server.connections.drop_all()
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):  # if something was not read
                    assert await reader.read() == b""
            assert not len(talker.server.connections)
            writer.close()
        finally:
            await talker.close()

    run(main())
