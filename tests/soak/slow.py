"""Clients that ask for much, and read little of it: at their sockets, so nothing reads for them.

Each speaks the native streams by hand, with a small buffer, to whoever leads. The node must not
keep for them more than it keeps for anybody (``postroom.server.cluster.admission.NodeLimits``),
and others must be served meanwhile. The other clients of the soak and the memory of the nodes tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from postroom.protocol import frames, streams
from postroom.protocol.requests import REVISION
from postroom.ranges.requests import Get
from tests.soak.worker import Worker

ASKED_AT_ONCE: Final = 32
"""Large values: some 16 MB."""
BUFFER_BYTES: Final = 16 * 1024
TRICKLE_BYTES: Final = 4096
TRICKLE_SECONDS: Final = 8.0
STALL_SECONDS: Final = 3.0
MUTE_SECONDS: Final = 12.0
"""A time longer than a node bears silence."""
PATIENCE_SECONDS: Final = 15.0


class SlowReaders:
    """Clients that read slowly, or not at all.

    Args:
        addresses: of the nodes.
        goes_on: whether the soak does.
    """

    def __init__(self, addresses: Sequence[str], goes_on: Callable[[], bool]) -> None:
        self._addresses = addresses
        self._goes_on = goes_on

    async def trickle(self, worker: Worker) -> None:
        """Read a few KiB a second, ask for more all the time, and vanish."""
        async with self._stream(worker) as stream:
            until = time.monotonic() + TRICKLE_SECONDS
            with contextlib.suppress(TimeoutError):
                while time.monotonic() < until and self._goes_on():
                    await stream.ask(ASKED_AT_ONCE, 0.2)
                    await stream.read(TRICKLE_BYTES)
                    worker.did()  # a spell is too long a step for who waits for his turn besides
                    await asyncio.sleep(0.3)

    async def stall(self, worker: Worker) -> None:
        """Read nothing for a while, and then all that was asked for."""
        async with self._stream(worker) as stream:
            await stream.ask(ASKED_AT_ONCE, PATIENCE_SECONDS)
            await self._sleep(STALL_SECONDS)
            answered = 0
            while answered < ASKED_AT_ONCE and self._goes_on():
                message = await stream.message()
                if isinstance(message, frames.Goodbye):
                    break
                assert isinstance(message, frames.Answers)
                answered += len(message.answers)
        worker.did()

    async def read_nothing(self, worker: Worker) -> None:
        """Ask for as much as the node takes, and read nothing until it must be cut off."""
        async with self._stream(worker) as stream:
            with contextlib.suppress(TimeoutError):
                while self._goes_on():
                    await stream.ask(ASKED_AT_ONCE, 1.0)
            worker.did()  # its silence on purpose begins
            await self._sleep(MUTE_SECONDS)
            if self._goes_on():
                await stream.rest()
        worker.did()

    async def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._goes_on():
            await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _stream(self, worker: Worker) -> AsyncIterator[Stream]:
        """Open a stream to the leader."""
        address = worker.random.choice(self._addresses)
        stream = await opened(address, worker)
        try:
            leader = dict(stream.welcome.nodes).get(stream.welcome.leader)
            if leader is not None and stream.welcome.leader != stream.welcome.node_id:
                stream.close()
                stream = await opened(leader, worker)
            yield stream
        finally:
            stream.close()


async def opened(address: str, worker: Worker, source: str = "") -> Stream:
    """Return a stream to a node; from a loopback address of its own, if that is given."""
    stream = Stream(source)
    try:
        await asyncio.wait_for(stream.open(address, worker), PATIENCE_SECONDS)
    except BaseException:
        stream.close()
        raise
    return stream


class Stream:
    """The client's end of a native stream; nothing is read before somebody asks for it.

    Attributes:
        welcome: what the node has said first.
        client: the id of the client.
    """

    welcome: frames.Welcome
    client: bytes

    def __init__(self, source: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        if source:
            self._socket.bind((source, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._incoming = streams.Incoming(frames.FRAME_BYTES_MAX)
        self._frames: list[bytes] = []
        self._numbers = 0
        self._unsent = b""

    async def open(self, address: str, worker: Worker) -> None:
        """Open a stream, up to the node's welcome."""
        host, port = address.rsplit(":", 1)
        await self._loop.sock_connect(self._socket, (host, int(port)))
        identity = frames.draw_identity(worker.random)
        hello = frames.Hello(frames.PROTOCOL_VERSION, identity.secret, 1, REVISION)
        opening = streams.opening_bytes(streams.Opening(streams.TALK))
        await self._loop.sock_sendall(self._socket, opening)
        reply = streams.read_reply(await self._frame())
        if not isinstance(reply, streams.Accepted):
            raise ConnectionError(reply.reason)
        await self._loop.sock_sendall(self._socket, streams.framed(frames.encode(hello)))
        welcome = frames.from_node(await self._frame())
        if not isinstance(welcome, frames.Welcome):
            raise ConnectionError("not welcome")
        self.welcome, self.client = welcome, identity.client

    async def ask(self, count: int, seconds: float) -> None:
        """Ask for large values.

        Raises:
            TimeoutError: the node takes nothing for so long; the rest goes out before what follows.
        """
        if not self._unsent:
            numbers = range(self._numbers + 1, self._numbers + count + 1)
            self._numbers += count
            asked = [(number, Get(b"soak/large/%d" % (number % 4))) for number in numbers]
            self._unsent = streams.framed(frames.encode((1, 0, asked, [], False)))
        until = time.monotonic() + seconds
        while self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError from None
                await asyncio.sleep(0.05)

    async def say(self, data: bytes) -> None:
        """Send all of ``data``, however long the node takes to read it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loop.sock_sendall(self._socket, data)

    def send(self, data: bytes) -> None:
        """Send all of ``data``, or what was left of earlier data."""
        self._unsent = self._unsent or data
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def drain(self) -> None:
        """Throw away what there is to read.

        Raises:
            ConnectionError: the node has ended the stream.
        """
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(65536):
                pass
            raise ConnectionError("the node has ended the stream")

    async def read(self, size: int) -> bytes:
        """Return what there is, up to ``size`` bytes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            data = await self._loop.sock_recv(self._socket, size)
        if not data:
            raise ConnectionError("the node has ended the stream")
        return data

    async def rest(self) -> None:
        """Read to the end of the stream, if it has come."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                while await self._loop.sock_recv(self._socket, 65536):
                    pass

    async def message(self) -> frames.Answers | frames.Goodbye:
        """Return the next message, but for news of ranges."""
        while isinstance(message := frames.from_node(await self._frame()), frames.Welcome):
            pass
        return message

    async def _frame(self) -> bytes:
        while not self._frames:
            self._frames += self._incoming.feed(await self.read(65536))
        return self._frames.pop(0)

    def close(self) -> None:
        """Vanish."""
        self._socket.close()
