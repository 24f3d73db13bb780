"""A tracer whose spans are kept in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that have ended, by the provider to give to ``instrument``."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name, the first one first."""
        return [each for each in self._exporter.get_finished_spans() if each.name == name]

    def only(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        found = self.named(name)
        assert len(found) == 1, [each.name for each in self._exporter.get_finished_spans()]
        return found[0]

    def clear(self) -> None:
        """Forget all spans."""
        self._exporter.clear()


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    return [each.context.span_id for each in span.links]
