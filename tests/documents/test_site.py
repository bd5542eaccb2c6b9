"""The site has every page, and its reference has all names that the package exports and pages import."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
from types import ModuleType

import pytest
import yaml

import speculant_graph
from support.pages import ROOT, all_blocks, pages, read_page

GENERATED = ".rpc.v1"
HOOK = (ROOT / "docs/site/hook.py").read_text(encoding="utf-8")
REFERENCE: dict[str, tuple[str, ...]] = ast.literal_eval(HOOK.partition("\nREFERENCE = ")[2].partition("\n}")[0] + "}")
NAMES = [name for names in REFERENCE.values() for name in names]


class _Loader(yaml.SafeLoader):
    """A YAML loader for mkdocs.yml, which names a function."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_navigation_leads_to_every_page() -> None:
    text = str(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"])
    assert "index.md" in text
    for page in {*pages(), "ARCHITECTURE.md", "CHANGELOG.md"} - {"README.md", "docs/README.md"}:
        assert f"'{page.removeprefix('docs/')}'" in text, page
    for example in ROOT.glob("examples/*.py"):
        assert f"'examples/{example.stem}.md'" in text


def test_reference_has_every_public_name_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for name, home in speculant_graph._HOMES.items():
        assert (f"speculant_graph.{name}" in NAMES) != (home in NAMES), name


def test_reference_names_what_exists() -> None:
    for name in NAMES:
        owner, _, last = name.rpartition(".")
        there = getattr(importlib.import_module(owner), last, None)
        assert there is not None or isinstance(importlib.import_module(name), ModuleType)


def test_reference_has_what_pages_import() -> None:
    for page in pages():
        for block in all_blocks(read_page(page)):
            for node in ast.walk(ast.parse(block.body)) if block.language == "python" else ():
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                if module.startswith("speculant_") and GENERATED not in module:
                    named = {f"{module}.{each.name}" for each in node.names}
                    assert module in NAMES or named <= set(NAMES), f"{page}: {named}"


@pytest.mark.slow
def test_site_is_built_and_loads_nothing_from_elsewhere() -> None:
    mkdocs = ROOT / ".cache/docs/bin/mkdocs"
    if not mkdocs.exists() or shutil.which("make") is None:
        pytest.skip("'make check' installs what builds it")
    subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    site = ROOT / ".cache/site"
    for path in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r'(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)="?(?:https?:)?//[^"\s>]*|url\(.?https?:', text
        )
        assert not loaded, f"{path}: {loaded}"
        assert ":::" not in text, path
