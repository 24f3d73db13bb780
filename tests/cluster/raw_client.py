"""A client that speaks to one node and to no other, whatever that node says of who leads."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc.aio

from postroom.client.remote.connection import METHOD
from postroom.protocol import frames
from postroom.protocol.requests import decode_result
from postroom.ranges.requests import Get

ANSWER_SECONDS = 20.0


class RawClient:
    """Reads keys; on an event loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._number = 0
        self._clock = 0
        self._channel: Any = None
        self._stream: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._runner.run(self._channel.close())
        self._runner.close()

    def connect(self, address: str) -> None:
        """To this node."""
        self._runner.run(self._connect(address))

    def get(self, key: bytes) -> bytes | str | None:
        """The value; or the name of the error that it was answered with."""
        self.ask(key)
        return self.answer()

    def ask(self, key: bytes) -> None:
        """Send the question, and do not wait."""
        self._number += 1
        self._runner.run(self._write(frames.Ask(self._clock, [(self._number, Get(key))])))

    def answer(self) -> bytes | str | None:
        """To what was asked last."""
        return self._runner.run(asyncio.wait_for(self._answer(), ANSWER_SECONDS))

    async def _connect(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stream = self._channel.stream_stream(METHOD)()
        await self._write(frames.Hello(frames.PROTOCOL_VERSION, b"rawraw01", 1))
        welcome = frames.from_node(await self._stream.read())
        assert isinstance(welcome, frames.Welcome)
        self._clock = welcome.clock

    async def _write(self, frame: object) -> None:
        await self._stream.write(frames.encode(frame))

    async def _answer(self) -> bytes | str | None:
        while True:
            frame = await self._stream.read()
            assert frame is not grpc.aio.EOF, "the node has closed the stream"
            message = frames.from_node(frame)
            if isinstance(message, frames.Answers):
                break
            assert isinstance(message, frames.Welcome), message
        (answer,) = message.answers
        assert answer.number == self._number
        if answer.failure is not None:
            return answer.failure[0]
        value: bytes | None = decode_result(Get, answer.result).value
        return value
