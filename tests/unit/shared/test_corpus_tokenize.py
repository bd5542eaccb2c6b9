"""Tokenizers of a corpus and their fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from speculant_graph.corpus.tokenize import CorpusTokenizer, fingerprint_of
from speculant_graph.errors import ConfigError


def test_fingerprint_is_that_of_the_text_s_meaning(
    tokenizer_folder: Path, plain_tokenizer_folder: Path, make_tokenizer: Callable[..., Path]
) -> None:
    fingerprint = CorpusTokenizer.load(tokenizer_folder).fingerprint
    assert fingerprint.name == str(tokenizer_folder)
    assert CorpusTokenizer.load(tokenizer_folder).revision == ""
    assert fingerprint.vocabulary_size == 320
    assert len(bytes.fromhex(fingerprint.sha256)) == 32
    assert CorpusTokenizer.load(plain_tokenizer_folder).fingerprint.sha256 == fingerprint.sha256
    other = make_tokenizer(vocabulary_size=300)
    assert CorpusTokenizer.load(other).fingerprint.sha256 != fingerprint.sha256
    extended = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    extended.add_tokens(["extra"])
    assert fingerprint_of("x", extended).sha256 != fingerprint.sha256
    assert fingerprint_of("x", extended).vocabulary_size == 321


def test_transformers_tokenizers_have_the_same_fingerprint(tokenizer_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backend = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer_folder).backend_tokenizer
    assert fingerprint_of(str(tokenizer_folder), backend) == CorpusTokenizer.load(tokenizer_folder).fingerprint


def test_folders_without_a_readable_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        CorpusTokenizer.load(tmp_path)
    assert caught.value.field == "graph.tokenizer_name"
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError) as caught:
        CorpusTokenizer.load(tmp_path)
    assert caught.value.field == "graph.tokenizer_name"
