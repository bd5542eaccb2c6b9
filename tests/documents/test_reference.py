"""The reference of the Python API has what pages import, and is built without a warning."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import speculant_graph
from support.pages import ROOT, all_blocks, pages, read_page
from support.reference import MODULES

GENERATED = ".rpc.v1"


def test_what_pages_import_is_in_it():
    for page in pages():
        for block in all_blocks(read_page(page)):
            if block.language != "python":
                continue
            for node in ast.walk(ast.parse(block.body)):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                if module and module.startswith("speculant_") and GENERATED not in module:
                    assert module in MODULES, f"{page}: {module}"


@pytest.mark.slow
def test_it_is_built_without_a_warning(tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:pdoc", "-m", "support.reference", str(tmp_path / "reference")],
        cwd=ROOT / "tests", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Warn" not in result.stdout + result.stderr, result.stderr
    folder = tmp_path / "reference"
    main = (folder / "speculant_graph.html").read_text(encoding="utf-8")
    for name in speculant_graph.__all__:
        assert f'id="{name}"' in main, name
    for module in MODULES:
        assert (folder / (module.replace(".", "/") + ".html")).is_file()
