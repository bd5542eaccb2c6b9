"""What a verifier with a model and nothing to do says of itself."""

from __future__ import annotations

from functools import cache

from speculant_graph.config import ServiceConfig
from speculant_verifier.load import Load
from speculant_verifier.service.metrics import render_metrics
from support.http_api import tiny_decoder


@cache
def verifier_metrics() -> str:
    """Return the metrics in Prometheus' text format."""
    with tiny_decoder() as decoder:
        return render_metrics(decoder, Load(ServiceConfig(), decoder.verifier_config.max_batch_size), {}).decode()
