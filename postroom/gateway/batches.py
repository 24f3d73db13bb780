"""Many transactions on one stream, each of which commits or fails by itself.

::

    request: transactions ──▶ under way, at the same time ──▶ done ──▶ response: those that are done
                  ▲                                                         │
                  └────────── the next ones, once responses have left ──────┘

A transaction is under way until its response has left. A stream has ``UNDER_WAY_MAX`` of them, and
is not read further meanwhile. A client that sends too fast, or that does not read, waits.

Each transaction is admitted as a call of its own, so it has the limits of ``Execute``. When the
stream ends by an error or by cancellation, those that have not been committed are rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc.aio

from postroom.errors import Invalid
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import values
from postroom.gateway.limits import (
    BATCH_MAX,
    BATCH_RESPONSE_BYTES,
    UNDER_WAY_MAX,
    AdmittedCall,
)

Run: TypeAlias = Callable[[pb.TransactionRequest, AdmittedCall], Awaitable[pb.TransactionResponse]]

_log: Final = logging.getLogger(__name__)


class BatchCall:
    """The transactions of one stream.

    Args:
        admit: admits a transaction as a call.
        run: runs a transaction.
    """

    def __init__(self, admit: Callable[[], AdmittedCall], run: Run) -> None:
        self._admit = admit
        self._run = run
        self._room = asyncio.Semaphore(UNDER_WAY_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: list[tuple[pb.TransactionResponse, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    async def serve(self, context: Any, admitted: AdmittedCall) -> None:
        """Serve the stream until its client has ended it and all transactions are answered.

        Args:
            context: gRPC's, from which requests are read and to which responses are written.
            admitted: counts the memory of the requests that wait.

        Raises:
            Invalid, Exhausted: a request is refused, after all earlier ones were answered.
        """
        reading = asyncio.create_task(self._read(context, admitted))
        reading.add_done_callback(self._wake)
        try:
            while self._tasks or not reading.done():
                await self._changed.wait()
                self._changed.clear()
                while self._done:
                    await self._send(context)
            await reading
        finally:
            tasks = [reading, *self._tasks]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, context: Any, admitted: AdmittedCall) -> None:
        while (packed := await context.read()) is not grpc.aio.EOF:
            request = values.parsed(pb.BatchExecuteRequest, packed)
            size, count = len(packed), len(request.transactions)
            if count > BATCH_MAX:
                raise Invalid(
                    f"a request has {count} transactions, and may have {BATCH_MAX}; none of them "
                    "was run: use several requests"
                )
            admitted.take(size)
            for each in request.transactions:
                await self._room.acquire()
                task = asyncio.create_task(self._transact(each))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            admitted.give(size)

    async def _transact(self, request: pb.TransactionRequest) -> None:
        """Run a transaction; end when its response has left."""
        try:
            with self._admit() as admitted:
                response = await self._run(request, admitted)
                await self._leave(response, request.number)
        except Exception as error:
            if not isinstance(error, values.EXPECTED):
                _log.exception("a transaction of a batch has failed")
            await self._leave(pb.TransactionResponse(error=values.status_of(error)), request.number)

    async def _leave(self, response: pb.TransactionResponse, number: int) -> None:
        """Wait until a response has left."""
        response.number = number
        left = asyncio.get_running_loop().create_future()
        self._done.append((response, left))
        self._changed.set()
        await left

    async def _send(self, context: Any) -> None:
        """Send the responses that wait, as many as belong into one message."""
        size, count = 0, 0
        for response, _ in self._done:
            size += response.ByteSize()
            if count and size > BATCH_RESPONSE_BYTES:
                break
            count += 1
        sent, self._done = self._done[:count], self._done[count:]
        await context.write(pb.BatchExecuteResponse(transactions=[each for each, _ in sent]))
        for _, left in sent:
            if not left.done():
                left.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not self._tasks:
            self._changed.set()

    def _wake(self, _: asyncio.Task[None]) -> None:
        self._changed.set()
