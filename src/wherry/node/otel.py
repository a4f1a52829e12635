"""Spans of OpenTelemetry: the only module that imports it, and only if traces are configured (`wherry[otel]`)."""

from __future__ import annotations

from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from wherry.broker.metrics.tracing import TRACEPARENT, TRACESTATE, TraceSpan

KIND_OF = {"publish": SpanKind.PRODUCER, "deliver": SpanKind.CONSUMER}


class OtelTracer:
    """Records spans with a provider, none for a message whose context is not sampled or cannot be parsed."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("wherry", version("wherry"))
        self._context = TraceContextTextMapPropagator()

    def span(self, span: TraceSpan) -> None:
        """See `Tracer`."""
        context = self._context.extract({TRACEPARENT: span.parent.traceparent, TRACESTATE: span.parent.tracestate})
        if not context:
            return
        made = self._tracer.start_span(
            span.name,
            context,
            KIND_OF.get(span.name.partition(" ")[0], SpanKind.INTERNAL),
            dict(span.attributes),
            start_time=span.start_us * 1_000,
        )
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(max(span.start_us, span.end_us) * 1_000)


def exporting(endpoint: str | None) -> TracerProvider:
    """Return a provider that sends spans to a collector in the background, by default to that of `OTEL_…`."""
    provider = TracerProvider(resource=Resource.create({"service.name": "wherry"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider
