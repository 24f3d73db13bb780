"""A sender that makes spans of the commits and receives that pass through it.

A commit has a span *transaction*, which starts with its transaction. If it sends messages there is
a span *send* below it, whose context the messages carry. A receive has a span if it was given
messages, so that idle consumers make none.

The context makes messages larger. A commit that is refused as too large because of this is sent
again without it: nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from postroom.client.bridge import BridgedSender
from postroom.client.sender import Sender
from postroom.errors import Error, TransactionTooLarge, shorten
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import CONTEXTS_MAX, SPAN_LINKS_MAX
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue
from postroom.messaging.queues.requests import EnqueueInQueue, WhenDone
from postroom.messaging.requests import Delivered, EnqueueMessage, ReapedMessages, ReapQueue
from postroom.ranges.checks import Headers
from postroom.ranges.requests import Committed, CommitTransaction
from postroom.tracing.context import context_of, headers_with, links_to

_LONGEST_TRANSACTION_MILLISECONDS: Final = 120_000
"""The longest time before its commit at which the span of a transaction begins."""

_SentMessage: TypeAlias = EnqueueMessage | EnqueueInQueue
_delivered: Final = msgspec.msgpack.Decoder(Delivered).decode


class TracedSender:
    """A sender that makes spans; see the module.

    Args:
        inner: the sender that it sends through, which has all other calls.
        tracer: makes the spans.
    """

    def __init__(self, inner: Any, tracer: trace.Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def bridged(self, threads: Executor) -> Sender:
        """Return a sender for a loop, which makes the spans there, in the contexts of its tasks."""
        return TracedSender(BridgedSender(self._inner, threads), self._tracer)

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Send a request, and return the awaitable of its answer."""
        match request:
            case CommitTransaction():
                return _TracedCommit(self._inner, self._tracer, request, timeout_seconds)
            case ReapQueue() | ClaimQueue():
                answer = self._inner.send(request, timeout_seconds)
                return _TracedReceive(self._tracer, request, answer)
        return self._inner.send(request, timeout_seconds)  # type: ignore[no-any-return]


class _TracedCommit:
    """The answer of a commit, with its spans."""

    def __init__(
        self,
        inner: Sender,
        tracer: trace.Tracer,
        request: CommitTransaction[Any],
        timeout_seconds: float | None,
    ) -> None:
        self._send: Callable[[Any], Awaitable[Any]] = lambda each: inner.send(each, timeout_seconds)
        self._request = request
        span = tracer.start_span(
            "transaction", kind=SpanKind.CLIENT, attributes=_of_transaction(request),
            start_time=_began_at(inner, request),
        )  # fmt: skip
        self._spans = [span]
        sent = _sent_by(request.writes)
        self._carrying = request
        if sent:
            below = trace.set_span_in_context(span)
            name, attributes = _of_sends(sent)
            send = tracer.start_span(
                name, context=below, kind=SpanKind.PRODUCER, attributes=attributes
            )
            self._spans.append(send)
            if len(sent) <= CONTEXTS_MAX:
                self._carrying = _with_context(request, context_of(send))
        try:
            self._answer = self._send(self._carrying)
        except BaseException as error:
            self._failed(error)
            raise

    def __await__(self) -> Generator[Any, Any, Committed]:
        try:
            committed: Committed = yield from self._committed()
        except BaseException as error:
            self._failed(error)
            raise
        self._spans[0].set_attribute("postroom.transaction.timestamp", committed.timestamp)
        self._end()
        return committed

    def _committed(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from self._answer.__await__())
        except TransactionTooLarge:
            if self._carrying is self._request:
                raise
        return (yield from self._send(self._request).__await__())

    def _failed(self, error: BaseException) -> None:
        for span in self._spans:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
        self._end()

    def _end(self) -> None:
        for span in reversed(self._spans):
            span.end()


def _began_at(sender: Sender, request: CommitTransaction[Any]) -> int:
    """Return when a transaction began, in nanoseconds since 1970 by the clock of the tracer."""
    milliseconds = 0
    with suppress(Error):  # a store that is down tells no time
        milliseconds = (sender.reading() - request.began) >> LOGICAL_BITS
    return time.time_ns() - min(max(milliseconds, 0), _LONGEST_TRANSACTION_MILLISECONDS) * 10**6


def _of_transaction(request: CommitTransaction[Any]) -> dict[str, Any]:
    return {
        "db.system.name": "postroom",
        "db.operation.name": "commit",
        "postroom.transaction.id": request.transaction_id.hex(),
        "postroom.transaction.reads": len(request.reads) + len(request.spans),
        "postroom.transaction.writes": len(request.writes),
    }


def _sent_by(writes: Sequence[Any]) -> list[_SentMessage]:
    found = (each.enqueue if isinstance(each, WhenDone) else each for each in writes)
    return [each for each in found if isinstance(each, _SentMessage)]


def _of_sends(sent: list[_SentMessage]) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of the span of these messages.

    Messages to several destinations have no name of one.
    """
    destinations = {each.queue if isinstance(each, EnqueueInQueue) else None for each in sent}
    attributes = of_messaging("send", "send") | {"messaging.batch.message_count": len(sent)}
    if len(destinations) > 1:
        return "send", attributes
    queue = destinations.pop()
    if queue is None and len({each.key for each in sent}) > 1:
        return "send inbox", attributes | {"messaging.destination.template": "inbox"}
    return f"send {queue or 'inbox'}", attributes | of_destination(queue, sent[0].key)


def of_messaging(name: str, kind: str) -> dict[str, Any]:
    """Return the attributes of an operation on messages, by its name and its type."""
    return {
        "messaging.system": "postroom",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def of_destination(queue: str | None, key: bytes) -> dict[str, Any]:
    """Return the attributes of a queue; ``None``: of the inbox of a key."""
    if queue is not None:
        return {"messaging.destination.name": queue}
    return {
        "messaging.destination.name": shorten(key),
        "messaging.destination.template": "inbox",
    }


def _with_context(
    request: CommitTransaction[Any], context: dict[str, str]
) -> CommitTransaction[Any]:
    replace = msgspec.structs.replace

    def carrying(write: Any) -> Any:
        match write:
            case EnqueueMessage():
                return replace(write, headers=headers_with(context, write.headers, write.value))
            case EnqueueInQueue():
                return replace(write, headers=headers_with(context, write.headers, write.payload))
            case WhenDone():
                return replace(write, enqueue=carrying(write.enqueue))
        return write

    return replace(request, writes=[carrying(each) for each in request.writes])


class _TracedReceive:
    """The answer of a receive, with its span."""

    def __init__(
        self, tracer: trace.Tracer, request: ReapQueue | ClaimQueue, answer: Awaitable[Any]
    ) -> None:
        self._tracer = tracer
        self._request = request
        self._answer = answer
        self._began_at = time.time_ns()

    def __await__(self) -> Generator[Any, Any, Any]:
        answer = yield from self._answer.__await__()
        if answer is not None and answer.messages:
            self._note(answer)
        return answer

    def _note(self, answer: ReapedMessages | Claimed) -> None:
        request = self._request
        queue = request.queue if isinstance(request, ClaimQueue) else None
        key = b"" if isinstance(request, ClaimQueue) else request.key
        attributes = of_messaging("receive", "receive") | of_destination(queue, key)
        attributes["messaging.batch.message_count"] = len(answer.messages)
        span = self._tracer.start_span(
            f"receive {queue or 'inbox'}", kind=SpanKind.CLIENT, attributes=attributes,
            links=links_to(_headers_of(answer)), start_time=self._began_at,
        )  # fmt: skip
        span.end()


def _headers_of(answer: ReapedMessages | Claimed) -> list[Headers]:
    if isinstance(answer, Claimed):
        return [each.headers for each in answer.messages]
    return [_delivered(stored).headers for _, stored in answer.messages[:SPAN_LINKS_MAX]]
