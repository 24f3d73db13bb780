"""The context of a span in the headers of messages, and the links to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from postroom.errors import Invalid
from postroom.limits import (
    CONTEXT_CHARACTERS_MAX,
    HEADERS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    SPAN_LINKS_MAX,
)
from postroom.ranges.checks import Headers, has_headers, packed_bytes, unpacked


def headers_with(context: Mapping[str, str], headers: Headers, payload: bytes) -> Headers:
    """Return headers with a context, or as they are if they have one, or no room for it."""
    given = unpacked(headers) if has_headers(headers) else {}
    if not context.keys().isdisjoint(given):
        return headers  # the application has set one, which its receivers expect
    both = {**given, **context}
    size = packed_bytes(both)
    if size > HEADERS_BYTES_MAX or size + len(payload) > MESSAGE_BYTES_MAX:
        return headers
    return both


def context_of(span: trace.Span) -> dict[str, str]:
    """Return the context of a span as headers; the current baggage goes with it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def links_to(messages: Iterable[Headers]) -> list[trace.Link]:
    """Return links to the senders of messages that tell a context, up to ``SPAN_LINKS_MAX``."""
    found = map(_sender_of, islice(messages, SPAN_LINKS_MAX))
    return [trace.Link(each) for each in found if each.is_valid]


def _sender_of(headers: Headers) -> trace.SpanContext:
    context = propagate.extract(_carrier(headers), Context())
    return trace.get_current_span(context).get_span_context()


def _carrier(headers: Headers) -> dict[str, Any]:
    if not has_headers(headers):
        return {}
    try:
        given = unpacked(headers)
    except Invalid:
        return {}
    return {
        name: content
        for name, content in given.items()
        if isinstance(content, str) and len(content) <= CONTEXT_CHARACTERS_MAX
    }
