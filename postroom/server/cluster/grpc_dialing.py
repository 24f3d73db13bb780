"""The calls to nodes of the first release, over gRPC.

This module is imported when the first of them is met.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import msgspec
from grpc import aio

from postroom.client.remote.native import (
    CONNECT_SECONDS,
    CertificateCheck,
    host_and_port,
    why_not_connected,
)
from postroom.limits import FRAMES_PER_MESSAGE_MAX, PEER_MESSAGE_BYTES_MAX
from postroom.protocol.frames import ACCEPTED
from postroom.protocol.streams import (
    ADMIT,
    DENIED,
    HELLO,
    MALFORMED,
    REFUSED,
    UNAVAILABLE,
)
from postroom.server.cluster.dialing import NoAnswer, in_words
from postroom.server.cluster.grpc_services import (
    NODES_SERVICE,
)
from postroom.server.cluster.security import Security

STREAM: Final = f"/{NODES_SERVICE}/Stream"
METHODS: Final = {HELLO: f"/{NODES_SERVICE}/Hello", ADMIT: f"/{NODES_SERVICE}/Admit"}
PING_MILLISECONDS: Final = 2000

CHANNEL_OPTIONS: Final = [
    ("grpc.max_send_message_length", PEER_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", PEER_MESSAGE_BYTES_MAX),
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
    grpc.StatusCode.INTERNAL: UNAVAILABLE,  # it ended during a write; the next error tells more
    grpc.StatusCode.DEADLINE_EXCEEDED: UNAVAILABLE,
    grpc.StatusCode.PERMISSION_DENIED: DENIED,
    grpc.StatusCode.UNAUTHENTICATED: DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: MALFORMED,
}

_WORDS: Final = (
    ("connection refused", "nobody listens there"),
    ("wrong_version_number", "it speaks no TLS: it seems to be started with --insecure"),
    ("hostname verification", "its certificate does not name this address"),
    ("certificate has expired", "its certificate, or that of its authority, has expired"),
    ("certificate_verify_failed", "its certificate is none of this node's authority, or expired"),
    ("handshake", "no TLS connection"),
    ("closed", "it hangs up: it may ask for a certificate of its authority"),
    ("reset", "it hangs up: it may ask for a certificate of its authority"),
)
"""The messages of gRPC, in small letters, and their meanings; the first that fits counts."""

_encode = msgspec.msgpack.Encoder().encode


def open_channel(
    security: Security,
    address: str,
    options: Sequence[tuple[str, Any]],
    trusted: bytes | None = None,
) -> aio.Channel:
    """Open a channel to the node at ``address``, with the credentials of a node.

    Args:
        security: has the credentials.
        address: the node's address.
        options: options of gRPC.
        trusted: the only certificate, in PEM, that it may show; ``None``: any of the authority.
    """
    if security.pem is None:
        return aio.insecure_channel(address, options=options)
    ca, certificate, key = security.pem
    credentials = grpc.ssl_channel_credentials(trusted or ca, key, certificate)
    return aio.secure_channel(address, credentials, options=options)


async def shown_at(security: Security, address: str) -> bytes:
    """Return the certificate, in DER, of the server at ``address``, which TLS has checked.

    gRPC does not tell it. It is therefore read beforehand, and gRPC is given this one to trust.

    Raises:
        NoAnswer: there is none.
    """
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(
                host, port, ssl=security.grpc_context(), server_hostname=host
            )
    except OSError as error:
        raise NoAnswer(in_words(why_not_connected(error))) from error
    try:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) or b""
    finally:
        writer.transport.abort()


def no_answer(error: aio.AioRpcError) -> NoAnswer:
    """Return the error for another node's silence, in words that say what to look at."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoAnswer("no answer")
    said = str(error.details() or "no answer")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        said += f" (at most {PEER_MESSAGE_BYTES_MAX} bytes are taken at once)"
    words = next((words for part, words in _WORDS if part in said.lower()), said)
    return NoAnswer(
        words if code is grpc.StatusCode.UNAVAILABLE else said, _CODES.get(code, REFUSED)
    )


class GrpcDialer:
    """The caller of nodes over gRPC.

    Args:
        security: the proofs that this node shows.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

    async def _channel(self, address: str, judge: CertificateCheck | None) -> aio.Channel:
        trusted = None
        if judge is not None and self._security.pem is not None:
            certificate = await shown_at(self._security, address)
            fault = judge(certificate)
            if fault is not None:
                raise fault
            trusted = ssl.DER_cert_to_PEM_cert(certificate).encode()
        return open_channel(self._security, address, CHANNEL_OPTIONS, trusted)

    async def ask(
        self,
        address: str,
        method: str,
        argument: bytes,
        seconds: float,
        judge: CertificateCheck | None = None,
    ) -> bytes:
        """Ask the node at ``address`` a question, and return its answer.

        Raises:
            NoAnswer: there is none.
        """
        async with await self._channel(address, judge) as channel:
            try:
                answer: bytes = await channel.unary_unary(METHODS[method])(
                    argument, timeout=seconds
                )
            except aio.AioRpcError as error:
                raise no_answer(error) from error
            return answer

    async def open(
        self,
        address: str,
        introduction: bytes,
        on_room: Callable[[], None],
        judge: CertificateCheck | None = None,
    ) -> GrpcOutgoing:
        """Open a stream to the node at ``address``, which has accepted it.

        Raises:
            NoAnswer: the stream could not be opened.
        """
        channel = await self._channel(address, judge)
        try:
            call = channel.stream_unary(STREAM)()
            await call.write(introduction)
            if ACCEPTED not in dict(await call.initial_metadata()):
                await call  # raises the other node's error
        except BaseException as error:
            await channel.close()
            if isinstance(error, aio.AioRpcError):
                raise no_answer(error) from error
            if isinstance(error, asyncio.InvalidStateError):
                raise NoAnswer("it has closed the stream") from error
            raise
        return GrpcOutgoing(channel, call, on_room)

    async def close(self) -> None:
        """Do nothing: no channel is kept open."""


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
            NoAnswer: it did not end in good order.
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
        """Close the stream and its channel."""
        self.writable = False
        if self._writing is not None:
            self._writing.cancel()
        self._call.cancel()
        await self._channel.close()
