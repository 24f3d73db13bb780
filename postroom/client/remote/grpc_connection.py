"""A client's stream over gRPC: to nodes of the first release, which speak nothing else.

It is imported only when such a node is met; clients otherwise use :mod:`.native`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.client.remote import grpc_environment
from postroom.client.remote.addresses import HungUp
from postroom.errors import AccessDenied, Invalid, Unavailable, how_to_install
from postroom.limits import FRAME_BYTES_MAX
from postroom.protocol.frames import ACCEPTED

if TYPE_CHECKING:
    from postroom.client.remote.connection import TLS

METHOD: Final = "/postroom.v1.Store/Talk"
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # the router decides when to try again
    ("grpc.enable_retries", 0),
)
_WORDY: Final = "Failed to connect to remote host: "
"""The words of gRPC before a reason; the address in them is told anyway."""
_OF_TLS: Final = ("handshake", "certificate", "hostname verification")
"""Words, in small letters, in gRPC's messages about failures of TLS."""
LINGER_SECONDS: Final = 0.02
"""The time after which gRPC reports the end of cancelled calls; a closed loop would complain."""


def import_grpc() -> Any:
    """Return the module gRPC, which only nodes of the first release make necessary.

    Raises:
        Invalid: it is not installed, or cannot be used here.
    """
    global _used  # noqa: PLW0603 - told to the child of a fork
    if _forked:
        raise Invalid(
            "this process was forked from one that had connected to a node of the first release, "
            "and gRPC does not work in such a child: connect after forking, or start processes "
            "with multiprocessing's spawn"
        )
    grpc_environment.prepare()
    try:
        import grpc  # noqa: PLC0415 - needed only for such a node
        import grpc.aio  # noqa: PLC0415 - needed only for such a node
    except ImportError as error:
        raise Invalid(
            "the node speaks gRPC only, as the first release did, and gRPC is not installed: "
            f"upgrade the node, or {how_to_install('server')}"
        ) from error
    _used = True
    return grpc


_used = _forked = False


def _after_fork() -> None:
    global _forked  # noqa: PLW0603 - of this process
    _forked = _used


os.register_at_fork(after_in_child=_after_fork)


class GrpcStreams:
    """The streams over gRPC.

    Args:
        tls: the files for TLS; ``None``: without TLS.
        token: sent along with each stream; ``None``: none.
    """

    def __init__(self, tls: TLS | None, token: str | None) -> None:
        self._grpc = import_grpc()
        self._tls = tls
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def converse(
        self,
        address: str,
        wanted: asyncio.Event,
        take: Callable[[], bytes | None],
        received: Callable[[bytes], None],
    ) -> Exception:
        """Open a stream; when it has ended, return why.

        Args:
            address: the address of the node.
            wanted: set when there may be something to send.
            take: returns the next frame to send; ``None``: nothing.
            received: called with each frame that comes in.
        """
        aio = self._grpc.aio
        async with self._channel(address) as channel:
            stream = channel.stream_stream(METHOD)(metadata=self._metadata)
            writer = asyncio.create_task(_write(stream, wanted, take))
            try:
                while (frame := await stream.read()) is not aio.EOF:
                    received(frame)
            except aio.AioRpcError as error:
                return self._reason(error)
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
                stream.cancel()
        return Unavailable("the node has closed the stream")

    def _channel(self, address: str) -> Any:
        if self._tls is None:
            return self._grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        credentials = self._grpc.ssl_channel_credentials(
            _content(self._tls.ca), _content(self._tls.key), _content(self._tls.certificate)
        )
        return self._grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)

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


async def _write(stream: Any, wanted: asyncio.Event, take: Callable[[], bytes | None]) -> None:
    if ACCEPTED not in dict(await stream.initial_metadata()):
        return  # the reader learns why
    while True:
        await wanted.wait()
        wanted.clear()
        while (frame := take()) is not None:
            await stream.write(frame)


def _content(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
