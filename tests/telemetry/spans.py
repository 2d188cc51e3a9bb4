"""The spans that an instrumented harbor makes, in memory."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that have ended, in that order."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self, operation: str | None = None) -> list[ReadableSpan]:
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if operation is None or span.name.split()[0] == operation]

    def one(self, operation: str) -> ReadableSpan:
        [span] = self.all(operation)
        return span

    @property
    def current(self) -> trace.Tracer:
        return self.provider.get_tracer("test")
