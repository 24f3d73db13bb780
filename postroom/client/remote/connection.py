"""The router's shell on gRPC and asyncio: streams, timers, and nothing that decides.

One stream to each node, in frames of bytes (:mod:`.wire`). A writer takes the next frame when the
last one has gone, so whatever the application asks for meanwhile goes into one frame together; a
gRPC message costs Python some eighty microseconds on either side, a request in a frame a tenth of
that. No task and no future is made for a request but the one that its caller awaits.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroom.client.remote import grpc_environment, tls_files
from postroom.client.remote.addresses import HungUp
from postroom.errors import AccessDenied, Invalid, Unavailable, how_to_install
from postroom.protocol.frames import ACCEPTED, FRAME_BYTES_MAX

if TYPE_CHECKING:
    from postroom.client.remote.router import Router

METHOD: Final = "/postroom.v1.Store/Talk"
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # the router decides when to try again
    ("grpc.enable_retries", 0),
)
_WORDY: Final = "Failed to connect to remote host: "
"""What gRPC says before it comes to the reason, with the address that is told anyway."""
_OF_TLS: Final = ("handshake", "certificate", "hostname verification")
"""What gRPC speaks of, in small letters, if the two sides cannot agree on TLS."""
LINGER_SECONDS: Final = 0.02
"""gRPC tells of the end of what was cancelled a moment later; to a closed loop, with complaints."""

_log = logging.getLogger(__name__)


class TLS(NamedTuple):
    """How to recognise nodes, and be recognised by them. All are paths of PEM files.

    Attributes:
        ca: the certificate that has signed those of the nodes.
        certificate, key: this client's own, if the nodes want to see one.
    """

    ca: str | Path
    certificate: str | Path | None = None
    key: str | Path | None = None


def import_grpc() -> Any:
    """The module, which the embedded store does not need.

    Raises:
        Invalid: it is not installed, or cannot be used here.
    """
    global _used  # noqa: PLW0603 - told to the child of a fork
    if _forked:
        raise Invalid(
            "this process was forked from one that had connected, and gRPC does not work in such a "
            "child: connect after forking, or start processes with multiprocessing's spawn"
        )
    grpc_environment.prepare()
    try:
        import grpc  # noqa: PLC0415 - only who connects needs it
        import grpc.aio  # noqa: PLC0415 - only who connects needs it
    except ImportError as error:
        raise Invalid(
            f"connecting to a store needs gRPC, which is not installed: {how_to_install('server')}"
        ) from error
    _used = True
    return grpc


_used = _forked = False


def _after_fork() -> None:
    global _forked  # noqa: PLW0603 - of this process
    _forked = _used


os.register_at_fork(after_in_child=_after_fork)


def channel_credentials(tls: TLS) -> Any:
    """For gRPC.

    Raises:
        Invalid: a file cannot be used, or one of the pair is missing.
    """
    if (tls.certificate is None) != (tls.key is None):
        raise Invalid("TLS takes certificate and key together, or neither")
    fault = tls_files.fault(tls.ca, tls.certificate, tls.key)
    if fault is not None:
        raise Invalid(f"{fault}; nothing was sent: give the right PEM files for TLS")
    return import_grpc().ssl_channel_credentials(
        _content(tls.ca), _content(tls.key), _content(tls.certificate)
    )


def _content(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _authorization(token: str | None) -> tuple[tuple[str, str], ...]:
    if token is None:
        return ()
    if not (token.isascii() and token.isprintable()):
        raise Invalid(
            "the token has characters that are not printable ASCII, and no node can accept it; "
            "nothing was sent: give it as it stands in the nodes' file of tokens"
        )
    return (("authorization", f"Bearer {token}"),)


class Streams:
    """The router's port (:class:`postroom.client.remote.calls.Port`). See the module.

    Args:
        tls: ``None``: without.
        token: sent along with each stream; ``None``: none.
    """

    router: Router

    def __init__(self, tls: TLS | None, token: str | None) -> None:
        self._grpc = import_grpc()
        self._credentials = None if tls is None else channel_credentials(tls)
        self._metadata = _authorization(token)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, asyncio.Event] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # --- what the router asks

    def open(self, link: int, address: str) -> None:
        """A stream to ``address``."""
        self._wanted[link] = asyncio.Event()
        self._wanted[link].set()
        self._tasks[link] = self._loop.create_task(self._run(link, address))

    def output(self, link: int) -> None:
        """There is something to write."""
        wanted = self._wanted.get(link)
        if wanted is not None:
            wanted.set()

    def close(self, link: int) -> None:
        """The stream is not used any more."""
        task = self._tasks.pop(link, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def alarm(self, when: float) -> None:
        """The router is called at ``when``."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.router.tick()

    async def closed(self) -> None:
        """Wait until all streams that were closed are gone."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.sleep(LINGER_SECONDS)

    # --- a stream

    async def _run(self, link: int, address: str) -> None:
        reason: Exception | None = None
        try:
            reason = await self._converse(link, address)
        except asyncio.CancelledError:  # closed by the router, which knows
            raise
        except Exception as error:
            _log.exception("the stream to %s ended", address)
            reason = Unavailable(f"the stream failed: {error}")
        finally:
            self._wanted.pop(link, None)
            if self._tasks.pop(link, None) is not None:
                self.router.disconnected(link, reason)

    async def _converse(self, link: int, address: str) -> Exception:
        aio = self._grpc.aio
        async with self._channel(address) as channel:
            stream = channel.stream_stream(METHOD)(metadata=self._metadata)
            writer = self._loop.create_task(self._write(link, stream))
            try:
                while (frame := await stream.read()) is not aio.EOF:
                    self.router.received(link, frame)
            except aio.AioRpcError as error:
                return self._reason(error)
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
                stream.cancel()
        return Unavailable("the node has closed the stream")

    def _channel(self, address: str) -> Any:
        if self._credentials is None:
            return self._grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return self._grpc.aio.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)

    async def _write(self, link: int, stream: Any) -> None:
        wanted, take = self._wanted[link], self.router.take
        if ACCEPTED not in dict(await stream.initial_metadata()):
            return  # who reads learns why
        while True:
            await wanted.wait()
            wanted.clear()
            while (frame := take(link)) is not None:
                await stream.write(frame)

    def _reason(self, error: Any) -> Exception:
        code, said = error.code(), error.details() or "no reason given"
        denials = (self._grpc.StatusCode.UNAUTHENTICATED, self._grpc.StatusCode.PERMISSION_DENIED)
        if code in denials:
            return AccessDenied(
                f"{said}: give what it accepts, connect(token=...) or TLS(certificate=...)"
            )
        if any(word in said.lower() for word in _OF_TLS):
            return AccessDenied(
                f"no TLS connection ({said}): check that TLS(ca=...) has signed the node's "
                "certificate, that it names this address, and that TLS(certificate=...) is one "
                "that the node accepts"
            )
        if "connect" in said and "closed" in said:
            return HungUp(said)
        return Unavailable(said.rpartition(_WORDY)[2])
