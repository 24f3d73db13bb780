"""Calling nodes of the first release, over gRPC. Imported when the first of them is met."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import msgspec
from grpc import aio

from postroom.protocol.frames import ACCEPTED
from postroom.protocol.streams import (
    ADMIT,
    DENIED,
    HELLO,
    MALFORMED,
    REFUSED,
    UNAVAILABLE,
)
from postroom.server.cluster.dialing import NoAnswer
from postroom.server.cluster.grpc_services import (
    FRAMES_PER_MESSAGE_MAX,
    MESSAGE_BYTES_MAX,
    NODES_SERVICE,
)
from postroom.server.cluster.security import Security

STREAM: Final = f"/{NODES_SERVICE}/Stream"
METHODS: Final = {HELLO: f"/{NODES_SERVICE}/Hello", ADMIT: f"/{NODES_SERVICE}/Admit"}
PING_MILLISECONDS: Final = 2000

CHANNEL_OPTIONS: Final = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", PING_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", PING_MILLISECONDS),
    ("grpc.http2.max_pings_without_data", 0),
]

_CODES: Final = {
    grpc.StatusCode.UNAVAILABLE: UNAVAILABLE,
    grpc.StatusCode.CANCELLED: UNAVAILABLE,
    grpc.StatusCode.INTERNAL: UNAVAILABLE,  # it ended while something was written; the next tells
    grpc.StatusCode.DEADLINE_EXCEEDED: UNAVAILABLE,
    grpc.StatusCode.PERMISSION_DENIED: DENIED,
    grpc.StatusCode.UNAUTHENTICATED: DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: MALFORMED,
}

_WORDS: Final = (
    ("connection refused", "nobody listens there"),
    ("wrong_version_number", "it speaks no TLS: it seems to be started with --insecure"),
    ("hostname verification", "its certificate does not name this address"),
    ("certificate_verify_failed", "its certificate is none of this node's authority, or expired"),
    ("handshake", "no TLS connection"),
    ("closed", "it hangs up: it may ask for a certificate of its authority"),
    ("reset", "it hangs up: it may ask for a certificate of its authority"),
)
"""What gRPC says, in small letters, and what it means; the first that fits."""

_encode = msgspec.msgpack.Encoder().encode


def open_channel(
    security: Security, address: str, options: Sequence[tuple[str, Any]]
) -> aio.Channel:
    """A channel to the node at ``address``, with the credentials of a node."""
    if security.pem is None:
        return aio.insecure_channel(address, options=options)
    ca, certificate, key = security.pem
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return aio.secure_channel(address, credentials, options=options)


def no_answer(error: aio.AioRpcError) -> NoAnswer:
    """What kept another node from answering, in words that say what to look at."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoAnswer("no answer")
    said = str(error.details() or "no answer")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        said += f" (at most {MESSAGE_BYTES_MAX} bytes are taken at once)"
    words = next((words for part, words in _WORDS if part in said.lower()), said)
    return NoAnswer(
        words if code is grpc.StatusCode.UNAVAILABLE else said, _CODES.get(code, REFUSED)
    )


class GrpcDialer:
    """Calls nodes.

    Args:
        security: what this node shows.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

    async def ask(self, address: str, method: str, argument: bytes, seconds: float) -> bytes:
        """The answer of the node at ``address`` to a question.

        Raises:
            NoAnswer: there is none.
        """
        async with open_channel(self._security, address, CHANNEL_OPTIONS) as channel:
            try:
                answer: bytes = await channel.unary_unary(METHODS[method])(
                    argument, timeout=seconds
                )
            except aio.AioRpcError as error:
                raise no_answer(error) from error
            return answer

    async def open(
        self, address: str, introduction: bytes, on_room: Callable[[], None]
    ) -> GrpcOutgoing:
        """A stream that the node at ``address`` has accepted.

        Raises:
            NoAnswer: there is none.
        """
        channel = open_channel(self._security, address, CHANNEL_OPTIONS)
        try:
            call = channel.stream_unary(STREAM)()
            await call.write(introduction)
            if ACCEPTED not in dict(await call.initial_metadata()):
                await call  # raises what the other node says
        except BaseException as error:
            await channel.close()
            if isinstance(error, aio.AioRpcError):
                raise no_answer(error) from error
            if isinstance(error, asyncio.InvalidStateError):
                raise NoAnswer("it has closed the stream") from error
            raise
        return GrpcOutgoing(channel, call, on_room)

    async def close(self) -> None:
        """Nothing is kept open."""


class GrpcOutgoing:
    """A stream to another node, on which one message is under way at a time."""

    is_native = False

    def __init__(self, channel: aio.Channel, call: Any, on_room: Callable[[], None]) -> None:
        self.writable = True
        self._channel = channel
        self._call = call
        self._on_room = on_room
        self._broken = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames, in order, while it is ``writable``."""
        self.writable = False
        self._writing = asyncio.get_running_loop().create_task(self._write(list(frames)))

    async def _write(self, frames: list[bytes]) -> None:
        try:
            while frames:
                await self._call.write(_encode(frames[:FRAMES_PER_MESSAGE_MAX]))
                del frames[:FRAMES_PER_MESSAGE_MAX]
        except (aio.AioRpcError, asyncio.InvalidStateError):
            self._broken.set()
        else:
            self.writable = True
            self._on_room()

    async def until_ended(self) -> None:
        """Wait for its end.

        Raises:
            NoAnswer: that was not in good order.
        """
        answer = asyncio.ensure_future(self._call)
        broken = asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait((answer, broken), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        except aio.AioRpcError as error:
            raise no_answer(error) from error
        finally:
            broken.cancel()
            self._call.cancel()
            await asyncio.wait((answer,))
            if not answer.cancelled():
                answer.exception()

    async def close(self) -> None:
        """Let go of it."""
        self.writable = False
        if self._writing is not None:
            self._writing.cancel()
        self._call.cancel()
        await self._channel.close()
