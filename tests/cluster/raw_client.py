"""A client that speaks to one node and to no other, whatever that node says of who leads."""

from __future__ import annotations

import asyncio
from typing import Self

from postroom.protocol import frames, streams
from postroom.protocol.requests import decode_result
from postroom.ranges.requests import Get
from tests.remote.client_names import secret_of

ANSWER_SECONDS = 20.0


class RawClient:
    """A client that reads keys, on an event loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._number = 0
        self._clock = 0
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._incoming: streams.Incoming
        self._received: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._runner.close()

    def connect(self, address: str) -> None:
        """Connect to this node, and to no other one any more."""
        if self._writer is not None:
            self._writer.close()
        self._received.clear()
        self._runner.run(self._connect(address))

    def get(self, key: bytes) -> bytes | str | None:
        """Return the value, or the name of the error in its place."""
        self.ask(key)
        return self.answer()

    def ask(self, key: bytes) -> None:
        """Send the question, and do not wait."""
        self._number += 1
        self._runner.run(self._write(frames.Ask(self._clock, [(self._number, Get(key))])))

    def answer(self) -> bytes | str | None:
        """Wait for the answer to what was asked last."""
        return self._runner.run(asyncio.wait_for(self._answer(), ANSWER_SECONDS))

    async def _connect(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._incoming = streams.Incoming(frames.FRAME_BYTES_MAX)
        self._writer.write(streams.opening_bytes(streams.Opening(streams.TALK)))
        assert isinstance(streams.read_reply(await self._read()), streams.Accepted)
        await self._write(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"raw"), 1))
        welcome = frames.from_node(await self._read())
        assert isinstance(welcome, frames.Welcome)
        self._clock = welcome.clock

    async def _write(self, frame: object) -> None:
        assert self._writer is not None
        self._writer.write(streams.framed(frames.encode(frame)))
        await self._writer.drain()

    async def _read(self) -> bytes:
        while not self._received:
            data = await self._reader.read(65536)
            assert data, "the node has closed the stream"
            self._received += self._incoming.feed(data)
        return self._received.pop(0)

    async def _answer(self) -> bytes | str | None:
        while True:
            message = frames.from_node(await self._read())
            if isinstance(message, frames.Answers):
                break
            assert isinstance(message, frames.Welcome), message
        (answer,) = message.answers
        assert answer.number == self._number
        if answer.failure is not None:
            return answer.failure[0]
        value: bytes | None = decode_result(Get, answer.result).value
        return value
