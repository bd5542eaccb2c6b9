"""Spans of sessions and administrative calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from speculant_drafter.tracing import OpenTelemetryTracer, open_tracer
from speculant_graph.errors import ConfigError, UnknownGraphError

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
METADATA = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("binary-bin", b"\x00"), ("tracestate", "vendor=value")]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[OpenTelemetryTracer]:
    made = OpenTelemetryTracer(SimpleSpanProcessor(exporter))
    yield made
    made.close()


def test_a_session_is_one_span_of_the_callers_trace(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    tracer.begin_session(7, METADATA, "docs")
    assert exporter.get_finished_spans() == ()
    tracer.end_session(7, steps=3, tokens=40, drafted_nodes=24, end="closed")
    tracer.end_session(8, steps=3)
    (found,) = exporter.get_finished_spans()
    assert (found.name, found.kind.name) == ("session", "SERVER")
    assert found.attributes == {
        "speculant.graph": "docs",
        "speculant.steps": 3,
        "speculant.tokens": 40,
        "speculant.drafted_nodes": 24,
        "speculant.end": "closed",
    }
    assert f"{found.context.trace_id:032x}" == TRACE
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == PARENT
    assert found.context.trace_state.get("vendor") == "value"
    assert found.resource.attributes["service.name"] == "speculant-drafter"


@pytest.mark.parametrize("metadata", [None, [], [("traceparent", "nonsense")], [("traceparent", b"\xff")]])
def test_without_a_sane_parent_a_trace_begins(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter, metadata: Any
) -> None:
    tracer.begin_session(7, metadata, "docs")
    tracer.end_session(7, steps=0)
    (found,) = exporter.get_finished_spans()
    assert found.parent is None


def test_sessions_do_not_become_parts_of_each_other(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    with tracer.admin_call(None, "ReloadGraph"):
        for session_id in (7, 8):
            tracer.begin_session(session_id, None, "docs")
        for session_id in (7, 8):
            tracer.end_session(session_id, steps=0)
    assert {span.parent for span in exporter.get_finished_spans()} == {None}
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 3


def test_an_administrative_call_that_fails_says_so(tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter) -> None:
    with tracer.admin_call(METADATA, "ListGraphs"):
        pass
    with pytest.raises(UnknownGraphError), tracer.admin_call(METADATA, "UnloadGraph"):
        raise UnknownGraphError("there is none")
    listed, unloaded = exporter.get_finished_spans()
    assert (listed.name, listed.status.is_ok) == ("admin/ListGraphs", True)
    assert (unloaded.name, unloaded.status.is_ok) == ("admin/UnloadGraph", False)
    assert f"{unloaded.context.trace_id:032x}" == TRACE


def test_variables_name_the_service_and_a_stop_sends_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
        tracer = open_tracer(True)
        tracer.begin_session(7, None, "docs")
        tracer.end_session(7, steps=1)
        assert received == []
        tracer.close()
    finally:
        server.stop(None).wait()
    (resource_spans,) = received[0].resource_spans
    named = {item.key: item.value.string_value for item in resource_spans.resource.attributes}
    assert named["service.name"] == "mine"
    assert resource_spans.scope_spans[0].spans[0].name == "session"


def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    release = threading.Event()

    class Stuck(SpanProcessor):
        def shutdown(self) -> None:
            release.wait()

    tracer = OpenTelemetryTracer(Stuck(), flush_timeout_s=0.05)
    try:
        tracer.close()  # returns
    finally:
        release.set()


def test_other_ways_to_send_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL must be 'grpc' or unset"):
        open_tracer(True)


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r'server\.tracing: .* pip install "speculant-graph\[tracing\]"'):
        open_tracer(True)


def test_disabled_tracing_does_nothing_and_imports_nothing() -> None:
    code = (
        "import sys\n"
        "from speculant_drafter.tracing import open_tracer\n"
        "tracer = open_tracer(False)\n"
        "tracer.begin_session(7, [], 'docs')\n"
        "tracer.end_session(7, steps=0)\n"
        "with tracer.admin_call(None, 'ListGraphs'): pass\n"
        "tracer.close()\n"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'grpc'))]\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
