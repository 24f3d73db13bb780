"""Gateways on loopback, for clients in the same process.

All of them run on one event loop, in another thread, which is never closed: gRPC would complain.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

import postroom.aio
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.limits import Limits
from postroom.gateway.listener import Gateway, Settings
from postroom.gateway.service import DEFINITION
from postroom.gateway.values import DETAILS_KEY

SECONDS_MAX: Final = 120.0
SOON_SECONDS: Final = 30.0


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        waiting = asyncio.wait_for(test(*args, **kwargs), SECONDS_MAX)
        asyncio.run_coroutine_threadsafe(waiting, _loop()).result()

    return run


class Stub:
    """A client of the service, made from its definition.

    Args:
        channel: a channel of gRPC, of ``grpc.aio`` or not.
    """

    def __init__(self, channel: Any) -> None:
        for method in DEFINITION.methods:
            requests = "stream" if method.client_streaming else "unary"
            responses = "stream" if method.server_streaming else "unary"
            call = getattr(channel, f"{requests}_{responses}")(
                f"/{DEFINITION.full_name}/{method.name}",
                request_serializer=getattr(pb, method.input_type.name).SerializeToString,
                response_deserializer=getattr(pb, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)


class Started:
    """A gateway that was started, its store, and a client of it."""

    def __init__(self, gateway: Gateway, db: postroom.aio.Database, channel: Any) -> None:
        self.gateway = gateway
        self.db = db
        self.channel = channel
        self.stub: Any = Stub(channel)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    @property
    def total(self) -> Any:
        """Return the material of all clients."""
        return self.gateway.service.admission.total


@asynccontextmanager
async def started(
    settings: Settings | None = None, *, limits: Limits | None = None, db: Any = None
) -> AsyncIterator[Started]:
    """Start a gateway; of a store in memory, if none is given."""
    own = await postroom.aio.open(":memory:") if db is None else db

    kept = copy.copy(own)
    kept._close = _nothing  # a gateway closes its connections, and the store is the test's

    async def connect(_: object) -> postroom.aio.Database:
        return kept

    made = settings or Settings("127.0.0.1:0", None, is_open=True, limits=limits or Limits())
    gateway = Gateway(made, connect)
    await gateway.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
    try:
        yield Started(gateway, own, channel)
    finally:
        await channel.close()
        await gateway.stop()
        if db is None:
            await own.close()


async def _nothing() -> None:
    pass


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(SOON_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


class Failed:
    """The failure of a call: its code, its message, and its detail, if it has one."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.message = error.details()
        packed = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
        self.detail: pb.ErrorDetail | None = None
        if packed is not None:
            status = pb.RpcStatus.FromString(packed)
            assert status.code == self.code.value[0]
            assert status.message == self.message
            self.detail = pb.ErrorDetail()
            assert status.details[0].Unpack(self.detail)


async def failure(call: Any) -> Failed:
    """Return how a call fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Failed(error)
    raise AssertionError("the call has not failed")


def operations(*each: Any, **begin: Any) -> pb.TransactionRequest:
    """Return a request of a transaction: each operation is a request, or its name and that."""
    made = []
    for one in each:
        name, request = one if isinstance(one, tuple) else (_NAMES[type(one)], one)
        made.append(pb.Operation(**{name: request}))
    return pb.TransactionRequest(begin=pb.Begin(**begin) if begin else None, operations=made)


_NAMES: Final[dict[type, str]] = {
    pb.GetRequest: "get",
    pb.ScanRequest: "scan",
    pb.PutRequest: "put",
    pb.DeleteRequest: "delete",
    pb.SendRequest: "send",
    pb.DeferRequest: "defer",
    pb.ReapRequest: "reap",
    pb.PeekRequest: "peek",
    pb.EnqueueRequest: "enqueue",
    pb.ClaimRequest: "claim",
    pb.AcknowledgeRequest: "acknowledge",
    pb.RejectRequest: "reject",
    pb.CommitRequest: "commit",
    pb.IncrementRequest: "increment",
}
COMMIT: Final = pb.CommitRequest()


async def sent(call: Any, request: pb.TransactionRequest) -> Any:
    """Send a request of a transaction; return its response."""
    await call.write(request)
    response = await call.read()
    if response is grpc.aio.EOF:
        await call.code()
        raise AssertionError("the stream has ended")
    return response
