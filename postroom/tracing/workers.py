"""The calls of a worker's functions, each with a span *process* that is linked to the senders.

The span is current while the function runs, also in a thread, and while its transaction commits.
Thus all that the function does is below it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.queues.messages import QueueMessage
from postroom.client.queues.sending import QueueSends
from postroom.client.transaction import Transaction
from postroom.client.values import Message
from postroom.client.worker.calling import Callee, FunctionCaller
from postroom.client.worker.calls import Running, Threads
from postroom.tracing.context import links_to
from postroom.tracing.sender import of_destination, of_messaging


class TracedCaller(FunctionCaller):
    """A caller of functions that makes a span of each call; see the module."""

    def __init__(
        self,
        db: asynchronous.CoreDatabase,
        db_of_threads: blocking.CoreDatabase | None,
        threads: Threads,
        *,
        tracer: trace.Tracer,
    ) -> None:
        super().__init__(db, db_of_threads, threads)
        self._tracer = tracer

    @classmethod
    def maker(cls, tracer: trace.Tracer) -> Callable[..., FunctionCaller]:
        """Return a function that makes a caller for each run of a worker."""
        return partial(cls, tracer=tracer)

    async def call(
        self,
        callee: Callee,
        message: QueueMessage,
        finish: Callable[[QueueSends[Any], Any], None],
        running: Running,
    ) -> None:
        """Call the function of a task with a message of a queue, and commit, in a span."""
        with self._span(message.queue, [message]):
            await super().call(callee, message, finish, running)

    async def call_with(
        self,
        callee: Callee,
        take: Callable[[Transaction], Awaitable[Any]],
        failed: Callable[[Exception], Awaitable[None]],
        running: Running,
    ) -> None:
        """Call a function with messages of an inbox, and commit; the span begins with these."""
        with ExitStack() as span:

            async def traced_take(tx: Transaction) -> Any:
                span.close()  # an earlier try has one
                given = await take(tx)
                if given is not None:
                    batch = given if isinstance(given, list) else [given]
                    span.enter_context(self._span(None, batch))
                return given

            await super().call_with(callee, traced_take, failed, running)

    async def _in_thread(self, running: Running, function: Callable[..., Any], *given: Any) -> Any:
        context = contextvars.copy_context()
        return await super()._in_thread(running, context.run, function, *given)

    def _span(
        self, queue: str | None, messages: Sequence[QueueMessage | Message]
    ) -> AbstractContextManager[trace.Span]:
        first = messages[0]
        attributes = of_messaging("process", "process") | of_destination(queue, first.key)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = str(first.id)
        return self._tracer.start_as_current_span(
            f"process {queue or 'inbox'}", kind=SpanKind.CONSUMER, attributes=attributes,
            links=links_to(each.headers for each in messages),
        )  # fmt: skip
