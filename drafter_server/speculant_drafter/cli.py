"""``speculant drafter``: serve graphs as a sidecar until SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from speculant_graph.config import AccessConfig, FoldConfig, NgramDraftConfig, ServerConfig
from speculant_graph.log import LogFormat, log_to_stderr
from speculant_graph.rpc.addresses import require_addresses, require_port
from speculant_graph.settings import CommandSettings, LogLevel, load_settings
from speculant_graph.strategies import NGRAM_STRATEGIES


class DrafterSettings(CommandSettings):
    """Serve graphs to verifiers over gRPC.

    The sidecar stops cleanly on SIGTERM or Ctrl-C, and reloads its graphs and access file on SIGHUP.
    """

    server: ServerConfig = ServerConfig()
    """Addresses that the sidecar listens on, and graphs that it serves."""
    access: AccessConfig = AccessConfig()
    """Clients that may use the sidecar, and its TLS certificates. --access FILE is short for --access.file FILE."""
    draft: NgramDraftConfig = NgramDraftConfig()
    """Draft settings that apply unless a request sets its own."""
    fold: FoldConfig = FoldConfig()
    """How accepted text in the folder 'server.learned' is folded into graph files."""
    log_level: LogLevel = "INFO"
    """Lowest severity of the log messages that are written to standard error."""
    log_format: LogFormat = "text"
    """Format of log messages: 'text' for people, or 'json' for one JSON object per line."""


def run(arguments: Sequence[str]) -> int:
    """Run the server until it stops."""
    # A reload request before the first load needs no action.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # gRPC's core logs every failed connection; our messages already report the important failures.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = load_settings(DrafterSettings, "drafter", arguments)
    log_to_stderr(settings.log_level, settings.log_format)
    server = settings.server
    require_addresses(server.listen, "server.listen")
    require_addresses(server.admin_listen, "server.admin_listen")
    require_port(server.metrics_listen, "server.metrics_listen")
    from speculant_drafter.server import DrafterServer
    from speculant_graph.draft.options import warn_of_unread
    from speculant_graph.serving.process import serve_until_stopped

    warn_of_unread(settings.draft, NGRAM_STRATEGIES)  # requests may choose any of these strategies
    serve_until_stopped(lambda: DrafterServer(server, settings.draft, settings.access, fold=settings.fold), "drafter")
    return 0
