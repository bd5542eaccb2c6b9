"""Fixtures: small tokenizers for tests that read text, and the library's warnings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = "<|startoftext|>", "<|endoftext|>"

SAMPLE_TEXT = """The parties agree to the terms.

def sample(value):
    return value + 1


The agreement ends when the parties agree.
A termination clause ends the agreement /
/ and the termination of the terms.
"""


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a byte-level BPE tokenizer and returns its folder."""

    def make(*, wraps: bool = True, vocabulary_size: int = 320) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=[BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator([SAMPLE_TEXT] * 4, trainer)
        tokenizer.save(str(folder / "tokenizer.json"))
        flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
        bos_token = {"__type": "AddedToken", "content": BOS, **flags}
        config: dict[str, object] = {"bos_token": bos_token, "eos_token": EOS} if wraps else {"bos_token": None}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def tokenizer_folder(make_tokenizer: Callable[..., Path]) -> Path:
    """Return the folder of a tokenizer with BOS and EOS."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def plain_tokenizer_folder(make_tokenizer: Callable[..., Path]) -> Path:
    """Return the folder of a tokenizer without BOS and EOS."""
    return make_tokenizer(wraps=False)


@pytest.fixture
def sample_text() -> str:
    """Return the text that the tokenizers were trained on."""
    return SAMPLE_TEXT
