"""The draft generator: the edge cases of the requirements, determinism and tokenizers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import ConfigError, DraftRequestError, TokenizerMismatchError
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.types import Fingerprint


def generator_of(token_ids: list[int], max_order: int = 3, config: DraftConfig | None = None) -> DraftGenerator:
    graph = build_from_token_ids(token_ids, Fingerprint("test", "00" * 32, 100), max_order=max_order)
    return DraftGenerator(graph, config)


def test_draws_depend_on_seed_and_position_alone() -> None:
    stream = np.random.default_rng(1).integers(0, 5, 500).tolist()
    generator = generator_of(stream, max_order=1)
    whole = generator.draft([3, 1], 6, "sampling", seed=5)
    assert whole.token_ids == generator.draft([1], 6, "sampling", seed=5, position=2).token_ids
    later = generator.draft([3, 1, *whole.token_ids[:3]], 3, "sampling", seed=5)
    assert later.token_ids == whole.token_ids[3:]
    assert {generator.draft([3, 1], 6, "sampling", seed=seed).token_ids for seed in range(5)} != {whole.token_ids}


def test_the_cap_keeps_the_most_frequent_and_renormalises() -> None:
    stream = [1, 7, 1, 5, 1, 5, 1, 5, 1, 3, 1, 9]
    config = DraftConfig(k=1, strategy="sampling", max_candidates=2)
    (proposal,) = generator_of(stream, max_order=1, config=config).generate([1]).proposals
    assert proposal.token_ids.tolist() == [3, 5], "of 3, 7 and 9, seen once each, the lowest id stays"
    assert proposal.probabilities.tolist() == [0.25, 0.75]


def test_every_strategy_of_ngrams() -> None:
    generator = generator_of([1, 2, 3], config=DraftConfig(strategy="tree"))
    assert generator.generate([7, 8, 7]).token_ids[0] == 8, "the prompt itself is drafted from, too"
    assert generator.draft([1], 2, "adaptive").token_ids == (2, 3)
    with pytest.raises(DraftRequestError) as caught:
        generator.generate([1], strategy="best")  # type: ignore[arg-type]
    assert caught.value.field == "strategy"
    with pytest.raises(DraftRequestError) as refused:
        generator.generate([1], strategy="beam")  # type: ignore[arg-type]
    for offered in re.findall(r"'(\w+)'", str(refused.value).partition("(got")[0]):
        assert generator.generate([1], k=1, strategy=offered).strategy == offered
    with pytest.raises(ConfigError) as caught:
        generator.generate([1], strategy="model")
    assert caught.value.field == "draft.strategy"


def test_text_prompts_use_the_graph_s_tokenizer(
    tmp_path: Path, tokenizer_folder: Path, make_tokenizer: Callable[..., Path], sample_text: str
) -> None:
    (tmp_path / "a.txt").write_text(sample_text, "utf-8")
    builder = GraphBuilder(str(tokenizer_folder))
    graph = builder.build_from_files([tmp_path / "a.txt"])
    builder.save(tmp_path / "graph.pkl")
    generator = DraftGenerator.from_file(tmp_path / "graph.pkl", DraftConfig(k=4))
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    draft = generator.generate("The parties agree to")
    assert sample_text.startswith("The parties agree to" + tokenizer.decode(draft.token_ids))
    assert draft == generator.generate(tokenizer.encode("The parties agree to"), k=4)
    assert draft == DraftGenerator(graph, tokenizer=tokenizer).generate("The parties agree to", k=4)

    other = make_tokenizer(vocabulary_size=300)
    with pytest.raises(TokenizerMismatchError):
        DraftGenerator(graph, tokenizer=CorpusTokenizer.load(other))
