"""The calls of the service: each finds its caller and its database, and tells errors.

A call is admitted, does its work with the caller's database, and gives back what it has taken,
however it ends. gRPC cancels the task of a call when the client cancels it, its connection is lost,
or its deadline passes.

Requests come as bytes and are parsed here. Thereby bytes that are no request are an error like all
others, and the size of a request is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from operator import methodcaller
from typing import Any, Final, NamedTuple, TypeAlias

import grpc

import postroom
from postroom import aio
from postroom.errors import Invalid, TaskFailed
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import values
from postroom.gateway.batches import BatchCall
from postroom.gateway.callers import Caller, Callers, StoreConnections
from postroom.gateway.deliveries import Deliveries
from postroom.gateway.limits import (
    BATCH_MAX,
    PAGE_PAIRS_MAX,
    SCAN_BYTES_MAX,
    AdmittedCall,
    GatewayAdmission,
    Limits,
)
from postroom.gateway.transactions import OpenCalls, TransactionCall, commit_for_sure

DEFINITION: Final = pb.DESCRIPTOR.services_by_name["Postroom"]

PAGE_BYTES: Final = 256 << 10
SCAN_BYTES_MIN: Final = 1 << 20
WATCH_BYTES: Final = 128 << 10
LARGE_RESPONSE_BYTES: Final = 16 << 10
"""The size from which a response is counted until it has left."""


class ServedCall(NamedTuple):
    """A call that was admitted, with its surroundings.

    Attributes:
        db: the caller's database.
        context: gRPC's, from which a stream is read and to which it is written.
        caller: the caller.
        admitted: counts what the call takes.
    """

    db: aio.Database
    context: Any
    caller: Caller
    admitted: AdmittedCall


Serve: TypeAlias = Callable[[ServedCall, Any], Awaitable[Any]]
"""A function that serves a call with its request; ``None``: it reads a stream of them itself.

It returns the response, or ``None`` if it has written a stream of them.
"""


class Service:
    """The gRPC service over the databases of its callers.

    Args:
        callers: reads the proofs of callers.
        connections: the databases.
        limits: the limits of the gateway.
    """

    def __init__(self, callers: Callers, connections: StoreConnections, limits: Limits) -> None:
        self._callers = callers
        self._connections = connections
        self._response_bytes_max = limits.response_bytes_max
        self.admission = GatewayAdmission(limits)
        self.deliveries = Deliveries()
        self.open_calls = OpenCalls()

    def handler(self) -> Any:
        """Return the handler of all calls, as a gRPC server takes it."""
        writing: dict[str, Serve] = {
            "Put": _put, "Delete": _delete, "Send": _send, "Increment": _increment,
            "Enqueue": _enqueue, "Receive": self._receive, "Acknowledge": self._acknowledge,
            "Reject": self._reject, "Extend": self._extend,
        }  # fmt: skip
        others: dict[str, Serve] = {
            "Get": _get, "Scan": _scan, "Status": _status, "Watch": _watch, "Result": _result,
            "NewTransactionId": _new_transaction_id, "Transaction": self._transaction,
            "Execute": self._execute, "BatchExecute": self._batch_execute,
        }  # fmt: skip
        found = {}
        for method in DEFINITION.methods:
            writes = method.name in writing
            serve = writing[method.name] if writes else others[method.name]
            kind = None if method.client_streaming else getattr(pb, method.input_type.name)
            handle = self._handled(serve, kind, writes=writes)
            if kind is None:
                made = grpc.stream_stream_rpc_method_handler(handle, None, _serialize)
            elif method.server_streaming:
                made = grpc.unary_stream_rpc_method_handler(handle, None, _serialize)
            else:
                made = grpc.unary_unary_rpc_method_handler(handle)
            found[method.name] = made
        return grpc.method_handlers_generic_handler(DEFINITION.full_name, found)

    def _handled(self, serve: Serve, kind: Any, *, writes: bool) -> Any:
        """Return the function that gRPC calls for a call.

        Args:
            serve: serves the call.
            kind: the class of its request; ``None``: it reads a stream of them itself.
            writes: whether only clients that may write may make it.
        """

        async def handle(packed: Any, context: Any) -> Any:
            try:
                caller = self._callers.of(context)
                if writes:
                    caller.check_may_write()
                with self.admission.call(caller.client) as admitted:
                    db, connection = await self._connections.acquire(caller.proofs)
                    try:
                        request = None if kind is None else values.parsed(kind, packed)
                        call = ServedCall(db, context, caller, admitted)
                        response = await serve(call, request)
                    finally:
                        self._connections.release(connection)
                    if response is None:
                        return None
                    answer = response.SerializeToString()
                    if len(answer) > LARGE_RESPONSE_BYTES:
                        admitted.leave(context)
                    return answer
            except values.EXPECTED as error:
                await values.abort(context, error)

        return handle

    # --- transactions

    async def _transaction(self, call: ServedCall, _: None) -> None:
        transaction = self._begun(call, call.admitted)
        await transaction.serve(call.context)
        self.deliveries.settled_by(transaction.settled)

    async def _execute(
        self, call: ServedCall, request: pb.TransactionRequest, admitted: AdmittedCall | None = None
    ) -> pb.TransactionResponse:
        transaction = self._begun(call, admitted or call.admitted)
        response = await transaction.execute(request)
        self.deliveries.settled_by(transaction.settled)
        return response

    def _begun(self, call: ServedCall, admitted: AdmittedCall) -> TransactionCall:
        return TransactionCall(
            call.db, call.caller, admitted, self._response_bytes_max, self.open_calls
        )

    async def _batch_execute(self, call: ServedCall, _: None) -> None:
        batch = BatchCall(
            lambda: self.admission.call(call.caller.client),
            lambda request, admitted: self._execute(call, request, admitted),
        )
        await batch.serve(call.context, call.admitted)

    # --- messages of queues

    async def _receive(self, call: ServedCall, request: pb.ReceiveRequest) -> None:
        await self.deliveries.receive(call.db, request, call.context, call.admitted)

    async def _acknowledge(self, call: ServedCall, request: pb.AcknowledgeRequest) -> Any:
        return pb.AcknowledgeResponse(count=await self.deliveries.acknowledge(call.db, request))

    async def _reject(self, call: ServedCall, request: pb.RejectRequest) -> Any:
        return pb.RejectResponse(count=await self.deliveries.reject(call.db, request))

    async def _extend(self, call: ServedCall, request: pb.ExtendRequest) -> Any:
        return pb.ExtendResponse(leased_until=await self.deliveries.extend(call.db, request))


_serialize: Final = methodcaller("SerializeToString")
_PUT_RESPONSE: Final = pb.PutResponse()
_DELETE_RESPONSE: Final = pb.DeleteResponse()


async def _get(call: ServedCall, request: pb.GetRequest) -> pb.GetResponse:
    value = await call.db.get(request.key, at=values.optional(request, "at"))
    if value is not None and len(value) > LARGE_RESPONSE_BYTES:
        call.admitted.take(len(value))
    return pb.GetResponse(value=value)


async def _put(call: ServedCall, request: pb.PutRequest) -> pb.PutResponse:
    await call.db.put(request.key, request.value)
    return _PUT_RESPONSE


async def _delete(call: ServedCall, request: pb.DeleteRequest) -> pb.DeleteResponse:
    await call.db.delete(request.key)
    return _DELETE_RESPONSE


async def _send(call: ServedCall, request: pb.SendRequest) -> pb.SendResponse:
    tx = call.db.begin()
    tx.enqueue_message(request.key, request.value, **values.send_arguments(request))
    return pb.SendResponse(timestamp=await commit_for_sure(tx))


async def _increment(call: ServedCall, request: pb.IncrementRequest) -> pb.IncrementResponse:
    return pb.IncrementResponse(sum=await call.db.increment(request.key, values.by(request)))


async def _enqueue(call: ServedCall, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    tx = call.db.begin()
    handle = tx.enqueue(**values.enqueue_arguments(request))
    await commit_for_sure(tx)
    return pb.EnqueueResponse(id=values.packed_id(handle.id), outcome=values.outcome(handle))


async def _result(call: ServedCall, request: pb.ResultRequest) -> pb.ResultResponse:
    queue = call.db.queue(request.queue)
    try:
        value = await queue.result(request.id, kind=request.kind, wait=request.wait_seconds)
    except TimeoutError:
        return pb.ResultResponse(outcome=pb.RESULT_OUTCOME_PENDING)
    except TaskFailed as failed:
        failure = pb.TaskFailure(type=failed.type, reason=failed.reason, traceback=failed.traceback)
        return pb.ResultResponse(outcome=pb.RESULT_OUTCOME_FAILED, failure=failure)
    return pb.ResultResponse(outcome=pb.RESULT_OUTCOME_RETURNED, value=value)


async def _new_transaction_id(
    call: ServedCall, request: pb.NewTransactionIdRequest
) -> pb.NewTransactionIdResponse:
    if request.count > BATCH_MAX:
        raise Invalid(f"count is {BATCH_MAX} at most, not {request.count}")
    first, *others = [call.db.begin().retry_id for _ in range(request.count or 1)]
    return pb.NewTransactionIdResponse(transaction_id=first, other_ids=others)


async def _status(call: ServedCall, _: pb.StatusRequest) -> pb.StatusResponse:
    found: postroom.Status = await call.db.status()
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


async def _scan(call: ServedCall, request: pb.ScanRequest) -> None:
    found = call.db.scan(
        request.start, values.optional(request, "end"), limit=values.optional(request, "limit"),
        reverse=request.reverse, at=values.optional(request, "at"),
    )  # fmt: skip
    pairs: list[pb.Pair] = []
    size, largest, taken = 0, SCAN_BYTES_MIN // PAGE_PAIRS_MAX, SCAN_BYTES_MIN
    call.admitted.take(taken)
    async with aclosing(found):
        async for key, value in found:
            pairs.append(pb.Pair(key=key, value=value))
            pair_bytes = len(key) + len(value)
            size += pair_bytes
            if pair_bytes > largest:
                largest = pair_bytes
                page_bytes = min(largest * PAGE_PAIRS_MAX, SCAN_BYTES_MAX)
                call.admitted.take(max(page_bytes - taken, 0))
                taken = max(page_bytes, taken)
            if len(pairs) == PAGE_PAIRS_MAX or size > PAGE_BYTES:
                await call.context.write(pb.ScanResponse(pairs=pairs))
                pairs, size = [], 0
    if pairs:
        await call.context.write(pb.ScanResponse(pairs=pairs))


async def _watch(call: ServedCall, request: pb.WatchRequest) -> None:
    call.admitted.take(WATCH_BYTES)
    after = values.optional(request, "after")
    if after is None:
        after = await call.db.now()
    changes = call.db.watch(request.start, values.optional(request, "end"), after=after)
    async with aclosing(changes):
        await call.context.write(pb.WatchResponse(after=after))
        async for each in changes:
            told = pb.Change(key=each.key, value=each.value, timestamp=each.timestamp)
            await call.context.write(pb.WatchResponse(changes=[told]))
