"""The endpoint for scrapers: HTTP, in a thread with an event loop of its own.

A request costs the node one sample at most, and those that come together share one. Each
connection has one request, and a few seconds. There are ``METRICS_CONNECTIONS_MAX`` of them: the
oldest ends for one more. A scraper that never reads thus keeps no other one out.

There are no names of keys and no payloads in the answers, but names of queues and of kinds of
messages. It asks for no token: let it listen where only scrapers come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from postroom.errors import Error
from postroom.limits import (
    METRICS_CONNECTIONS_MAX,
    METRICS_REQUEST_BYTES_MAX,
    METRICS_SECONDS_MAX,
)
from postroom.metrics.sampling import KEPT_SECONDS
from postroom.server.cluster.listener import bound

_END: Final = b"\r\n\r\n"
_OPEN_METRICS: Final = "application/openmetrics-text"
_PATHS: Final = ("/metrics", "/")
_STOP_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class _Body(NamedTuple):
    """The text of a sample, and when it was begun."""

    begun: float
    text: asyncio.Task[bytes]


class Endpoint:
    """The endpoint of one node: a companion service of it.

    Args:
        address: the address to listen at, ``host:port``.
        collector: the collector of the node.
    """

    def __init__(self, address: str, collector: Collector) -> None:
        self._address = address
        self._collector = collector
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="postroom scrapes", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._listens: Future[None] = Future()
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._bodies: dict[str, _Body] = {}

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            Invalid: it cannot listen there.
        """
        self._sockets = bound(self._address)
        self._thread.start()
        await asyncio.wrap_future(self._listens)
        _log.info("metrics at http://%s/metrics", self._address)

    async def stop(self) -> None:
        """Stop to listen, and end all connections."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._over.set)
            await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    # --- in the thread

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            servers = [
                await asyncio.start_server(self._answer, sock=each, limit=METRICS_REQUEST_BYTES_MAX)
                for each in self._sockets
            ]
        except OSError as error:
            self._listens.set_exception(Error(f"no metrics at {self._address}: {error}"))
            return
        self._listens.set_result(None)
        await self._over.wait()
        for server in servers:
            server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        while len(self._open) >= METRICS_CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        writer.transport.set_write_buffer_limits(0)  # ``drain`` waits until all is sent
        try:
            async with asyncio.timeout(METRICS_SECONDS_MAX):
                request = await reader.readuntil(_END)
                writer.write(await self._response(request.decode("latin-1")))
                await writer.drain()
            writer.close()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # it is gone, too slow, or sends something else
        finally:
            self._open.pop(writer, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _response(self, request: str) -> bytes:
        line, *headers = request.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _head("405 Method Not Allowed", "text/plain", 0)
        if path not in _PATHS:
            return _head("404 Not Found", "text/plain", 0)
        is_open = _OPEN_METRICS in _accepted(headers)
        encode, content_type = choose_encoder(f"{_OPEN_METRICS};version=1.0.0" if is_open else "")
        body = await self._body(encode, content_type)
        head = _head("200 OK", content_type, len(body))
        return head if method == "HEAD" else head + body

    async def _body(self, encode: Callable[[Collector], bytes], content_type: str) -> bytes:
        """Return a new sample as text; requests that come meanwhile share it."""
        now = time.monotonic()
        body = self._bodies.get(content_type)
        if body is None or (body.text.done() and now > body.begun + KEPT_SECONDS):
            text = asyncio.create_task(asyncio.to_thread(encode, self._collector))
            self._bodies[content_type] = body = _Body(now, text)
        return await asyncio.shield(body.text)


def _accepted(headers: list[str]) -> str:
    """Return what a request accepts, by its headers."""
    named = (each.partition(":") for each in headers)
    return next((value.strip() for name, _, value in named if name.lower() == "accept"), "")


def _head(status: str, content_type: str, size: int) -> bytes:
    lines = (
        f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {size}",
        "Connection: close", "Cache-Control: no-store",
    )  # fmt: skip
    return "\r\n".join(lines).encode("latin-1") + _END
