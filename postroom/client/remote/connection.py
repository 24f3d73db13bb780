"""The router's shell on asyncio: streams, timers, and no decisions.

::

    router ─ open, output ─▶ Streams ─▶ _OpenStream ─▶ NativeStream ─▶ node
       ▲                                     │
       └────────── frames, the end ──────────┘

There is one stream to each node, in frames of bytes (:mod:`postroom.protocol.frames`), over TCP
(:mod:`.native`). The router's output is taken after everything else that happens now. All requests
that the application makes meanwhile therefore go into one frame. No task and no future is made for
a request but the one that its caller awaits.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.client.remote.native import (
    NativeStream,
    StreamRefused,
    dial,
    offering_native,
    why_not_connected,
)
from postroom.client.remote.tls_files import TLS, check_tls, has_expired
from postroom.client.routing.search import HungUp
from postroom.errors import AccessDenied, Invalid, Unavailable
from postroom.kv.clock import SystemClock
from postroom.limits import FRAME_BYTES_MAX
from postroom.log_once import shown
from postroom.protocol.failures import WireError
from postroom.protocol.streams import DENIED, TALK, OnBehalf, Opening

if TYPE_CHECKING:
    from postroom.client.routing.router import Router

CLOSED_SECONDS: Final = 2.0


def _context(tls: TLS | None) -> ssl.SSLContext | None:
    """Return the TLS context of native streams; ``None``: without TLS."""
    if tls is None:
        return None
    check_tls(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return offering_native(context)


def check_token(token: str | None) -> None:
    """Check that a node could accept a token.

    Raises:
        Invalid: no node could.
    """
    if token is not None and not (token.isascii() and token.isprintable()):
        raise Invalid(
            "the token has characters that are not printable ASCII, and no node can accept it; "
            "nothing was sent: give it as it stands in the nodes' file of tokens"
        )


class Streams:
    """The router's port (:class:`postroom.client.routing.calls.Port`) on asyncio.

    Args:
        tls: the files for TLS; ``None``: without TLS.
        token: sent along with each stream; ``None``: none.
        on_behalf: the client for which this one talks; ``None``: itself.
    """

    router: Router

    def __init__(
        self, tls: TLS | None, token: str | None, on_behalf: OnBehalf | None = None
    ) -> None:
        check_token(token)
        self.opening = Opening(
            TALK, b"" if on_behalf is None else msgspec.msgpack.encode(on_behalf), token
        )
        self.context = _context(tls)
        self.loop = asyncio.get_running_loop()
        self._tls = tls
        self.token = token
        self._links: dict[int, _OpenStream] = {}
        self._ending: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # --- calls of the router

    def open(self, link: int, address: str) -> None:
        """Open a stream to ``address``."""
        self._links[link] = _OpenStream(self, link, address)

    def output(self, link: int) -> None:
        """Write frames soon."""
        known = self._links.get(link)
        if known is not None:
            known.output()

    def close(self, link: int) -> None:
        """Close the stream, which is not used any more."""
        known = self._links.pop(link, None)
        if known is not None:
            known.close()

    def alarm(self, when: float) -> None:
        """Call the router at ``when``."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.router.tick()

    async def closed(self) -> None:
        """Wait until all streams that were closed are gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSED_SECONDS)
        await asyncio.sleep(0)  # a socket is closed a turn later

    # --- calls of links

    def await_end(self, future: asyncio.Future[Any]) -> None:
        """Have ``closed`` wait for ``future``."""
        self._ending.add(future)
        future.add_done_callback(self._ending.discard)

    def ended(self, link: int, reason: Exception) -> None:
        """Tell the router that a stream has ended by itself."""
        if self._links.pop(link, None) is not None:
            self.router.disconnected(link, self._own_fault(reason) or reason)

    def _own_fault(self, reason: Exception) -> Exception | None:
        """Return the error of an expired own certificate: nodes do not say that they refuse it."""
        own = None if self._tls is None else self._tls.certificate
        if own is None or not isinstance(reason, HungUp | AccessDenied):
            return None
        expiry = has_expired(own, SystemClock().wall_milliseconds() / 1000)
        if expiry is None:
            return None
        return AccessDenied(
            f"this client's certificate, {own}, expired on {expiry:%Y-%m-%d at %H:%M} UTC, and "
            "nodes refuse it; nothing was done: renew it"
        )


class _OpenStream:
    """One stream and its opening: :class:`.native.StreamEvents`."""

    def __init__(self, streams: Streams, number: int, address: str) -> None:
        self._streams = streams
        self._number = number
        self._address = address
        self._stream: NativeStream | None = None
        self._is_told = False
        self._task = streams.loop.create_task(self._open())

    # --- calls of the router

    def output(self) -> None:
        """Write frames after everything else that happens now."""
        if not self._is_told:
            self._is_told = True
            self._streams.loop.call_soon(self._write)

    def close(self) -> None:
        """Close the stream, which is not used any more."""
        if not self._task.done():
            self._task.cancel()
            self._streams.await_end(self._task)
        if self._stream is not None:
            self._stream.close()
            self._streams.await_end(self._stream.gone)

    def _write(self) -> None:
        self._is_told = False
        stream, take, number = self._stream, self._streams.router.take, self._number
        while stream is not None and stream.writable and (frame := take(number)) is not None:
            stream.write((frame,))

    # --- calls of the stream

    def accepted(self, answer: bytes) -> None:
        """Write, since the node has let this client in."""
        del answer
        self._write()

    def received(self, frame: bytes) -> None:
        """Hand a frame to the router."""
        self._streams.router.received(self._number, frame)

    def room(self) -> None:
        """Write again."""
        self._write()

    def ended(self, error: Exception) -> None:
        """Tell the router that the stream has ended by itself."""
        if self._stream is not None:
            self._streams.await_end(self._stream.gone)
        self._streams.ended(self._number, _reason(error, self._address))

    # --- opening

    async def _open(self) -> None:
        try:
            await dial(self._address, self._streams.context, self._create)
        except OSError as error:  # TimeoutError is one
            self._streams.ended(self._number, _reason(error, self._address))

    def _create(self) -> NativeStream:
        self._stream = NativeStream(self._streams.opening, self, FRAME_BYTES_MAX)
        return self._stream


def _reason(error: Exception, address: str) -> Exception:
    """Return the error for the router."""
    match error:
        case StreamRefused(code=code) if code == DENIED:
            return AccessDenied(
                f"{address} refuses: {shown(error)}: give what it accepts, connect(tls=...), "
                "connect(token=...) or TLS(certificate=...)"
            )
        case ssl.SSLError():
            return AccessDenied(_no_tls(address, why_not_connected(error)))
        case HungUp():  # over TLS; a node that goes away just then hangs up, too
            return HungUp(_no_tls(address, str(error)))
        case OSError():
            return Unavailable(why_not_connected(error))
        case StreamRefused() | WireError():
            return Unavailable(shown(error))
    return error


def _no_tls(address: str, said: str) -> str:
    if "certificate has expired" in said:
        return f"the certificate of {address}, or of its authority, has expired: renew it there"
    return (
        f"no TLS connection with {address} ({said}): check that TLS(ca=...) has signed the node's "
        "certificate, that it names this address, and that TLS(certificate=...) is one that the "
        "node accepts"
    )
