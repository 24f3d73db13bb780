"""The calling side of a native stream on asyncio: for clients, and for nodes that call others.

::

    dial ─▶ TCP, TLS ─▶ preamble, Opening ─▶ Accepted ─▶ frames both ways ─▶ ended
                                                                (once, with the reason)

It writes at once: frames leave before the call returns, unless the other side does not accept them.
Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from postroom.client.routing.search import HungUp
from postroom.errors import Error, Unavailable, VersionMismatch
from postroom.protocol.addresses import is_unix, path_in
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    ALPN,
    Accepted,
    Incoming,
    Opening,
    OtherVersion,
    StreamRefusal,
    framed,
    length_bytes,
    opening_bytes,
    read_reply,
)

CONNECT_SECONDS: Final = 5.0
"""The time for the connection and TLS, in seconds; the other side has as long again to accept."""
CLOSE_SECONDS: Final = 1.0
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""The number of bytes that are written before the other side accepts them."""
IDLE_SECONDS: Final = 2
"""The time after which a silent connection is probed, in seconds.

It ends after as long again without an answer, or if sent bytes are not accepted for twice this
time.
"""

_WAITS, _OPEN, _ENDED = range(3)

CertificateCheck: TypeAlias = Callable[[bytes], Exception | None]


class StreamRefused(Error):
    """A refusal by the other side.

    Args:
        code: a code of :mod:`postroom.protocol.streams`.
        reason: for people.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamEvents(Protocol):
    """The object that is told what happens on a stream."""

    def accepted(self, answer: bytes) -> None:
        """Begin to write: the stream is open."""

    def received(self, frame: bytes) -> None:
        """Handle a frame that has come in."""

    def room(self) -> None:
        """Write again: there is room."""

    def ended(self, error: Exception) -> None:
        """Handle the end of the stream. Called once, and last."""


class NativeStream(asyncio.Protocol):
    """One stream that this side opens.

    Args:
        opening: the purpose of the stream.
        events: the object that is told.
        frame_bytes_max: a longer frame ends the stream.
        check: with TLS, called with the certificate of the other side, in DER, before anything is
            sent to it; returns why it is wrong, or ``None``.
    """

    def __init__(
        self,
        opening: Opening,
        events: StreamEvents,
        frame_bytes_max: int,
        check: CertificateCheck | None = None,
    ) -> None:
        self._opening = opening
        self._check = check
        self._events = events
        self._incoming = Incoming(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._state = _WAITS
        self._is_full = False
        self._error: Exception | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def writable(self) -> bool:
        """Return whether it is open, and the other side accepts what is written."""
        return self._state == _OPEN and not self._is_full

    def write(self, frames: Sequence[bytes]) -> None:
        """Send ``frames`` now. Call this only while it is writable."""
        if self._transport is None or self._transport.is_closing():
            return
        if len(frames) == 1 and len(frames[0]) > WRITE_BUFFER_BYTES:
            # Not joined first: that would copy it once more.
            self._transport.write(length_bytes(frames[0]))
            self._transport.write(frames[0])
        else:
            self._transport.write(b"".join([framed(frame) for frame in frames]))

    def refused(self, frame: bytes) -> None:
        """End the stream, since ``frame`` is a refusal in the middle of it.

        Raises:
            WireError: ``frame`` is no refusal.
        """
        match read_reply(frame):
            case StreamRefusal(code, reason):
                self._end(StreamRefused(code, reason))
            case _:
                raise WireError("an answer to nothing")

    def close(self, *, abort: bool = False) -> None:
        """Close it, after everything written; events are told nothing any more.

        Args:
            abort: whether written frames need not arrive.
        """
        self._state = _ENDED
        if self._transport is None:
            return
        if abort:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    # --- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the opening: TCP, and TLS, are there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        agreed = transport.get_extra_info("ssl_object")
        if self._state == _ENDED:
            transport.abort()
        elif agreed is not None and agreed.selected_alpn_protocol() is None:
            self._end(WireError("no native stream of this version of Postroom"))
        elif (fault := self._fault(agreed)) is not None:
            self._end(fault)
        else:
            transport.write(opening_bytes(self._opening))

    def _fault(self, tls: ssl.SSLObject | None) -> Exception | None:
        if tls is None or self._check is None:
            return None
        return self._check(tls.getpeercert(binary_form=True) or b"")

    def data_received(self, data: bytes) -> None:
        """Handle bytes that have come in."""
        try:
            for frame in self._incoming.feed(data):
                if self._state == _ENDED:
                    return
                if self._state == _WAITS:
                    self._on_reply(frame)
                else:
                    self._events.received(frame)
        except OtherVersion as error:
            self._end(VersionMismatch(f"the node speaks {error}"))
        except WireError as error:
            self._end(error)

    def eof_received(self) -> None:
        """Let the transport close: the other side has ended the stream."""

    def pause_writing(self) -> None:
        """Note that the other side is slow."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Write again, in the next round of the loop.

        asyncio ends a connection twice, and logs an error, if a write within this call finds it
        broken.
        """
        self._is_full = False
        asyncio.get_running_loop().call_soon(self._write_on)

    def _write_on(self) -> None:
        if self.writable:
            self._events.room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream."""
        if not self.gone.done():
            self.gone.set_result(None)
        self._end(self._why_lost(exc))

    def _on_reply(self, frame: bytes) -> None:
        match read_reply(frame):
            case StreamRefusal(code, reason):
                self._end(StreamRefused(code, reason))
            case Accepted(answer):
                self._state = _OPEN
                self._events.accepted(answer)

    def _why_lost(self, error: Exception | None) -> Exception:
        if self._state == _WAITS and not self._incoming.greeted:
            if isinstance(error, ssl.SSLError):
                return error
            assert self._transport is not None
            if self._transport.get_extra_info("ssl_object") is None:
                return Unavailable("the node hangs up before it has said anything")
            return HungUp("connection closed by the node")
        if error is not None:
            return Unavailable(f"the connection was lost: {error}")
        return Unavailable("the node has closed the stream")

    def _end(self, error: Exception) -> None:
        if self._state != _ENDED:
            self.close()
            self._events.ended(error)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``host:port``; an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def offering_native(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return ``context``, set to offer native streams."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    return context


async def dial(
    address: str, context: ssl.SSLContext | None, create: Callable[[], NativeStream]
) -> NativeStream:
    """Connect to ``address``, and begin the stream.

    Raises:
        OSError: nothing listens there, the address is not valid, or TLS fails (``ssl.SSLError``).
        TimeoutError: there is no answer in time.
    """
    loop = asyncio.get_running_loop()
    try:
        if is_unix(address):
            async with asyncio.timeout(CONNECT_SECONDS):
                _, stream = await loop.create_unix_connection(create, path_in(address))
            return stream
        host, port = host_and_port(address)
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, stream = await loop.create_connection(
                create, host, port,
                ssl=context, server_hostname=None if context is None else host,
            )  # fmt: skip
    except OSError:  # an error about a certificate is a ValueError as well
        raise
    except (OverflowError, ValueError) as error:  # for example, a part of a name is too long
        raise OSError(f"this can be no address: {error}") from error
    except RuntimeError as error:  # the system has no thread to look up the name
        raise OSError(str(error)) from error
    notice_silence(transport.get_extra_info("socket"), IDLE_SECONDS, 2 * IDLE_SECONDS)
    return stream


def why_not_connected(error: OSError | TimeoutError) -> str:
    """Return the reason in a few words, in small letters."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer"
    if isinstance(error, socket.gaierror) or not error.errno:
        said = error.strerror or str(error)  # asyncio tells each of several addresses
        refused = os.strerror(errno.ECONNREFUSED)
        return (refused if f"[Errno {errno.ECONNREFUSED}]" in said else said).lower()
    return os.strerror(error.errno).lower()  # asyncio has words of its own for it


def notice_silence(
    connection: socket.socket | None, silent_seconds: int, untaken_seconds: int
) -> None:
    """Have TCP end a connection whose other side is gone.

    Args:
        connection: a TCP connection; anything else is left alone.
        silent_seconds: until it is probed, and as long again until it is given up.
        untaken_seconds: how long sent bytes may wait to be accepted.
    """
    if connection is None or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    options = {
        "TCP_KEEPIDLE": silent_seconds, "TCP_KEEPINTVL": max(1, silent_seconds // 2),
        "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 1000 * untaken_seconds, "TCP_NODELAY": 1,
    }  # fmt: skip
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        option = getattr(socket, name, None)  # not every system has each of them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _AnswerEvents:
    """The events of a stream that is opened for its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def accepted(self, answer: bytes) -> None:
        if not self.answer.done():  # else the caller has gone
            self.answer.set_result(answer)

    def received(self, frame: bytes) -> None:
        """Ignore it: nothing more was asked."""

    def room(self) -> None:
        """Do nothing: there is no more to write."""

    def ended(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # the caller may have gone while it connected


async def ask(
    address: str,
    context: ssl.SSLContext | None,
    opening: Opening,
    answer_bytes_max: int,
    check: CertificateCheck | None = None,
) -> bytes:
    """Return the answer of the node at ``address`` to one question.

    ``check`` is that of a :class:`NativeStream`.

    Raises:
        OSError, TimeoutError: see :func:`dial`.
        Error, WireError: the stream has ended without an answer.
    """
    question = _AnswerEvents()
    stream = await dial(
        address, context, lambda: NativeStream(opening, question, answer_bytes_max, check)
    )
    try:
        return await question.answer
    finally:
        stream.close()
