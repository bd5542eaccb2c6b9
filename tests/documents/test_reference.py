"""The reference of the Python API: every public name explains itself, and is in it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap

import pytest

import speculant_graph
from speculant_graph.config import Config
from support.pages import ROOT, all_blocks, pages, read_page
from support.reference import MODULES

GENERATED = ".rpc.v1"


def members(module):
    """Yield the public names of a module that are its own or that it exports, with what they are."""
    names = getattr(module, "__all__", None)
    for name in names or [name for name in vars(module) if not name.startswith("_")]:
        value = getattr(module, name)
        is_own = names is not None or getattr(value, "__module__", "") == module.__name__
        if is_own and (inspect.isclass(value) or inspect.isfunction(value)):
            yield f"{module.__name__}.{name}", value


def callables(module):
    """Yield functions, methods and constructors of a module's public names."""
    for name, value in members(module):
        if inspect.isfunction(value):
            yield name, value
            continue
        for method, function in vars(value).items():
            function = getattr(function, "__func__", function)
            is_generated = "__dataclass_fields__" in vars(value)
            is_shown = (method == "__init__" and not is_generated) or not method.startswith("_")
            if is_shown and inspect.isfunction(function) and function.__qualname__.startswith(value.__qualname__):
                yield f"{name}.{method}", function


def parameters(function):
    """Return the names of the parameters that a caller gives."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls", "return") and not name.startswith("_")]


def raises_ours(function):
    """Return whether it raises an error of the library's by itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id.endswith("Error") for call in raised)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_explains_itself(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for path, value in members(module):
        assert value.__doc__, path
        if inspect.isclass(value) and issubclass(value, Config):
            assert all(field.description for field in value.model_fields.values()), path
    for path, function in callables(module):
        text, given = function.__doc__ or "", parameters(function)
        assert text or not given, f"{path} has no docstring"
        described = set(re.findall(r"^\s+\*{0,2}(\w+):", text.partition("Args:")[2], re.MULTILINE))
        if "Args:" in text:
            assert set(given) <= described, f"{path}: Args has no {sorted(set(given) - described)}"
        else:
            assert len(given) < 3, f"{path}: say what {given} are, below Args"
        if raises_ours(function):
            assert "Raises:" in text, f"{path}: say what it raises"


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
