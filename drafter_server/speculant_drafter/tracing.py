"""Traces: one span per session and one per administrative call, never one per step, which would cost as much as it.

Without ``server.tracing`` nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from speculant_graph.errors import ConfigError
from speculant_graph.extras import missing_extra

Metadata = Iterable[tuple[str, str | bytes]]
"""Metadata of a call, as ``ServicerContext.invocation_metadata()`` returns it."""


class SessionSpan(Protocol):
    """The span of an open session."""

    def end(self, *, steps: int, tokens: int, drafted_nodes: int, reason: str) -> None:
        """End it.

        Args:
            steps: steps that it had.
            tokens: tokens that it took.
            drafted_nodes: nodes that were drafted for it.
            reason: why it ended, a :data:`speculant_drafter.counts.SessionEnd`.
        """


class Tracer(Protocol):
    """Makes spans."""

    def begin_session(self, metadata: Metadata | None, graph: str) -> SessionSpan:
        """Begin the span of a session.

        Args:
            metadata: of the call that opened it; ``traceparent`` in it names the span it is part of.
            graph: name of its graph.
        """

    def admin_call(self, metadata: Metadata | None, method: str) -> AbstractContextManager[object]:
        """Return a context whose time is the span of an administrative call; errors that leave it are noted."""

    def close(self) -> None:
        """Send what is left and stop. Blocks for seconds if the collector does not answer; call it in a thread."""


class _NoSpan:
    def end(self, *, steps: int, tokens: int, drafted_nodes: int, reason: str) -> None:
        pass


class _NoTracer:
    def begin_session(self, metadata: Metadata | None, graph: str) -> SessionSpan:
        return _NO_SPAN

    def admin_call(self, metadata: Metadata | None, method: str) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        pass


_NO_SPAN = _NoSpan()


def open_tracer(is_enabled: bool) -> Tracer:
    """Return what makes spans: nothing, or OpenTelemetry as its own variables (OTEL_...) set it up.

    Args:
        is_enabled: ``server.tracing``.

    Raises:
        ConfigError: OpenTelemetry is not installed, or its variables ask for what is not supported.
    """
    if not is_enabled:
        return _NoTracer()
    try:
        from speculant_drafter.otel_tracing import OpenTelemetryTracer, processor_from_environment
    except ModuleNotFoundError as error:
        explained = missing_extra(error, "tracing")
        if explained is None:
            raise
        raise ConfigError(f"server.tracing: {explained}") from error
    return OpenTelemetryTracer(processor_from_environment())
