"""The messages of queues that clients receive, and hold until they settle them.

::

    Receive ──▶ consumer ── message ──▶ held, by its attempt ─┬─ Acknowledge, Reject: settled
                                                              ├─ its lease has passed: another's
                                                              └─ the stream ends: given back

An attempt names itself, so any gateway can settle it. The gateway that has pushed it also tells its
consumer at once, which may then have another message.

A stream that ends gives back what its client has not settled. These attempts have failed, as those
of a process that was killed: a message may be what ends its consumers. When the gateway itself
stops, it gives nothing back, because the clients go on working and settle through another gateway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any, Final

from postroom import aio
from postroom.errors import Error, Invalid, LeaseLost
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import values
from postroom.gateway.limits import CREDIT_MAX, SETTLED_AT_A_TIME_MAX, AdmittedCall

CREDIT_DEFAULT: Final = 100
MESSAGE_BYTES: Final = 500
"""The approximate memory of a message besides its payload."""
LATE_SECONDS: Final = 1.0
"""The time after the end of its lease for which a message is still known."""
REASON: Final = "the stream of its consumer has ended"

_log = logging.getLogger(__name__)


class StreamDelivery:
    """The messages that one stream holds.

    Args:
        deliveries: knows those of all streams.
        queue: the queue.
        admitted: counts their memory.
    """

    def __init__(self, deliveries: Deliveries, queue: aio.Queue, admitted: AdmittedCall) -> None:
        self._deliveries = deliveries
        self._queue = queue
        self._admitted = admitted
        self._held: dict[bytes, tuple[aio.QueueMessage, int]] = {}

    def hold(self, message: aio.QueueMessage, told: pb.QueueMessage) -> None:
        """Note that the client holds a message from now on.

        Raises:
            Exhausted: there is no memory left.
        """
        self._forget_late()
        size = told.ByteSize() + MESSAGE_BYTES
        self._admitted.take(size)
        self._held[told.attempt] = message, size
        self._deliveries.by_attempt[told.attempt] = self, message

    def settled(self, attempt: bytes) -> None:
        """Note that the client has settled a message."""
        held = self._held.pop(attempt, None)
        if held is not None:
            del self._deliveries.by_attempt[attempt]
            self._admitted.give(held[1])

    def _forget_late(self) -> None:
        """Forget the messages at the front whose leases have passed."""
        now = time.monotonic()
        while self._held:
            attempt, (message, _) = next(iter(self._held.items()))
            if message.held_until + LATE_SECONDS > now:
                return
            self.settled(attempt)

    def end(self) -> list[aio.QueueMessage]:
        """Forget all messages; return those that the client has not settled."""
        self._forget_late()
        held = [message for message, _ in self._held.values()]
        for attempt in list(self._held):
            self.settled(attempt)
        return held


class Deliveries:
    """The messages that the streams of a gateway hold.

    Attributes:
        by_attempt: each message with its stream.
        stops: whether the gateway stops.
    """

    def __init__(self) -> None:
        self.by_attempt: dict[bytes, tuple[StreamDelivery, aio.QueueMessage]] = {}
        self.stops = False
        self._ending: set[asyncio.Task[None]] = set()

    async def receive(
        self, db: aio.Database, request: pb.ReceiveRequest, context: Any, admitted: AdmittedCall
    ) -> None:
        """Push the messages of a queue until the client ends the stream.

        Raises:
            Error: the consumer cannot go on.
        """
        credit = request.credit or CREDIT_DEFAULT
        if credit > CREDIT_MAX:
            raise Invalid(f"credit is {CREDIT_MAX} at most, not {credit}")
        queue = db.queue(request.queue)
        delivery = StreamDelivery(self, queue, admitted)
        received = queue.receive(credit=credit, **values.selection(request.selection))
        try:
            await context.send_initial_metadata(())  # the client knows that the stream stands
            async with aclosing(received):
                async for message in received:
                    left = max(message.held_until - time.monotonic(), 0.0)
                    told = values.queue_message(message, left)
                    delivery.hold(message, told)
                    await context.write(told)
        finally:
            held = delivery.end()
            if held and not self.stops:
                # A task of its own: this one may be cancelled while it waits.
                task = asyncio.create_task(_give_back(queue, held))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
                await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what is still being given back."""
        if self._ending:
            await asyncio.wait(list(self._ending))

    # --- settling

    async def acknowledge(self, db: aio.Database, request: pb.AcknowledgeRequest) -> int:
        """Mark messages as done; return how many were not done yet.

        Raises:
            LeaseLost: an attempt has passed. Nothing was changed.
        """
        queue, kind = db.queue(request.queue), values.optional(request, "kind")
        count = 0
        for named in self._named(queue, request):
            count += await queue.acknowledge(named, kind=kind)
        self._settled(request.attempts)
        return count

    async def reject(self, db: aio.Database, request: pb.RejectRequest) -> int:
        """Give messages back; return how many there were.

        Raises:
            LeaseLost: an attempt has passed. Nothing was changed.
            Invalid: the fields do not go together.
        """
        queue, kind = db.queue(request.queue), values.optional(request, "kind")
        delay, count = values.optional(request, "delay_seconds"), 0
        if request.uncounted and (delay is not None or request.dead or request.reason):
            raise Invalid(
                "uncounted goes with none of delay_seconds, dead and reason; nothing was changed"
            )
        for named in self._named(queue, request):
            if request.uncounted:
                count += await queue.release(named, kind=kind)
            else:
                count += await queue.reject(
                    named, delay, dead=request.dead, reason=request.reason or None, kind=kind
                )
        self._settled(request.attempts)
        return count

    async def extend(self, db: aio.Database, request: pb.ExtendRequest) -> int:
        """Hold a message for longer; return when its lease ends.

        Raises:
            LeaseLost: its attempt has passed. Nothing was changed.
        """
        queue = db.queue(request.queue)
        return await queue.extend(self._message(queue, request.attempt), request.seconds)

    def settled_by(self, attempts: Iterable[bytes]) -> None:
        """Note that a transaction has settled messages."""
        self._settled(attempts)

    def _named(self, queue: aio.Queue, request: Any) -> list[list[Any]]:
        """Return the messages and the ids that a request names, each list if it is not empty."""
        if len(request.attempts) + len(request.ids) > SETTLED_AT_A_TIME_MAX:
            raise Invalid(
                f"a call settles {SETTLED_AT_A_TIME_MAX} messages at most; nothing was changed"
            )
        attempts = [self._message(queue, each) for each in request.attempts]
        return [each for each in (attempts, list(request.ids)) if each]

    def _message(self, queue: aio.Queue, attempt: bytes) -> aio.QueueMessage:
        held = self.by_attempt.get(attempt)
        if held is not None and held[1].queue == queue.name:
            return held[1]
        return queue.by_receipt(attempt)

    def _settled(self, attempts: Iterable[bytes]) -> None:
        for each in attempts:
            held = self.by_attempt.get(each)
            if held is not None:
                held[0].settled(each)


async def _give_back(queue: aio.Queue, held: list[aio.QueueMessage]) -> None:
    """Give back what a client has not settled."""
    try:
        try:
            await queue.reject(held, reason=REASON)
        except LeaseLost:  # one of them has lost its lease: none was given back
            for each in held:
                with suppress(LeaseLost):
                    await queue.reject(each, reason=REASON)
    except Error as error:
        _log.info("messages wait for the end of their leases: %s", error)
