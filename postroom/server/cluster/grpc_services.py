"""The gRPC door: for clients in other languages, for the first release, and for health checks.

=====================  ===========  ==================  ============================================
service                method       kind                contents, as raw bytes
=====================  ===========  ==================  ============================================
``postroom.v1.Store``  Talk         both ways           frames of :mod:`postroom.protocol.frames`
``postroom.v1.Nodes``  Hello        unary               as in :mod:`.nodes_service`
                       Admit        unary
                       Stream       client streaming    ``Introduction``, then lists of frames
=====================  ===========  ==================  ============================================

This is a shell: :mod:`.security`, :mod:`.nodes_service` and :mod:`.sessions` decide about callers
and their requests, for this door and for native streams in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any, Final

import grpc
import msgspec
from grpc import aio
from grpc_health.v1 import health

from postroom.errors import AccessDenied, Invalid, Unavailable
from postroom.limits import FRAMES_PER_MESSAGE_MAX, HELLO_SECONDS
from postroom.protocol.frames import ACCEPTED
from postroom.protocol.streams import DENIED, MALFORMED, REFUSED, UNAVAILABLE
from postroom.server.cluster.introductions import Refused
from postroom.server.cluster.node_keys import fingerprint_of_pem
from postroom.server.cluster.nodes_service import Caller, NodesService
from postroom.server.cluster.peers import Arrival
from postroom.server.cluster.security import Security
from postroom.server.cluster.session import LAST_WORDS_SECONDS, Session
from postroom.server.cluster.sessions import Sessions

STORE_SERVICE: Final = "postroom.v1.Store"
NODES_SERVICE: Final = "postroom.v1.Nodes"
AUTHORIZATION: Final = "authorization"
BEARER: Final = "Bearer "
CLOSE_SECONDS: Final = 1.0

_STATUS: Final = {
    UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    DENIED: grpc.StatusCode.PERMISSION_DENIED,
    REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}

_frames = msgspec.msgpack.Decoder(
    Annotated[list[bytes], msgspec.Meta(max_length=FRAMES_PER_MESSAGE_MAX)]
)
_log = logging.getLogger(__name__)


class Doorkeeper:
    """The knowledge of the other side of a gRPC connection, and whether it has made a call.

    Connections come in through a relay (:mod:`.grpc_server`), and gRPC does not know their
    addresses. Without a relay gRPC's own word counts.
    """

    def where(self, peer: str) -> str:
        """Return the address of gRPC's ``peer``."""
        return peer

    def said_hello(self, peer: str) -> None:
        """Note that ``peer`` has made a call, unlike connections that stay silent."""


def caller_of(context: Any, doorkeeper: Doorkeeper) -> Caller:
    """Return the caller, as TLS has proved it."""
    shown = context.auth_context()
    names = [*shown.get("peer_dns", []), *shown.get("peer_ip", [])]
    common = [*shown.get("x509_common_name", []), b""][0]
    return Caller(
        doorkeeper.where(context.peer()),
        tuple(name.decode(errors="replace") for name in names),
        common.decode(errors="replace"),
        _key_of(shown),
    )


def _key_of(shown: dict[str, list[bytes]]) -> bytes:
    pem = [*shown.get("x509_pem_cert", []), b""][0]
    try:
        return fingerprint_of_pem(pem.decode("latin-1")) if pem else b""
    except Invalid:
        return b""


def token_of(context: Any) -> str | None:
    """Return the token that a client shows; ``None``: none; empty: in a wrong form."""
    shown = [value for name, value in context.invocation_metadata() if name == AUTHORIZATION]
    if not shown:
        return None
    said = str(shown[0])
    return said[len(BEARER) :] if said.startswith(BEARER) else ""


def server_credentials(security: Security) -> grpc.ServerCredentials | None:
    """Return the credentials for a port; ``None``: insecure."""
    if security.pem is None:
        return None
    ca, certificate, key = security.pem
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=True
    )


class HealthService(health.aio.HealthServicer):  # type: ignore[misc]  # gRPC is not typed
    """The standard health service, by which a connection says hello as well."""

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        super().__init__()
        self._doorkeeper = doorkeeper

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Return whether a service serves."""
        self._doorkeeper.said_hello(context.peer())
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """Send whether a service serves, whenever that changes."""
        self._doorkeeper.said_hello(context.peer())
        await super().Watch(request, context)


class GrpcNodes:
    """The service for nodes of the first release.

    Args:
        service: decides about calls.
        doorkeeper: knows the callers.
    """

    def __init__(self, service: NodesService, doorkeeper: Doorkeeper) -> None:
        self._service = service
        self._doorkeeper = doorkeeper
        self._streams: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End the streams that have come in, in good order: gRPC's own way is to log them."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams, timeout=CLOSE_SECONDS)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        methods = {
            "Hello": unary(self._on_hello),
            "Admit": unary(self._on_admit),
            "Stream": stream(self._on_stream),
        }
        return grpc.method_handlers_generic_handler(NODES_SERVICE, methods)

    async def _on_hello(self, request: bytes, context: Any) -> bytes:
        del request
        self._doorkeeper.said_hello(context.peer())
        return self._service.say_hello()

    async def _on_admit(self, request: bytes, context: Any) -> bytes:
        self._doorkeeper.said_hello(context.peer())
        try:
            return await self._service.judge(caller_of(context, self._doorkeeper), request)
        except Refused as refused:
            await context.abort(_STATUS[refused.code], str(refused))
            raise

    async def _on_stream(self, messages: Any, context: Any) -> bytes:
        del messages  # gRPC's own iterator costs a task a message
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await self._read_frames(context, task)
        except asyncio.CancelledError:
            _log.debug("the stream of %s has ended", context.peer())
        finally:
            self._streams.discard(task)
        return b""

    async def _read_frames(self, context: Any, task: asyncio.Task[Any]) -> None:
        caller, arrival = caller_of(context, self._doorkeeper), None
        sender = f"the node at {caller.where}"
        read_on = asyncio.Event()

        def end() -> None:
            task.cancel()

        try:
            async with asyncio.timeout(HELLO_SECONDS):
                introduction = await context.read()
            if introduction is aio.EOF:
                return
            arrival = self._service.enter(caller, introduction, end, read_on.set)
            self._doorkeeper.said_hello(context.peer())
            sender = f"node {arrival.sender}"
            await context.send_initial_metadata(((ACCEPTED, "1"),))
            while (message := await context.read()) is not aio.EOF:
                read_on.clear()
                if not _take(arrival, message):
                    await read_on.wait()
            # gRPC tells the sender of too large a message; this side does not learn it.
            _log.info("lost the connection from %s", sender)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it does not say who it is")
        except Refused as refused:
            self._service.closed(sender, caller, refused)
            await context.abort(_STATUS[refused.code], str(refused))
        finally:
            if arrival is not None:
                arrival.close()


def _take(arrival: Arrival, message: bytes) -> bool:
    try:
        frames = _frames.decode(message)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(f"malformed frames ({error})") from error
    return arrival.received(frames)


class GrpcStore(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC is not typed
    """The service for clients, which begins to serve once there is a node.

    Args:
        security: decides which clients may come in.
        doorkeeper: knows the callers.

    Attributes:
        sessions: the node's; ``None``: there is no node yet.
    """

    def __init__(self, security: Security, doorkeeper: Doorkeeper) -> None:
        self.sessions: Sessions | None = None
        self._security = security
        self._doorkeeper = doorkeeper
        talk = grpc.stream_stream_rpc_method_handler(self._talk)
        self._handler = grpc.method_handlers_generic_handler(STORE_SERVICE, {"Talk": talk})

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method, if it is one of this service."""
        return self._handler.service(handler_call_details)

    async def _talk(self, _: Any, context: Any) -> None:
        if self.sessions is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is in no cluster yet")
            return
        caller = caller_of(context, self._doorkeeper)
        try:
            access = self._security.access_of_client(token_of(context), caller.common_name)
        except AccessDenied as denied:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(denied))
            return
        await context.send_initial_metadata(((ACCEPTED, "1"),))
        peer = context.peer()
        wanted, taken = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            wanted.set()
            if session.ended:  # its last frames are not counted any more
                loop.call_later(LAST_WORDS_SECONDS, writer.cancel)

        session = self.sessions.open(self._doorkeeper.where(peer), tell, access)
        reader = loop.create_task(
            _read(session, context, taken, lambda: self._doorkeeper.said_hello(peer))
        )
        writer = loop.create_task(_write(session, context, wanted, taken))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and session.ended:
                wanted.set()
                await asyncio.wait({writer})  # until the last words are sent
        finally:
            session.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(
    session: Session, context: Any, taken: asyncio.Event, said_hello: Callable[[], None]
) -> None:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            frame = await context.read()
    except TimeoutError:
        session.end(Unavailable("nothing was said; nothing was done"))
        return
    if frame is not aio.EOF:
        said_hello()
    while frame is not aio.EOF:
        session.received(frame)
        while not session.reading:
            if session.ended:
                return
            taken.clear()
            await taken.wait()
        frame = await context.read()


async def _write(
    session: Session, context: Any, wanted: asyncio.Event, taken: asyncio.Event
) -> None:
    while True:
        while (frame := session.take()) is not None:
            await context.write(frame)
            taken.set()
        taken.set()  # there may be no output, but room to read waiting frames
        if session.ended:
            return
        await wanted.wait()
        wanted.clear()


__all__ = ["GrpcNodes", "GrpcStore", "HealthService"]
