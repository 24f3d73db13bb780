"""The gRPC service for clients, ``postroom.v1.Store``: a shell around :mod:`.sessions`.

One method, ``Talk``: a stream of frames both ways. What the frames hold is the affair of
:mod:`postroom.protocol.frames`; gRPC sees bytes. A reader feeds the session as long as its
client takes what it is answered; a writer sends what has gathered since its last frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from postroom.protocol.frames import ACCEPTED, FRAME_BYTES_MAX
from postroom.server.cluster.sessions import Session, Sessions

SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
)
"""What a gRPC server with this service needs: frames are larger than gRPC expects."""
SERVICE: Final = "postroom.v1.Store"

Authorize: TypeAlias = Callable[[Any], Awaitable[None]]
"""Is given the gRPC context of a new stream; aborts it, if its client may not come in."""


class StoreService:
    """See the module.

    Args:
        sessions: of the node.
        authorize: who may come in; ``None``: everybody.
    """

    def __init__(self, sessions: Sessions, authorize: Authorize | None = None) -> None:
        self._sessions = sessions
        self._authorize = authorize

    def handler(self) -> grpc.GenericRpcHandler:
        """For ``server.add_generic_rpc_handlers``."""
        talk = grpc.stream_stream_rpc_method_handler(self._talk)
        return grpc.method_handlers_generic_handler(SERVICE, {"Talk": talk})

    async def _talk(self, _: Any, context: Any) -> None:
        if self._authorize is not None:
            await self._authorize(context)
        await context.send_initial_metadata(((ACCEPTED, "1"),))
        wanted, taken = asyncio.Event(), asyncio.Event()
        session = self._sessions.open(context.peer(), wanted.set)
        loop = asyncio.get_running_loop()
        reader = loop.create_task(_read(session, context, taken))
        writer = loop.create_task(_write(session, context, wanted, taken))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and session.ended:
                wanted.set()
                await writer  # the last words
        finally:
            session.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(session: Session, context: Any, taken: asyncio.Event) -> None:
    while not session.ended:
        if not session.reading:
            taken.clear()
            await taken.wait()
            continue
        frame = await context.read()
        if frame is grpc.aio.EOF:
            return
        session.received(frame)


async def _write(
    session: Session, context: Any, wanted: asyncio.Event, taken: asyncio.Event
) -> None:
    while True:
        while (frame := session.take()) is not None:
            await context.write(frame)
            taken.set()
        if session.ended:
            return
        await wanted.wait()
        wanted.clear()
