"""Settings and graph files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from speculant_graph.cli.checks.finding import Finding, Identities
from speculant_graph.cli.config import AllSettings
from speculant_graph.settings import DEFAULT_FILE, config_file, load_settings


def check_settings(named: Path | None) -> Iterator[Finding]:
    """Check that the settings file and the environment hold for every section.

    Args:
        named: the file on the command line.

    Raises:
        ConfigError: they do not.
    """
    path = config_file([] if named is None else [f"--config={named}"])
    load_settings(AllSettings, "doctor", [] if path is None else [f"--config={path}"])
    variables = sum(name.upper().startswith("SPECULANT_") for name in os.environ)
    shown = f"{path}" if path else f"no {DEFAULT_FILE} here: defaults"
    also = f", {variables} environment variable{'' if variables == 1 else 's'}" if variables else ""
    yield Finding("settings", "ok", shown + also)


def check_graph(path: Path | None, *, verify: bool, identities: Identities) -> Iterator[Finding]:
    """Check a graph file: its description, or all of it.

    Args:
        path: the file, if one was named.
        verify: read all of it, compare checksums, and prove that arrays fit together.
        identities: takes its tokenizer.

    Raises:
        GraphFileError: it is none, or is damaged.
    """
    if path is None:
        yield Finding("graph", "skip", "not named; --graph-path FILE")
        return
    from speculant_graph.cli.summary import sentence_of
    from speculant_graph.graph.store import load_graph, verify_graph

    graph = verify_graph(path) if verify else load_graph(path)
    identities.add("the graph", graph.metadata.tokenizer)
    checked = "all of it checked" if verify else "description checked; --verify reads all"
    yield Finding("graph", "ok", f"{sentence_of(path, graph)} ({checked})")
