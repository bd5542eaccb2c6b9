"""No adapter loads an engine, torch or the wire before it is used, and none is long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import speculant_graph.engines

_FOLDER = Path(speculant_graph.engines.__file__).parent
_ADAPTERS = ("llama_cpp", "sglang", "vllm")


@pytest.mark.parametrize("adapter", _ADAPTERS)
def test_an_adapter_loads_no_engine(adapter: str) -> None:
    program = (
        f"import sys, speculant_graph.engines.{adapter}; "
        "print(sorted({'grpc', 'llama_cpp', 'sglang', 'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"


@pytest.mark.parametrize("adapter", [*_ADAPTERS, "sglang_worker"])
def test_an_adapter_is_short(adapter: str) -> None:
    assert len((_FOLDER / f"{adapter}.py").read_text(encoding="utf-8").splitlines()) <= 200
