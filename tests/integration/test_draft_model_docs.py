"""docs/draft-model.md: every block is run as a reader would run it, in order, with tiny checkpoints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.pages import all_blocks, read_page
from support.processes import READY_TIMEOUT_S
from support.tiny_models import tiny_model

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
QUICKLY = {
    "SPECULANT_VERIFIER__MEASURE_COSTS": "false",
    "SPECULANT_VERIFIER__NUM_THREADS": "1",
    "SPECULANT_GENERATION__IGNORE_END_TOKENS": "true",
    "SPECULANT_TRAIN__LEARNING_RATE": "0.04",
    "SPECULANT_TRAIN__EPOCHS": "24",
    "SPECULANT_SERVICE__HTTP": "127.0.0.1:0",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the page calls my-model, my-draft-model and prompts.txt."""
    for name, model in (
        ("my-model", tiny_model("llama", num_layers=24)),
        ("my-draft-model", tiny_model("llama", seed=1)),
    ):
        model.model.save_pretrained(tmp_path / name)
        model.tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("The parties agree\n" * 12, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_the_page_can_be_followed(folder: Path) -> None:
    environment = os.environ | QUICKLY | {"SPECULANT_SERVICE__LISTEN": f"unix://{folder}/verifier.sock"}
    printed = ""
    for block in all_blocks(read_page("docs/draft-model.md")):
        program = {"bash": ["bash", "-e", "-c"], "python": [sys.executable, "-c"]}[block.language]
        body = re.sub(r"(^|\| )speculant ", rf"\1{sys.executable} -m speculant ", block.body, flags=re.MULTILINE)
        if block.first_line.startswith("speculant verifier"):
            serve(f"exec {body}", folder, environment)
            continue
        run = subprocess.run([*program, body], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, block.body + run.stdout + run.stderr
        printed += run.stdout + run.stderr
    assert "recorded: 12 requests, " in printed
    assert "gate: tokens a pass" in printed
    assert "adapter adapter, sha256" in printed


def serve(command: str, folder: Path, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        started_s = time.monotonic()
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "verifier ready" in line:
                break
            assert time.monotonic() - started_s < READY_TIMEOUT_S
        assert "verifier ready" in lines[-1], lines
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_TIMEOUT_S) == 0
