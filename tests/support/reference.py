"""Builds the reference of the Python API from docstrings: 'make reference'.

pdoc, because it needs nothing but the code: no configuration, no theme, no page for each module. It reads Google's
style, follows the names that the package resolves late, and brings one dependency that the project does not have
anyway.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import networkx
import pdoc
from pdoc.render import configure

from speculant_graph.version import VERSION

MODULES = (
    "speculant_graph",
    "speculant_graph.client",
    "speculant_graph.config",
    "speculant_graph.corpus.tokenize",
    "speculant_graph.engines.llama_cpp",
    "speculant_graph.engines.factory",
    "speculant_graph.engines.engine_sessions",
    "speculant_graph.engines.vllm",
    "speculant_graph.errors",
    "speculant_graph.graph.build.builder",
    "speculant_graph.graph.metadata",
    "speculant_graph.serving.access",
    "speculant_graph.strategies",
    "speculant_graph.types",
    "speculant_drafter.server",
    "speculant_verifier.http",
    "speculant_verifier.service.requests",
    "speculant_verifier.results",
)
"""The public names, and what a user would import besides them."""


def build_reference(folder: Path) -> None:
    """Write one page for each module, an index, and what the search needs.

    Args:
        folder: where; it is made if it is not there.
    """
    # Its annotations are generic in the stubs alone, and pdoc resolves annotations.
    generic: Any = networkx.DiGraph
    generic.__class_getitem__ = classmethod(lambda kind, _: kind)
    configure(docformat="google", footer_text=f"speculant-graph {VERSION}")
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    build_reference(target)
    sys.stdout.write(f"{target / 'index.html'}\n")
