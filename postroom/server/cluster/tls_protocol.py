"""The TLS of incoming connections, without a buffer of its own for each.

asyncio gives each TLS connection 256 KiB to read into, for as long as it lasts. The bytes read into
it are taken out before anything else happens: all connections of an event loop can share one.

A caller without TLS is told in plain bytes that the node asks for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final

from postroom.protocol.streams import DENIED, StreamRefusal, reply_bytes

READ_BYTES: Final = 256 * 1024
_HANDSHAKE_RECORD: Final = 22
"""The first byte of each connection with TLS (RFC 8446, 5.1)."""
_ASKS_FOR_TLS: Final = reply_bytes(
    StreamRefusal(DENIED, "this node asks for TLS; nothing was done")
)


class SharedBuffer:
    """The buffer that the connections of one event loop are read into, one after the other."""

    def __init__(self) -> None:
        self.bytes = bytearray(READ_BYTES)
        self.view = memoryview(self.bytes)


class _TlsProtocol(SSLProtocol):
    """A protocol of asyncio with a shared buffer.

    Its base allocates a buffer of ``max_size``.
    """

    max_size = 1024

    def __init__(self, shared: SharedBuffer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ssl_buffer, self._ssl_buffer_view = shared.bytes, shared.view
        self.max_size = READ_BYTES  # type: ignore[misc]  # asyncio's is a constant of the class
        # An attribute of the instance: later reads do not pass through one more method.
        setattr(self, "buffer_updated", self._check_first_bytes)  # noqa: B010 - a method elsewhere

    def _check_first_bytes(self, count: int) -> None:
        del self.buffer_updated
        assert isinstance(self._transport, asyncio.Transport)
        if self._ssl_buffer[0] == _HANDSHAKE_RECORD:
            self.buffer_updated(count)
            return
        self._transport.write(_ASKS_FOR_TLS)
        self._on_handshake_complete(ssl.SSLError(1, "the caller speaks no TLS"))


async def accept_tls(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    shared: SharedBuffer,
    handshake_seconds: float,
) -> None:
    """Have ``protocol`` speak through TLS with the other side of a connection.

    Raises:
        OSError: there is no TLS with it.
    """
    loop = asyncio.get_running_loop()
    agreed = loop.create_future()
    transport, _ = await loop.connect_accepted_socket(
        lambda: _TlsProtocol(
            shared, loop, protocol, context, agreed,
            server_side=True, ssl_handshake_timeout=handshake_seconds,
        ),
        connected,
    )  # fmt: skip
    try:
        await agreed
    except BaseException:
        transport.abort()
        raise
