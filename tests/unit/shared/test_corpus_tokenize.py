"""Tokenizers of a corpus and their identity."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from speculant_graph.corpus.tokenize import CorpusTokenizer, fingerprint_of
from speculant_graph.errors import ConfigError


def test_text_round_trips_without_special_tokens(tokenizer_folder: Path, sample_text: str) -> None:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    ids = tokenizer.encode(sample_text)
    assert tokenizer.decode(ids) == sample_text
    assert tokenizer.encode_batch([sample_text, ""]) == [ids, []]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    assert not {0, 1} & set(ids)


def test_special_tokens_may_be_missing(plain_tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = CorpusTokenizer.load(plain_tokenizer_folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    shutil.copy(plain_tokenizer_folder / "tokenizer.json", tmp_path)
    assert CorpusTokenizer.load(tmp_path).bos_id is None


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
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json; set --graph\.tokenizer-name"):
        CorpusTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match="can't be read"):
        CorpusTokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["/no/folder", "./folder", "~/no-folder", "~nobody-at-all"])
def test_paths_that_lead_to_no_folder_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    message = rf"^there is no folder {re.escape(name)}; set --graph\.tokenizer-name to one$"
    for given in (name, Path(name)) if not name.startswith("./") else (name,):
        with pytest.raises(ConfigError, match=message):
            CorpusTokenizer.load(given)
