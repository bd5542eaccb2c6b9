"""Promises about the repository itself."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import speculant_graph
from support.configs import KINDS

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def test_public_names_are_the_table() -> None:
    assert sorted(speculant_graph._HOMES) == speculant_graph.__all__
    with pytest.raises(AttributeError):
        speculant_graph.NoSuchName  # noqa: B018


@pytest.mark.parametrize("name", ["speculant_graph", "speculant_drafter", "speculant_verifier"])
def test_packages_have_the_version_of_the_distribution(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__version__ == version("speculant-graph")
    with pytest.raises(AttributeError):
        package.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", ["speculant_graph", "speculant_drafter"])
def test_library_and_drafter_import_no_torch(package: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"import {package} as package\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if not module.name.endswith(('__main__', 'vllm_v2')):\n"
        "        importlib.import_module(module.name)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_setting_is_explained_and_has_a_default() -> None:
    for kind in KINDS.values():
        kind()
        assert kind.__doc__
        for name, field in kind.model_fields.items():
            assert field.description, f"{kind.__name__}.{name}"


def test_no_python_file_is_longer_than_400_lines() -> None:
    for path in tracked_files():
        if path.suffix == ".py" and "_pb2" not in path.name:
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_no_merge_is_half_done() -> None:
    for path in tracked_files():
        if path.suffix in {".py", ".md", ".hpp", ".cpp", ".proto", ".toml", ".yml"}:
            found = re.search(r"^(<{7} |>{7} )", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert found is None, path


def test_few_tests_compare_sentences() -> None:
    """Tests check an error's kind and field. They compare a sentence only if it is a promise, with a comment."""
    kept = 0
    for path in tracked_files():
        lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".py" else []
        for before, line in zip(["", *lines], lines, strict=False):
            if re.search(r"\b(raises|warns)\(.*\bmatch=|^ +\S+, match=", line):
                kept += 1
                assert "promise" in (before + line).lower(), f"{path}: {line.strip()}"
    assert kept <= 20


def test_no_address_of_a_registry_or_hub() -> None:
    halves = [("pypi", r"\.org"), ("python", "hosted"), ("npm", "js"), ("hugging", r"face\.co"), ("docker", r"\.io")]
    pattern = re.compile("|".join(first + second for first, second in halves))  # this file must not match itself
    for path in tracked_files():
        if path.suffix in {".safetensors", ".png", ".bin"}:
            continue
        found = pattern.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found.group()}"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "tests/perf").glob("*.py")), ids=lambda path: path.stem)
def test_perf_scripts_start(path: Path) -> None:
    command = [sys.executable, str(path), "--help"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
