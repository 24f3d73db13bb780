"""One transaction, which is one stream.

::

    request: begin, operations ──▶ carried out in order ──▶ response: as many results
    ...
    request: ..., commit       ──▶ committed            ──▶ response, and the stream ends with OK

    anything else that ends the stream ──▶ rolled back: an error of an operation, the client's end
                                           of the stream, cancellation, deadline, lost connection

A commit whose outcome is unknown is sent again, with the same id, until the outcome is known or the
client's deadline has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import grpc.aio

import postroom
from postroom import aio
from postroom.errors import CommitUnknown, Invalid, TransactionExpired, Unavailable
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import values
from postroom.gateway.callers import Caller
from postroom.gateway.limits import (
    BACKOFF_SECONDS_MAX,
    OPERATIONS_MAX,
    PAIRS_MAX,
    REAPED_BYTES_MAX,
    TRANSACTION_SECONDS_MAX,
    AdmittedCall,
)

GRACE_SECONDS: Final = 1.0
"""The time after which the gateway ends a transaction that its client has left open."""
PAIRS_BYTES: Final = 2 << 20
GETS_AT_A_TIME: Final = 16
LOOK_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 15.0
"""The time for which an unknown outcome is asked for."""
BACKOFF_SECONDS_FIRST: Final = 0.02

_READS: Final = frozenset({"get", "scan", "peek", "commit"})


async def commit_for_sure(tx: aio.Transaction) -> postroom.Timestamp:
    """Commit, and again while the outcome is unknown.

    Raises:
        CommitUnknown: it is still unknown after a while.
        Error: nothing happened.
    """
    try:
        return await tx.commit()
    except CommitUnknown as error:
        unknown = error
    loop = asyncio.get_running_loop()
    give_up, backoff = loop.time() + COMMIT_SECONDS, BACKOFF_SECONDS_FIRST
    while loop.time() < give_up and tx.may_be_told:
        await asyncio.sleep(backoff)
        backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
        try:
            return await tx.commit()
        except CommitUnknown as error:
            unknown = error
    raise unknown


class OpenCalls:
    """The open transactions, which end when their time is over.

    One task looks at all of them: a timer for each would take more steps than the rest of the call.
    """

    def __init__(self) -> None:
        self._calls: dict[TransactionCall, asyncio.Task[Any]] = {}

    def add(self, call: TransactionCall) -> None:
        """Note a call of the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._calls[call] = task

    def remove(self, call: TransactionCall) -> None:
        """Note the end of a call."""
        self._calls.pop(call, None)

    async def end_late(self) -> None:
        """End the calls whose time is over, again and again."""
        monotonic = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = monotonic()
            for call, task in list(self._calls.items()):
                if now > call.ends_at and not call.is_late:
                    call.is_late = True
                    task.cancel()


class TransactionCall:
    """One transaction of a client.

    Args:
        db: the database of the client.
        caller: the client.
        admitted: counts the memory of the transaction.
        response_bytes_max: the largest response.
        open_calls: ends the transaction when its time is over.

    Attributes:
        ends_at: when its time is over, on the clock of the event loop.
        is_late: whether it ends because its time is over.
    """

    def __init__(
        self,
        db: aio.Database,
        caller: Caller,
        admitted: AdmittedCall,
        response_bytes_max: int,
        open_calls: OpenCalls,
    ) -> None:
        self._db = db
        self._caller = caller
        self._admitted = admitted
        self._response_bytes_max = response_bytes_max
        self._tx: aio.Transaction
        self._is_retry = False
        self._seconds = TRANSACTION_SECONDS_MAX
        self._open_calls = open_calls
        self.ends_at = 0.0
        self.is_late = False
        self._handles: list[aio.EnqueueHandle] = []
        self._named_attempts: list[bytes] = []
        self._committed = False
        self._told_bytes = 0

    @property
    def settled(self) -> list[bytes]:
        """Return the attempts that it has settled; none before it has committed."""
        return self._named_attempts if self._committed else []

    async def serve(self, context: Any) -> None:
        """Serve the stream until it ends.

        Raises:
            Error: nothing happened, but for ``CommitUnknown``.
        """
        self._last_for(TRANSACTION_SECONDS_MAX)
        self._open_calls.add(self)
        try:
            packed = await context.read()
            if packed is not grpc.aio.EOF:
                await self._transact(context, packed)
        except asyncio.CancelledError as error:
            if not self.is_late:
                raise
            raise TransactionExpired(
                f"the transaction was open for more than {self._seconds:g} s; nothing was "
                "changed: begin a new one, and do long work outside of transactions"
            ) from error
        finally:
            self._open_calls.remove(self)

    async def execute(self, request: pb.TransactionRequest) -> pb.TransactionResponse:
        """Carry out a transaction of one request.

        Raises:
            Error: nothing happened, but for ``CommitUnknown``.
        """
        operations = request.operations
        if not operations or operations[-1].WhichOneof("operation") != "commit":
            raise Invalid(
                "the last operation of a transaction of one request is commit; nothing was "
                "changed: add it, or use a stream (Transaction) to go on with the results"
            )
        tx = self._begin(request)
        try:
            response = await self._response(request)
        finally:
            if not tx.closed:
                await tx.rollback()
            self._admitted.finish()
        response.transaction_id = tx.retry_id
        return response

    async def _transact(self, context: Any, packed: bytes) -> None:
        request = values.parsed(pb.TransactionRequest, packed)
        tx = self._begin(request)
        try:
            response = await self._response(request)
            response.transaction_id = tx.retry_id
            while True:
                await context.write(response)
                if self._committed:
                    return
                packed = await context.read()
                if packed is grpc.aio.EOF:
                    return
                request = values.parsed(pb.TransactionRequest, packed)
                if request.HasField("begin"):
                    raise Invalid(
                        "begin is in the first request of a transaction only; nothing was "
                        "changed: use a stream for each transaction"
                    )
                response = await self._response(request)
        finally:
            if not tx.closed:
                await tx.rollback()

    def _begin(self, request: Any) -> aio.Transaction:
        timeout, retry_id = TRANSACTION_SECONDS_MAX, None
        if request.HasField("begin"):
            begin = request.begin
            retry_id = begin.transaction_id or None
            if begin.HasField("timeout_seconds"):
                timeout = begin.timeout_seconds
        self._admitted.begin()
        self._tx = tx = self._db.begin(timeout=timeout, retry_id=retry_id)
        self._is_retry = retry_id is not None
        if timeout != TRANSACTION_SECONDS_MAX:
            self._seconds = timeout
            self._last_for(timeout)
        return tx

    def _last_for(self, seconds: float) -> None:
        """End the transaction unless it ends within ``seconds`` from now."""
        now = asyncio.get_running_loop().time()
        self.ends_at = now + seconds + GRACE_SECONDS

    # --- one request

    async def _response(self, request: Any) -> pb.TransactionResponse:
        self._admitted.take(request.ByteSize())
        operations = request.operations
        count = len(operations)
        if count > OPERATIONS_MAX:
            raise Invalid(
                f"a request has {count} operations, and may have {OPERATIONS_MAX}; nothing was "
                "changed: use several requests"
            )
        response = pb.TransactionResponse()
        add = response.results.add
        number = 0
        while number < count:
            operation = operations[number]
            name = operation.WhichOneof("operation")
            if name not in _READS:
                self._caller.check_may_write()
            if name == "get":
                number += await self._gets(operations, number, add)
            else:
                number += 1
                await self._carry_out(name, operation, add(), is_last=number == count)
            if self._told_bytes > self._response_bytes_max:
                raise Invalid(
                    f"the results of one request have more than {self._response_bytes_max} bytes; "
                    "nothing was changed: ask for less in one request"
                )
        self._told_bytes = 0
        return response

    async def _gets(self, operations: Any, first: int, add: Callable[[], pb.Result]) -> int:
        """Carry out the reads of keys that follow each other; return how many.

        Args:
            operations: the operations of the request.
            first: the index of the first of them.
            add: adds a result to the response.
        """
        keys = [_key_of(operations[first].get)]
        for each in operations[first + 1 : first + GETS_AT_A_TIME]:
            if each.WhichOneof("operation") != "get":
                break
            keys.append(_key_of(each.get))
        if len(keys) == 1:
            found = [await self._tx.get(keys[0])]
        else:
            found = await self._tx.get_many(keys)
        for value in found:
            self._tell_value(add(), value)
        return len(keys)

    def _tell_value(self, result: pb.Result, value: bytes | None) -> None:
        if value is None:
            result.get.SetInParent()
        else:
            result.get.value = value
            self._told_bytes += len(value)

    async def _carry_out(
        self, name: str | None, operation: Any, result: pb.Result, *, is_last: bool
    ) -> None:
        """Carry out an operation, and fill in its result."""
        if name == "commit":
            if not is_last:
                raise Invalid(
                    "commit is the last operation of a transaction; nothing was changed: put what "
                    "follows before it"
                )
            await self._commit(result)
            return
        gather = _GATHERING.get(name)
        if gather is not None:
            gather(self, getattr(operation, str(name)), result)
            return
        ask = _ASKING.get(name)
        if ask is None:
            raise Invalid("an operation is empty, or not known here; nothing was changed")
        await ask(self, getattr(operation, str(name)), result)

    # --- operations that ask the store

    async def _get_for_update(self, request: pb.GetRequest, result: pb.Result) -> None:
        value = await self._tx.get_for_update(_key_of(request))
        self._tell_value(result, value)

    async def _scan(self, request: pb.ScanRequest, result: pb.Result) -> None:
        if request.HasField("at"):
            raise _no_timestamp()
        limit = request.limit if request.HasField("limit") else PAIRS_MAX
        most = min(limit, PAIRS_MAX)
        pairs: list[pb.Pair] = []
        size, more = 0, False
        found = self._tx.scan(
            request.start, values.optional(request, "end"), limit=most + 1, reverse=request.reverse
        )
        async for key, value in found:
            if len(pairs) == most or size > PAIRS_BYTES:
                more = True
                break
            pairs.append(pb.Pair(key=key, value=value))
            size += len(key) + len(value)
        result.scan.CopyFrom(pb.ScanResponse(pairs=pairs, more=more))
        self._told_bytes += size

    async def _increment(self, request: pb.IncrementRequest, result: pb.Result) -> None:
        result.increment.sum = await self._tx.increment(request.key, values.by(request))

    async def _reap(self, request: pb.ReapRequest, result: pb.Result) -> None:
        wait = values.seconds_to_wait(request.wait_seconds)
        if wait is not None:
            self._last_for(wait + self._seconds)
        reaped = await self._tx.reap_queue(
            request.key, request.max_results or 100, max_bytes=REAPED_BYTES_MAX, wait=wait,
            max_attempts=request.max_attempts or None,
        )  # fmt: skip
        if wait is not None:
            self._last_for(self._seconds)
        self._tell_inbox(result, list(reaped), more=reaped.more)

    async def _peek(self, request: pb.PeekRequest, result: pb.Result) -> None:
        limit = request.limit or 100
        found = await self._tx.peek(request.key, limit + 1)
        self._tell_inbox(result, found[:limit], more=len(found) > limit)

    def _tell_inbox(self, result: pb.Result, found: list[postroom.Message], *, more: bool) -> None:
        result.inbox.messages.extend([values.inbox_message(each) for each in found])
        result.inbox.more = more
        self._hold(result)

    def _hold(self, result: pb.Result) -> None:
        """Count messages that the transaction holds from now on."""
        size = result.ByteSize()
        self._told_bytes += size
        self._admitted.take(size)

    async def _claim(self, request: pb.ClaimRequest, result: pb.Result) -> None:
        wait = values.seconds_to_wait(request.wait_seconds)
        if wait is not None:
            self._last_for(wait + self._seconds)
        found = await self._tx.claim(
            request.queue, request.max_results or 1, wait=wait,
            **values.selection(request.selection),
        )  # fmt: skip
        if wait is not None:
            self._last_for(self._seconds)
        result.claim.messages.extend([values.queue_message(each) for each in found])
        self._hold(result)

    async def _commit(self, result: pb.Result) -> None:
        if self._told_bytes:
            self._admitted.take(self._told_bytes)  # before it commits: this may be refused
        try:
            timestamp = await commit_for_sure(self._tx)
        except Unavailable as error:
            if not self._is_retry:
                raise
            raise CommitUnknown(
                f"an earlier try of this transaction may have committed; {error}: try again "
                "with the same id"
            ) from error
        self._committed = True
        result.commit.timestamp = timestamp
        if self._handles:
            result.commit.enqueued.extend([values.outcome(each) for each in self._handles])

    # --- operations that only gather

    def _put(self, request: pb.PutRequest, _: pb.Result) -> None:
        self._tx.put(request.key, request.value)

    def _delete(self, request: pb.DeleteRequest, _: pb.Result) -> None:
        self._tx.delete(request.key)

    def _send(self, request: pb.SendRequest, _: pb.Result) -> None:
        self._tx.enqueue_message(request.key, request.value, **values.send_arguments(request))

    def _defer(self, request: pb.DeferRequest, _: pb.Result) -> None:
        self._tx.enqueue_update(
            values.update(request), execute_at=values.due(request, "execute_at")
        )

    def _enqueue(self, request: pb.EnqueueRequest, result: pb.Result) -> None:
        handle = self._tx.enqueue(**values.enqueue_arguments(request))
        self._handles.append(handle)
        result.enqueue.id = values.packed_id(handle.id)

    def _acknowledge(self, request: pb.AcknowledgeRequest, _: pb.Result) -> None:
        for named, kind in self._named(request):
            self._tx.acknowledge(request.queue, named, kind=kind)

    def _reject(self, request: pb.RejectRequest, _: pb.Result) -> None:
        if request.uncounted:
            raise Invalid("uncounted is not for transactions; nothing was changed: leave it out")
        for named, kind in self._named(request):
            self._tx.reject(
                request.queue, named, values.optional(request, "delay_seconds"),
                dead=request.dead, reason=request.reason or None, kind=kind,
            )  # fmt: skip

    def _named(self, request: Any) -> list[tuple[list[Any], str | None]]:
        """Return the messages and the ids that a request names, each with the kind to say."""
        self._named_attempts += request.attempts
        queue = self._db.queue(request.queue)
        attempts = [queue.by_receipt(each) for each in request.attempts]
        kind = values.optional(request, "kind")
        return [each for each in ((attempts, None), (list(request.ids), kind)) if each[0]]


_GATHERING: Final[dict[str | None, Callable[[TransactionCall, Any, pb.Result], None]]] = {
    "put": TransactionCall._put,
    "delete": TransactionCall._delete,
    "send": TransactionCall._send,
    "defer": TransactionCall._defer,
    "enqueue": TransactionCall._enqueue,
    "acknowledge": TransactionCall._acknowledge,
    "reject": TransactionCall._reject,
}
_Asking: TypeAlias = Callable[[TransactionCall, Any, pb.Result], Coroutine[Any, Any, None]]
_ASKING: Final[dict[str | None, _Asking]] = {
    "get_for_update": TransactionCall._get_for_update,
    "scan": TransactionCall._scan,
    "reap": TransactionCall._reap,
    "peek": TransactionCall._peek,
    "claim": TransactionCall._claim,
    "increment": TransactionCall._increment,
}


def _key_of(request: pb.GetRequest) -> bytes:
    if request.HasField("at"):
        raise _no_timestamp()
    return request.key


def _no_timestamp() -> Invalid:
    return Invalid(
        "a transaction reads at one timestamp, which it chooses itself; nothing was changed: "
        "leave out 'at', or read outside of a transaction"
    )
