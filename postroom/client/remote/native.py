"""The calling side of a native stream on asyncio: for clients, and for nodes that call others.

::

    dial ─▶ TCP, TLS ─▶ preamble, Opening ─▶ Accepted ─▶ frames both ways ─▶ ended
                │               │
                └── OtherProtocol: it speaks gRPC only                (once, with the reason)

It writes at once: what is sent leaves before the call returns, unless the other side does not take
it. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from postroom.client.remote.addresses import HungUp
from postroom.errors import Error, Unavailable, VersionMismatch
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    ALPN,
    Accepted,
    Incoming,
    Opening,
    OtherProtocol,
    OtherVersion,
    Refusal,
    framed,
    length_bytes,
    opening_bytes,
    read_reply,
)

CONNECT_SECONDS: Final = 5.0
"""For the connection and TLS; and as long again until the other side has said yes."""
CLOSE_SECONDS: Final = 1.0
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""What is written on before the other side takes it."""
IDLE_SECONDS: Final = 2
"""A connection on which nothing comes is probed after so long; as long again without an answer, or
without the other side's taking what was sent, ends it."""

_WAITS, _OPEN, _ENDED = range(3)

CertificateCheck: TypeAlias = Callable[[bytes], Exception | None]


class Turned(Error):
    """The other side refuses, with a code of :mod:`postroom.protocol.streams` and its reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Events(Protocol):
    """Who is told what happens on a stream."""

    def accepted(self, answer: bytes) -> None:
        """The stream is open: write."""

    def received(self, frame: bytes) -> None:
        """A frame has come in."""

    def room(self) -> None:
        """There is room to write again."""

    def ended(self, error: Exception) -> None:
        """The stream is over. Called once; nothing is after it."""


class Stream(asyncio.Protocol):
    """One stream that this side opens. See the module.

    Args:
        opening: what it is for.
        events: who is told.
        frame_bytes_max: a longer one ends the stream.
        check: with TLS, told the certificate of the other side, in DER, before anything is said to
            it; answers why that is not the right one.
    """

    def __init__(
        self,
        opening: Opening,
        events: Events,
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
        """Whether it is open, and the other side takes what is written."""
        return self._state == _OPEN and not self._is_full

    def write(self, frames: Sequence[bytes]) -> None:
        """Send ``frames`` now. To be called while it is writable."""
        if self._transport is None:
            return
        if len(frames) == 1 and len(frames[0]) > WRITE_BUFFER_BYTES:
            # Not put together first: that would copy it once more.
            self._transport.write(length_bytes(frames[0]))
            self._transport.write(frames[0])
        else:
            self._transport.write(b"".join([framed(frame) for frame in frames]))

    def refused(self, frame: bytes) -> None:
        """``frame``, which has come in, is a refusal in the middle of the stream.

        Raises:
            WireError: it is none.
        """
        match read_reply(frame):
            case Refusal(code, reason):
                self._end(Turned(code, reason))
            case _:
                raise WireError("an answer to nothing")

    def close(self, *, abort: bool = False) -> None:
        """Let go of it, after what was written; nobody is told any more.

        Args:
            abort: what was written need not arrive.
        """
        if self._state != _ENDED:
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
        """TCP, and TLS, are there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        agreed = transport.get_extra_info("ssl_object")
        if self._state == _ENDED:
            transport.abort()
        elif agreed is not None and agreed.selected_alpn_protocol() is None:
            self._end(OtherProtocol("it speaks gRPC only"))
        elif (fault := self._fault(agreed)) is not None:
            self._end(fault)
        else:
            transport.write(opening_bytes(self._opening))

    def _fault(self, tls: ssl.SSLObject | None) -> Exception | None:
        if tls is None or self._check is None:
            return None
        return self._check(tls.getpeercert(binary_form=True) or b"")

    def data_received(self, data: bytes) -> None:
        """Bytes have come in."""
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
        """The other side ends it."""

    def pause_writing(self) -> None:
        """The other side is slow."""
        self._is_full = True

    def resume_writing(self) -> None:
        """It goes on."""
        self._is_full = False
        if self._state == _OPEN:
            self._events.room()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if not self.gone.done():
            self.gone.set_result(None)
        self._end(self._why_lost(exc))

    # ---

    def _on_reply(self, frame: bytes) -> None:
        match read_reply(frame):
            case Refusal(code, reason):
                self._end(Turned(code, reason))
            case Accepted(answer):
                self._state = _OPEN
                self._events.accepted(answer)

    def _why_lost(self, error: Exception | None) -> Exception:
        if self._state == _WAITS and not self._incoming.greeted:
            assert self._transport is not None
            if isinstance(error, ssl.SSLError):
                return error
            if self._transport.get_extra_info("ssl_object") is None:
                return OtherProtocol("it hangs up before it has said what it speaks")
            return HungUp("connection closed by the node")
        if error is not None:
            return Unavailable(f"the connection was lost: {error}")
        return Unavailable("the node has closed the stream")

    def _end(self, error: Exception) -> None:
        if self._state != _ENDED:
            self.close()
            self._events.ended(error)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port``; an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def offering_native(context: ssl.SSLContext) -> ssl.SSLContext:
    """``context``, which says that native streams are spoken."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    return context


async def dial(
    address: str, context: ssl.SSLContext | None, create: Callable[[], Stream]
) -> Stream:
    """Connect to ``address``, and begin the stream.

    Raises:
        OSError: nobody is there, nobody can be, or there is no TLS connection (``ssl.SSLError``).
        TimeoutError: nobody answers in time.
    """
    loop = asyncio.get_running_loop()
    try:
        host, port = host_and_port(address)
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, stream = await loop.create_connection(
                create, host, port,
                ssl=context, server_hostname=None if context is None else host,
            )  # fmt: skip
    except OSError:  # what is wrong with a certificate is a ValueError as well
        raise
    except (OverflowError, ValueError) as error:  # a part of a name is too long, say
        raise OSError(f"this can be no address: {error}") from error
    except RuntimeError as error:  # the system has no thread to look up the name
        raise OSError(str(error)) from error
    notice_silence(transport.get_extra_info("socket"), IDLE_SECONDS, 2 * IDLE_SECONDS)
    return stream


def why_not_connected(error: OSError | TimeoutError) -> str:
    """In a few words, in small letters."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer"
    if isinstance(error, socket.gaierror) or not error.errno:
        said = error.strerror or str(error)  # of several addresses asyncio tells each
        refused = os.strerror(errno.ECONNREFUSED)
        return (refused if f"[Errno {errno.ECONNREFUSED}]" in said else said).lower()
    return os.strerror(error.errno).lower()  # asyncio has words of its own for it


def notice_silence(
    connection: socket.socket | None, silent_seconds: int, untaken_seconds: int
) -> None:
    """Have TCP end a connection whose other side is not there any more.

    Args:
        connection: of TCP; anything else is left alone.
        silent_seconds: until it is probed, and as long again until it is given up.
        untaken_seconds: how long what was sent may wait to be taken.
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


class _Question:
    """Events of a stream that is opened for its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def accepted(self, answer: bytes) -> None:
        if not self.answer.done():  # else nobody waits for it any more
            self.answer.set_result(answer)

    def received(self, frame: bytes) -> None:
        """Nothing more is asked."""

    def room(self) -> None:
        """Nothing more is said."""

    def ended(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever asks may have gone while it connected


async def ask(
    address: str,
    context: ssl.SSLContext | None,
    opening: Opening,
    answer_bytes_max: int,
    check: CertificateCheck | None = None,
) -> bytes:
    """The answer of the node at ``address`` to one question. ``check`` is as for a stream.

    Raises:
        OSError, TimeoutError, Error, WireError: there is none; as :func:`dial`, and as a stream
            ends.
    """
    question = _Question()
    stream = await dial(
        address, context, lambda: Stream(opening, question, answer_bytes_max, check)
    )
    try:
        return await question.answer
    finally:
        stream.close()
