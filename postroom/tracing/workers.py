"""The spans *process* of a worker's functions, each linked to the senders of its messages.

A span is current while the function runs, also in a thread, and while its transaction commits.
Thus all that the function does is below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from postroom.client.queues.messages import QueueMessage
from postroom.client.values import Message
from postroom.client.worker.calling import MakeContext
from postroom.tracing.context import links_to
from postroom.tracing.sender import of_destination, of_messaging


def process_spans(tracer: trace.Tracer) -> MakeContext:
    """Return a function that makes the span of a call with messages."""

    def span(
        messages: Sequence[QueueMessage | Message],
    ) -> AbstractContextManager[trace.Span]:
        first = messages[0]
        queue = first.queue if isinstance(first, QueueMessage) else None
        attributes = of_messaging("process", "process") | of_destination(queue, first.key)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = str(first.id)
        return tracer.start_as_current_span(
            f"process {queue or 'inbox'}", kind=SpanKind.CONSUMER, attributes=attributes,
            links=links_to(each.headers for each in messages),
        )  # fmt: skip

    return span
