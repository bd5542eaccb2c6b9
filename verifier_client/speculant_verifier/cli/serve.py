"""``speculant verifier``: serves a model with speculative decoding until SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial

from speculant_graph.config import AccessConfig, ServiceConfig, TrainConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import LogFormat, log_to_stderr
from speculant_graph.rpc.addresses import require_addresses, require_port
from speculant_graph.settings import LogLevel, load_settings
from speculant_verifier.cli.decoding_settings import DecodingSettings


class VerifierSettings(DecodingSettings):
    """Serve a model to clients over gRPC and HTTP, with drafts from a sidecar or from a graph in this process.

    SIGTERM or Ctrl-C stops the server cleanly; SIGHUP reloads the access file.
    """

    service: ServiceConfig = ServiceConfig()
    """The service."""
    access: AccessConfig = AccessConfig()
    """Settings that say which clients are permitted. --access FILE is short for --access.file FILE."""
    train: TrainConfig = TrainConfig()
    """Settings for training the draft model on the records, including the number of new failures that starts a
    training."""
    log_level: LogLevel = "INFO"
    """Lowest level of log messages to show on standard error."""
    log_format: LogFormat = "text"
    """Format of log messages: 'text' for people, 'json' for one object per line."""


def run(arguments: Sequence[str]) -> int:
    """Serve until the server has stopped; return the exit status."""
    # Ignore requests to reload the access file until the server has read it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # gRPC's core logs every failed connection; this project logs them itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = load_settings(VerifierSettings, "verifier", arguments)
    log_to_stderr(settings.log_level, settings.log_format)
    from speculant_verifier.sources import require_sources

    require_addresses(settings.service.listen, "service.listen")
    require_addresses(settings.service.admin_listen, "service.admin_listen")
    require_port(settings.service.http, "service.http")
    require_sources(settings.verifier, settings.graph_path, settings.client)
    _ = settings.suited_draft  # raises for incompatible settings
    if settings.train.min_failures and not (settings.draft_model.name and settings.record.folder):
        raise ConfigError(
            "train.min_failures trains a draft model on records; set --draft-model and --record, or leave it out"
        )
    from speculant_graph.serving.process import serve_until_stopped
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.service.learning import Learning
    from speculant_verifier.service.server import VerifierServer

    def make_learning(decoder: SpeculativeDecoder) -> Learning:
        return Learning(decoder, settings.draft_model, settings.record, settings.train)

    def make_server() -> VerifierServer:
        return VerifierServer(
            settings.service,
            settings.generation,
            partial(settings.open_decoder, require_same_tokenizer=False),
            settings.verifier.max_batch_size,
            make_learning if settings.train.min_failures else None,
            settings.access,
        )

    serve_until_stopped(make_server, "verifier")
    return 0
