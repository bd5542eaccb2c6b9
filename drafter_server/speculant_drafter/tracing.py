"""Traces: one span per session and one per administrative call, never one per step, which would cost as much as it.

Without ``server.tracing`` nothing of OpenTelemetry is imported. Its provider is our own: the process's global one stays
untouched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from loguru import logger

from speculant_graph.errors import ConfigError
from speculant_graph.extras import missing_extra
from speculant_graph.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

Metadata = Iterable[tuple[str, str | bytes]]
"""Metadata of a call, as ``ServicerContext.invocation_metadata()`` returns it."""

_FLUSH_TIMEOUT_S = 2.0


class Tracer:
    """Makes no spans."""

    def begin_session(self, session_id: int, metadata: Metadata | None, graph: str) -> None:
        """Begin the span of a session.

        Args:
            session_id: the session.
            metadata: of the call that opened it; ``traceparent`` in it names the span it is part of.
            graph: name of its graph.
        """

    def end_session(self, session_id: int, **facts: int | str) -> None:
        """End the span of a session.

        Args:
            session_id: the session.
            facts: what became of it.
        """

    def admin_call(self, metadata: Metadata | None, method: str) -> AbstractContextManager[object]:
        """Return a context whose time is the span of an administrative call; errors that leave it are noted."""
        return nullcontext()

    def close(self) -> None:
        """Send what is left and stop. Blocks for seconds if the collector does not answer; call it in a thread."""


class OpenTelemetryTracer(Tracer):
    """Makes spans."""

    def __init__(self, processor: SpanProcessor, *, flush_timeout_s: float = _FLUSH_TIMEOUT_S) -> None:
        """Make a tracer.

        Args:
            processor: where ended spans go.
            flush_timeout_s: longest that :meth:`close` waits for the collector.
        """
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._flush_timeout_s = flush_timeout_s
        own = Resource.create({"service.name": "speculant-drafter", "service.version": VERSION})
        # The variables come last, so that they win.
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("speculant_drafter", VERSION)
        self._sessions: dict[int, Span] = {}

    def begin_session(self, session_id: int, metadata: Metadata | None, graph: str) -> None:  # noqa: D102
        from opentelemetry.trace import SpanKind

        self._sessions[session_id] = self._tracer.start_span(
            "session", _parent(metadata), SpanKind.SERVER, attributes={"speculant.graph": graph}
        )

    def end_session(self, session_id: int, **facts: int | str) -> None:  # noqa: D102
        span = self._sessions.pop(session_id, None)
        if span is not None:
            span.set_attributes({f"speculant.{name}": fact for name, fact in facts.items()})
            span.end()

    def admin_call(self, metadata: Metadata | None, method: str) -> AbstractContextManager[object]:  # noqa: D102
        from opentelemetry.trace import SpanKind

        attributes = {"rpc.system": "grpc", "rpc.method": method}
        return self._tracer.start_as_current_span(
            f"admin/{method}", _parent(metadata), SpanKind.SERVER, attributes=attributes
        )

    def close(self) -> None:  # noqa: D102
        # The library would try for a quarter of a minute, longer than a service has to stop.
        flush = threading.Thread(target=self._provider.shutdown, name="flush-spans", daemon=True)
        flush.start()
        flush.join(self._flush_timeout_s)
        if flush.is_alive():
            logger.warning("the collector of traces does not answer: the latest spans are lost")


def open_tracer(is_enabled: bool) -> Tracer:
    """Return what makes spans: nothing, or OpenTelemetry as its own variables (OTEL_...) set it up.

    Args:
        is_enabled: ``server.tracing``.

    Raises:
        ConfigError: OpenTelemetry is not installed, or its variables select another protocol than gRPC.
    """
    if not is_enabled:
        return Tracer()
    for variable in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        if os.environ.get(variable, "grpc") != "grpc":
            raise ConfigError(f"{variable} must be 'grpc' or unset; other protocols are not supported")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return OpenTelemetryTracer(BatchSpanProcessor(OTLPSpanExporter()))
    except ModuleNotFoundError as error:
        explained = missing_extra(error, "tracing")
        if explained is None:
            raise
        raise ConfigError(f"server.tracing: {explained}") from error
    except (ValueError, OSError) as error:
        raise ConfigError("server.tracing: OpenTelemetry does not take its OTEL_... variables; check them") from error


def _parent(metadata: Metadata | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    return TraceContextTextMapPropagator().extract(carrier, Context())
