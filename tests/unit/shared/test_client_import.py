"""A client imports the wire and the core, but no graphs, no drafters and no settings."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["networkx", "pydantic", "pydantic_settings", "speculant_graph.config", "speculant_graph.corpus"]
HEAVY += ["speculant_graph.draft.session_drafter", "speculant_graph.graph", "tokenizers", "torch"]


def test_a_client_loads_no_graph_and_no_settings() -> None:
    code = "import sys, speculant_graph.client; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(shown.split())
    assert {"grpc", "speculant_graph._core"} <= loaded
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith("speculant_graph.draft")}
