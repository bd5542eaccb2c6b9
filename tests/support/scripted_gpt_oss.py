"""A server process with a tiny gpt-oss that writes scripted output.

The released tokenizer and chat template are real, and the engine computes every logit; the script only chooses tokens.
A user's message is the script: ``@@CALL:name {"key": 1}@@`` calls a tool, ``@@SAY:text@@`` is the final message, and
``@@RAW:...@@`` is written verbatim. The number of tool results after that message selects the next command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import Verifier, running_verifier

MODEL = "gpt-oss-scripted"
CONTEXT = 131_072
IDLE_ANSWER = "Nothing to do."

_PROGRAM = """
import sys
from support.scripted_gpt_oss import follow_script
from speculant_verifier.cli.serve import run
follow_script()
sys.exit(run(sys.argv[2:]))
"""
_DIRECTIVE = re.compile(r"@@(CALL|SAY|RAW):(.*?)@@", re.DOTALL)
_THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"


def written(prompt: str) -> str:
    """Return the model's scripted output after a prompt.

    Args:
        prompt: the prompt, with its control tokens.
    """
    turns = prompt.split("<|start|>")
    users = [i for i, turn in enumerate(turns) if turn.startswith("user") and _DIRECTIVE.search(turn)]
    if not users:
        return _said(IDLE_ANSWER)
    directives = _DIRECTIVE.findall(turns[users[-1]])
    # Programs that ask for a title send the message without tools.
    if "namespace functions" not in prompt:
        directives = [each for each in directives if each[0] != "CALL"]
    num_results = sum(not turn.startswith(("assistant", "user", "system", "developer")) for turn in turns[users[-1] :])
    kind, text = directives[min(num_results, len(directives) - 1)] if directives else ("SAY", IDLE_ANSWER)
    if kind == "RAW":
        return str(text)
    if kind == "SAY":
        return _said(text)
    name, _, arguments = text.partition(" ")
    return (
        f"{_THOUGHT}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments.strip()}<|call|>"
    )


def _said(text: str) -> str:
    return f"{_THOUGHT}<|channel|>final<|message|>{text}<|return|>"


def follow_script() -> None:
    """Make the engine of this process choose the script's tokens."""
    from dataclasses import replace

    from speculant_verifier.engine import Engine, Request
    from speculant_verifier.model import TargetModel
    from speculant_verifier.rules import teacher_forced

    holder: list[TargetModel] = []
    make, add = Engine.__init__, Engine.add

    def made(self: Engine, target: TargetModel, *arguments: object, **options: object) -> None:
        holder[:] = [target]
        make(self, target, *arguments, **options)  # type: ignore[arg-type]

    def scripted(self: Engine, request: Request, *arguments: object) -> object:
        tokenizer = holder[0].tokenizer
        text = written(tokenizer.decode(request.prompt, skip_special_tokens=False))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return add(self, replace(request, wrap_target=teacher_forced(tokens)), *arguments)  # type: ignore[arg-type]

    Engine.__init__ = made  # type: ignore[method-assign]
    Engine.add = scripted  # type: ignore[method-assign, assignment]


def model_folder(folder: Path) -> Path:
    """Write a tiny gpt-oss with the released tokenizer and chat template into a folder, and return it."""
    data = os.environ.get("SPECULANT_DATA")
    released = Path(data or "") / "gpt-oss-tokenizer"
    if not data or not released.is_dir():
        pytest.skip("SPECULANT_DATA names no folder with the released tokenizer")
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=201_088,
        hidden_size=16,
        intermediate_size=16,
        head_dim=16,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_hidden_layers=2,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=128,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    path = folder / MODEL
    GptOssForCausalLM(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        shutil.copyfile(released / name, path / name)
    ends = {"eos_token_id": [200_002, 199_999, 200_012], "pad_token_id": 199_999}
    (path / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return path


@contextmanager
def running_scripted(folder: Path, *arguments: str) -> Iterator[Verifier]:
    """Serve the model in a separate process, on a free port; ``arguments`` extend its command line."""
    support = Path(__file__).parents[1]
    program = ("-c", f"import sys; sys.path.insert(0, {str(support)!r})\n{_PROGRAM}", "verifier")
    with running_verifier(folder, *arguments, program=program, model=model_folder(folder)) as verifier:
        yield verifier
