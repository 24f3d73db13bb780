"""The gRPC service that nodes offer each other: who are you, let me in, and the stream of frames.

========  =================  =======================================================================
method    kind               what goes over it, as MessagePack
========  =================  =======================================================================
Hello     unary              nothing; answered with ``formation.Hello``
Admit     unary              ``Application``; answered with ``Verdict``
Stream    client streaming   ``peers.Introduction``, then lists of frames; never answered
========  =================  =======================================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import msgspec
from grpc import aio

from postroom.ranges.nodes import Address, Admission, StoreId
from postroom.server.cluster.formation import Hello
from postroom.server.cluster.peers import ACCEPTED, SERVICE, Peers, Refused
from postroom.server.cluster.security import Security
from postroom.server.cluster.spells import Spells

CLOSE_SECONDS: Final = 1.0

HELLO: Final = f"/{SERVICE}/Hello"
ADMIT: Final = f"/{SERVICE}/Admit"

_log = logging.getLogger(__name__)


class Application(msgspec.Struct, frozen=True, array_like=True):
    """A store wants to be a node of the cluster; or is node ``node_id``, and has moved."""

    store_id: StoreId
    address: Address
    node_id: int = 0


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The answer: admitted; or who else is to be asked; or why not.

    Attributes:
        admission: what it is from now on.
        elsewhere: the address of the node that leads, if that is another one.
        refusal: why not, for good.
    """

    admission: Admission | None = None
    elsewhere: str = ""
    refusal: str = ""


encode = msgspec.msgpack.Encoder().encode
applications = msgspec.msgpack.Decoder(Application)
verdicts = msgspec.msgpack.Decoder(Verdict)
hellos = msgspec.msgpack.Decoder(Hello)


class NodesService:
    """See the module.

    Attributes:
        peers: the transport of the node, once there is one.
        admit: has the cluster admit a store, once there is a node.
    """

    def __init__(self, security: Security, hello: Callable[[], Hello]) -> None:
        self.peers: Peers | None = None
        self.admit: Callable[[Application], Awaitable[Verdict]] | None = None
        self._security = security
        self._hello = hello
        self._streams: set[asyncio.Task[Any]] = set()
        self._refusals = Spells()

    @property
    def hears_others(self) -> bool:
        """Whether any other node has a stream to this one."""
        return bool(self._streams)

    async def close(self) -> None:
        """End the streams that have come in, in good order: gRPC's own way is to log them."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams, timeout=CLOSE_SECONDS)

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        methods = {
            "Hello": unary(self._on_hello),
            "Admit": unary(self._on_admit),
            "Stream": stream(self._on_stream),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _on_hello(self, request: bytes, context: Any) -> bytes:
        del request, context
        return encode(self._hello())

    async def _on_admit(self, request: bytes, context: Any) -> bytes:
        try:
            application = applications.decode(request)
        except (msgspec.DecodeError, ValueError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed ({error})")
            raise
        await self._security.check_node(context, application.address)
        if self.admit is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is in no cluster yet")
            return b""
        return encode(await self.admit(application))

    async def _on_stream(self, messages: Any, context: Any) -> bytes:
        del messages  # gRPC's own iterator costs a task a message
        peers = self.peers
        if peers is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is in no cluster yet")
            return b""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await self._read_frames(peers, context)
        except asyncio.CancelledError:
            _log.debug("the stream of %s has ended", context.peer())
        finally:
            self._streams.discard(task)
        return b""

    async def _read_frames(self, peers: Peers, context: Any) -> None:
        sender = f"the node at {context.peer()}"
        try:
            introduction = await context.read()
            if introduction is aio.EOF:
                return
            said = peers.sender_of(introduction)
            await self._security.check_node(context, said.address)
            sender = f"node {said.sender}"
            peers.met(said.store_id, said.address)
            await context.send_initial_metadata(((ACCEPTED, "1"),))
            while (message := await context.read()) is not aio.EOF:
                await peers.take(said.sender, message)
            # Whoever has sent more at once than is allowed learns it from gRPC; this side does not.
            _log.info("lost the connection from %s", sender)
        except Refused as refused:
            self._log_refusal(sender, context.peer(), refused)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))

    def _log_refusal(self, sender: str, peer: str, refused: Refused) -> None:
        """Once: whoever is refused comes again."""
        host, now = peer.rpartition(":")[0], asyncio.get_running_loop().time()
        is_news = self._refusals.begins((host, str(refused)), now)
        level = logging.WARNING if is_news else logging.DEBUG
        _log.log(level, "the stream of %s is closed: %s", sender, refused)
