"""The calls of the service: each finds its caller and its database, and tells errors.

A call is admitted, does its work with the caller's database, and gives back what it has taken,
however it ends. gRPC cancels the task of a call when the client cancels it, its connection is lost,
or its deadline passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import postroom
from postroom import aio
from postroom.errors import Error
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import values
from postroom.gateway.callers import Caller, Callers
from postroom.gateway.connections import StoreConnections
from postroom.gateway.deliveries import Deliveries
from postroom.gateway.failures import abort
from postroom.gateway.limits import (
    PAGE_PAIRS_MAX,
    SCAN_BYTES_MAX,
    AdmittedCall,
    GatewayAdmission,
    Limits,
)
from postroom.gateway.postroom_pb2_grpc import PostroomServicer
from postroom.gateway.transactions import (
    OpenCalls,
    TransactionCall,
    by_of,
    commit_for_sure,
    send,
)

PAGE_BYTES: Final = 256 << 10

SCAN_BYTES_MIN: Final = 1 << 20
WATCH_BYTES: Final = 128 << 10
LARGE_RESPONSE_BYTES: Final = 16 << 10
"""The size from which a response is counted until it has left."""

EXPECTED: Final = (Error, TypeError, ValueError)
"""The errors that a caller is told."""

Call: TypeAlias = Callable[[aio.Database, Any], Awaitable[Any]]


class Service(PostroomServicer):
    """See the module.

    Args:
        callers: reads the proofs of callers.
        connections: the databases.
        limits: the limits of the gateway.
    """

    def __init__(self, callers: Callers, connections: StoreConnections, limits: Limits) -> None:
        self._callers = callers
        self._connections = connections
        self._limits = limits
        self.admission = GatewayAdmission(limits)
        self.deliveries = Deliveries()
        self.open_calls = OpenCalls()

    # --- single calls

    async def _answer(self, context: Any, call: Call, request: Any, *, writes: bool) -> Any:
        try:
            caller = self._callers.of(context)
            if writes:
                caller.check_may_write()
            with self.admission.call(caller.client):
                db, connection = await self._connections.acquire(caller.token)
                try:
                    return self._counted(context, caller, await call(db, request))
                finally:
                    self._connections.release(connection)
        except EXPECTED as error:
            await abort(context, error)

    async def Get(self, request: pb.GetRequest, context: Any) -> Any:
        """Return the value of a key."""
        return await self._answer(context, _get, request, writes=False)

    async def Put(self, request: pb.PutRequest, context: Any) -> Any:
        """Set a key."""
        return await self._answer(context, _put, request, writes=True)

    async def Delete(self, request: pb.DeleteRequest, context: Any) -> Any:
        """Remove a key."""
        return await self._answer(context, _delete, request, writes=True)

    async def Send(self, request: pb.SendRequest, context: Any) -> Any:
        """Send a message to an inbox."""
        return await self._answer(context, _send, request, writes=True)

    async def Increment(self, request: pb.IncrementRequest, context: Any) -> Any:
        """Add to an integer."""
        return await self._answer(context, _increment, request, writes=True)

    async def Enqueue(self, request: pb.EnqueueRequest, context: Any) -> Any:
        """Put a message into a queue."""
        return await self._answer(context, _enqueue, request, writes=True)

    async def Status(self, request: pb.StatusRequest, context: Any) -> Any:
        """Return the status of the store."""
        return await self._answer(context, _status, request, writes=False)

    async def NewTransactionId(self, request: pb.NewTransactionIdRequest, context: Any) -> Any:
        """Return an id for a transaction."""
        return await self._answer(context, _new_id, request, writes=False)

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Any) -> Any:
        """Mark messages as done."""
        return await self._answer(context, self._acknowledge, request, writes=True)

    async def _acknowledge(self, db: aio.Database, request: pb.AcknowledgeRequest) -> Any:
        return pb.AcknowledgeResponse(count=await self.deliveries.acknowledge(db, request))

    async def Reject(self, request: pb.RejectRequest, context: Any) -> Any:
        """Give messages back."""
        return await self._answer(context, self._reject, request, writes=True)

    async def _reject(self, db: aio.Database, request: pb.RejectRequest) -> Any:
        return pb.RejectResponse(count=await self.deliveries.reject(db, request))

    async def Extend(self, request: pb.ExtendRequest, context: Any) -> Any:
        """Hold a message for longer."""
        return await self._answer(context, self._extend, request, writes=True)

    async def _extend(self, db: aio.Database, request: pb.ExtendRequest) -> Any:
        return pb.ExtendResponse(leased_until=await self.deliveries.extend(db, request))

    def _counted(self, context: Any, caller: Caller, response: Any) -> Any:
        """Return a response, and count its memory until the client has read it, if it is large."""
        size = response.ByteSize()
        if size > LARGE_RESPONSE_BYTES:
            context.add_done_callback(self.admission.hold(caller.client, size))
        return response

    # --- streams

    async def Scan(self, request: pb.ScanRequest, context: Any) -> None:
        """Send the pairs of a span, page by page."""
        await self._stream(context, _scan, request)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:
        """Send changes as they are committed."""
        await self._stream(context, _watch, request)

    async def Receive(self, request: pb.ReceiveRequest, context: Any) -> None:
        """Send the messages of a queue as they become ready."""
        await self._stream(context, self._receive, request, writes=True)

    async def _receive(self, stream: StreamingCall, request: pb.ReceiveRequest) -> None:
        await self.deliveries.receive(stream.db, request, stream.context, stream.admitted)

    async def Transaction(self, requests: Any, context: Any) -> None:
        """Run a transaction."""
        del requests  # they are read from the context, which takes fewer steps
        await self._stream(context, self._transaction, None)

    async def _transaction(self, stream: StreamingCall, _: None) -> None:
        call = TransactionCall(
            stream.db,
            stream.caller,
            stream.admitted,
            self._limits.response_bytes_max,
            self.open_calls,
        )
        await call.serve(stream.context)
        self.deliveries.settled_by(call.settled)

    async def Execute(self, request: pb.TransactionRequest, context: Any) -> Any:
        """Run a transaction of one request."""
        try:
            caller = self._callers.of(context)
            with self.admission.call(caller.client) as admitted:
                db, connection = await self._connections.acquire(caller.token)
                try:
                    call = TransactionCall(
                        db, caller, admitted, self._limits.response_bytes_max, self.open_calls
                    )
                    response = await call.execute(request)
                finally:
                    self._connections.release(connection)
                self.deliveries.settled_by(call.settled)
                return self._counted(context, caller, response)
        except EXPECTED as error:
            await abort(context, error)

    async def _stream(
        self, context: Any, serve: Callable[[StreamingCall, Any], Awaitable[None]], request: Any,
        *, writes: bool = False,
    ) -> None:  # fmt: skip
        try:
            caller = self._callers.of(context)
            if writes:
                caller.check_may_write()
            with self.admission.call(caller.client) as admitted:
                db, connection = await self._connections.acquire(caller.token)
                try:
                    await serve(StreamingCall(db, context, caller, admitted), request)
                finally:
                    self._connections.release(connection)
        except EXPECTED as error:
            await abort(context, error)


class StreamingCall:
    """The surroundings of a call that streams.

    Attributes:
        db: the caller's database.
        context: gRPC's, to which responses are written.
        caller: the caller.
        admitted: counts what the call takes.
    """

    __slots__ = ("admitted", "caller", "context", "db")

    def __init__(
        self, db: aio.Database, context: Any, caller: Caller, admitted: AdmittedCall
    ) -> None:
        self.db = db
        self.context = context
        self.caller = caller
        self.admitted = admitted


_PUT_RESPONSE: Final = pb.PutResponse()
_DELETE_RESPONSE: Final = pb.DeleteResponse()


async def _get(db: aio.Database, request: pb.GetRequest) -> pb.GetResponse:
    return pb.GetResponse(value=await db.get(request.key, at=values.optional(request, "at")))


async def _put(db: aio.Database, request: pb.PutRequest) -> pb.PutResponse:
    await db.put(request.key, request.value)
    return _PUT_RESPONSE


async def _delete(db: aio.Database, request: pb.DeleteRequest) -> pb.DeleteResponse:
    await db.delete(request.key)
    return _DELETE_RESPONSE


async def _send(db: aio.Database, request: pb.SendRequest) -> pb.SendResponse:
    tx = db.begin()
    send(tx, request)
    return pb.SendResponse(timestamp=await commit_for_sure(tx))


async def _increment(db: aio.Database, request: pb.IncrementRequest) -> pb.IncrementResponse:
    return pb.IncrementResponse(sum=await db.increment(request.key, by_of(request)))


async def _enqueue(db: aio.Database, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    tx = db.begin()
    handle = tx.enqueue(**values.enqueue_arguments(request))
    await commit_for_sure(tx)
    return pb.EnqueueResponse(id=values.packed_id(handle.id), outcome=values.outcome(handle))


async def _new_id(db: aio.Database, _: pb.NewTransactionIdRequest) -> pb.NewTransactionIdResponse:
    return pb.NewTransactionIdResponse(transaction_id=db.begin().retry_id)


async def _status(db: aio.Database, _: pb.StatusRequest) -> pb.StatusResponse:
    found: postroom.Status = await db.status()
    return pb.StatusResponse(
        node_id=found.node_id, leader=found.leader, timestamp=found.timestamp,
        disk_bytes=found.disk_bytes, refused=found.refused, enqueued=found.enqueued,
        delivered=found.delivered, executed=found.executed, pending=found.pending,
        dead=found.dead, dead_letters=found.dead_letters,
        nodes=[_node(each) for each in found.nodes],
        services=[
            pb.ServiceStatus(
                name=each.name, running=each.running, failures=each.failures, trouble=each.trouble
            )
            for each in found.services
        ],
    )  # fmt: skip


def _node(node: postroom.NodeInfo) -> pb.NodeStatus:
    return pb.NodeStatus(
        node_id=node.node_id, address=node.address, entries_behind=node.entries_behind,
        silent_seconds=node.silent_seconds, retired=node.retired,
    )  # fmt: skip


async def _scan(stream: StreamingCall, request: pb.ScanRequest) -> None:
    found = stream.db.scan(
        request.start, values.optional(request, "end"), limit=values.optional(request, "limit"),
        reverse=request.reverse, at=values.optional(request, "at"),
    )  # fmt: skip
    pairs: list[pb.Pair] = []
    size, largest, taken = 0, SCAN_BYTES_MIN // PAGE_PAIRS_MAX, SCAN_BYTES_MIN
    stream.admitted.take(taken)
    async with aclosing(found):
        async for key, value in found:
            pairs.append(pb.Pair(key=key, value=value))
            pair_bytes = len(key) + len(value)
            size += pair_bytes
            if pair_bytes > largest:
                largest = pair_bytes
                page_bytes = min(largest * PAGE_PAIRS_MAX, SCAN_BYTES_MAX)
                stream.admitted.take(max(page_bytes - taken, 0))
                taken = max(page_bytes, taken)
            if len(pairs) == PAGE_PAIRS_MAX or size > PAGE_BYTES:
                await stream.context.write(pb.ScanResponse(pairs=pairs))
                pairs, size = [], 0
    if pairs:
        await stream.context.write(pb.ScanResponse(pairs=pairs))


async def _watch(stream: StreamingCall, request: pb.WatchRequest) -> None:
    stream.admitted.take(WATCH_BYTES)
    after = values.optional(request, "after")
    if after is None:
        after = await stream.db.now()
    changes = stream.db.watch(request.start, values.optional(request, "end"), after=after)
    async with aclosing(changes):
        await stream.context.write(pb.WatchResponse(after=after))
        async for each in changes:
            told = pb.Change(key=each.key, value=each.value, timestamp=each.timestamp)
            await stream.context.write(pb.WatchResponse(changes=[told]))


__all__ = ["Service"]
