"""Supported and unsupported models, and the fingerprints of their tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import Gemma2Config, GPT2Config, GPTJConfig, PreTrainedConfig

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import TargetModel
from support.drafters import ScriptedDrafter, knowing
from support.tiny_models import byte_tokenizer

SMALL = {"vocab_size": 258, "bos_token_id": None, "eos_token_id": None}


@pytest.mark.parametrize(
    "config",
    [
        GPTJConfig(n_embd=32, n_layer=1, n_head=2, n_positions=64, rotary_dim=8, **SMALL),
        Gemma2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                     intermediate_size=32, head_dim=16, pad_token_id=None, **SMALL),
    ],
)  # fmt: skip
def test_models_that_would_be_verified_wrongly_are_refused(config: PreTrainedConfig) -> None:
    with pytest.raises(ConfigError):
        TargetModel(Auto.from_config(config), byte_tokenizer(), "tiny")


def test_padding_near_the_longest_context_of_learned_positions() -> None:
    """A row at its limit is padded to the width of a drafting row; the padding must not use invalid positions."""
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, initializer_range=0.3, **SMALL)
    target = TargetModel(Auto.from_config(config), byte_tokenizer(), "tiny-gpt2")
    settings = GenerationConfig(max_tokens=28, ignore_end_tokens=True)
    prompts = [list(range(30)), [5, 6]]

    def decode(drafter: ScriptedDrafter, rows: int) -> dict[int, list[int]]:
        outputs = Engine(target, drafter, VerifierConfig(max_batch_size=rows), DraftConfig(k=8)).run(
            [Request(index, tuple(prompt), settings) for index, prompt in enumerate(prompts)]
        )
        return {e.sequence.index: e.sequence.token_ids for e in outputs if e.finish_reason}

    plain = decode(ScriptedDrafter(knowing([], 1.0, 258)), 1)
    assert decode(ScriptedDrafter(knowing(list(plain.values()), 1.0, 258)), 2) == plain
    assert len(plain[0]) == 32


def test_a_folder_has_one_fingerprint_whatever_transformers_adds(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_FOLDER, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"pad_token": "<|filler|>"}  # in no other file
    path.write_text(json.dumps(config), encoding="utf-8")
    target = TargetModel.load(VerifierConfig(model_name=str(folder), num_threads=1))
    assert "<|filler|>" in target.tokenizer.get_vocab()
    assert target.fingerprint.sha256 == CorpusTokenizer.load(folder).fingerprint.sha256
