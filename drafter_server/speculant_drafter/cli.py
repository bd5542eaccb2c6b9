"""``speculant drafter``: serve a graph as a sidecar until SIGTERM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import CommandSettings, load_settings


class DrafterSettings(CommandSettings):
    """Serve a graph to verifiers over gRPC. Stops cleanly on SIGTERM or Ctrl-C."""

    server: ServerConfig = ServerConfig()
    """The service."""
    draft: DraftConfig = DraftConfig()
    """What a request that names no strategy gets."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe messages to show, on standard error."""


def run(arguments: Sequence[str]) -> int:
    """Serve; returns when the server has stopped."""
    settings = load_settings(DrafterSettings, "drafter", arguments)
    log_to_stderr(settings.log_level)
    from speculant_drafter.server import run_server

    return run_server(settings.server, settings.draft)
