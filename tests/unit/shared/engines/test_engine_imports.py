"""No adapter loads an engine, torch or the wire before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ADAPTERS = ("llama_cpp", "sglang", "vllm")


@pytest.mark.parametrize("adapter", _ADAPTERS)
def test_an_adapter_loads_no_engine(adapter: str) -> None:
    program = (
        f"import sys, speculant_graph.engines.{adapter}; "
        "print(sorted({'grpc', 'llama_cpp', 'sglang', 'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"
