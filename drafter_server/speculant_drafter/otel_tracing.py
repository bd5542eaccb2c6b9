"""Spans by OpenTelemetry, in a provider of our own: the process's global one stays untouched."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

from loguru import logger
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from speculant_drafter.tracing import Metadata, SessionSpan
from speculant_graph.errors import ConfigError
from speculant_graph.version import VERSION

_SUPPORTED = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
}

_FLUSH_TIMEOUT_S = 2.0


def processor_from_environment() -> SpanProcessor:
    """Return what sends spans in batches to the collector that the OTEL_... variables name.

    Raises:
        ConfigError: they ask for another exporter or protocol than OTLP over gRPC.
    """
    for variable, supported in _SUPPORTED.items():
        if os.environ.get(variable, supported) != supported:
            raise ConfigError(f"{variable} must be '{supported}' or unset; other ways to send traces are not supported")
    try:
        return BatchSpanProcessor(OTLPSpanExporter())
    except (ValueError, OSError) as error:
        raise ConfigError("server.tracing: OpenTelemetry does not take its OTEL_... variables; check them") from error


class _OpenTelemetrySpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, *, steps: int, tokens: int, drafted_nodes: int, reason: str) -> None:
        self._span.set_attributes(
            {
                "speculant.steps": steps,
                "speculant.tokens": tokens,
                "speculant.drafted_nodes": drafted_nodes,
                "speculant.end": reason,
            }
        )
        self._span.end()


class OpenTelemetryTracer:
    """See :class:`speculant_drafter.tracing.Tracer`."""

    def __init__(self, processor: SpanProcessor, *, flush_timeout_s: float = _FLUSH_TIMEOUT_S) -> None:
        """Make a tracer.

        Args:
            processor: where ended spans go.
            flush_timeout_s: longest that :meth:`close` waits for the collector.
        """
        self._flush_timeout_s = flush_timeout_s
        own = Resource.create({"service.name": "speculant-drafter", "service.version": VERSION})
        # What the variables say comes last, so that it wins.
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("speculant_drafter", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def begin_session(self, metadata: Metadata | None, graph: str) -> SessionSpan:
        """See the protocol."""
        span = self._tracer.start_span(
            "session", self._parent(metadata), SpanKind.SERVER, attributes={"speculant.graph": graph}
        )
        return _OpenTelemetrySpan(span)

    def admin_call(self, metadata: Metadata | None, method: str) -> AbstractContextManager[object]:
        """See the protocol."""
        attributes = {"rpc.system": "grpc", "rpc.method": method}
        return self._tracer.start_as_current_span(
            f"admin/{method}", self._parent(metadata), SpanKind.SERVER, attributes=attributes
        )

    def close(self) -> None:
        """See the protocol."""
        # The library would try for a quarter of a minute, longer than a service has to stop.
        flush = threading.Thread(target=self._provider.shutdown, name="flush-spans", daemon=True)
        flush.start()
        flush.join(self._flush_timeout_s)
        if flush.is_alive():
            logger.warning("the collector of traces does not answer: the latest spans are lost")

    def _parent(self, metadata: Metadata | None) -> Context:
        carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
        return self._propagator.extract(carrier, Context())
