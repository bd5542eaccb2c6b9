"""The code of section 6 of the requirements runs as written, except for the names of model and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculant_graph import DraftConfig, DraftGenerator, NgramGraph
from speculant_verifier.demo.run import MODEL_FOLDER

BUILD = """
from speculant_graph import GraphBuilder, GraphConfig

# Build multi-order graph from corpus
graph_config = GraphConfig(
    max_order=5,
    tokenizer_name="MODEL",
    hf_token="your_token"
)

builder = GraphBuilder(
    tokenizer_name=graph_config.tokenizer_name,
    max_order=graph_config.max_order,
    chunk_size=graph_config.chunk_size,
    hf_token=graph_config.hf_token
)

graph = builder.build_from_files(["corpus1.txt", "corpus2.txt"])
builder.save("knowledge_graph.pkl")
"""
DRAFT = """
from speculant_graph import DraftGenerator

# Load graph
generator = DraftGenerator.from_file("knowledge_graph.pkl")

# Generate draft
draft = generator.generate(
    prompt="What is a force majeure clause?",
    k=10,
    strategy="greedy"  # or "sampling"
)
"""
DECODE = """
from speculant_graph import (
    SpeculativeDecoder,
    VerifierConfig,
    DraftConfig,
    GenerationConfig
)

# Configure
verifier_config = VerifierConfig(
    model_name="MODEL",
    hf_token="your_token"
)
draft_config = DraftConfig(k=8, strategy="greedy")

# Initialize decoder
decoder = SpeculativeDecoder(
    graph_path="knowledge_graph.pkl",
    verifier_config=verifier_config,
    draft_config=draft_config
)

# Generate with multi-order speculative decoding
generation_config = GenerationConfig(max_tokens=50, temperature=0.9)
result = decoder.generate(
    prompt="A termination clause outlines the circumstances under which",
    generation_config=generation_config
)

print(result.text)
print(f"Acceptance rate: {result.acceptance_rate:.2%}")
print(f"Breakdown: {result.num_accepted} accepted, {result.num_rejected} rejected")
"""
SENTENCES = (
    "What is a force majeure clause? It frees both parties from what nobody could foresee.\n",
    "A termination clause outlines the circumstances under which the contract may be ended.\n",
)


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block.replace("MODEL", str(MODEL_FOLDER)), "section 6", "exec"), names)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The variables of the first block; runs it in a new folder and stays there."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("requirements"))
        for index, sentence in enumerate(SENTENCES, start=1):
            Path(f"corpus{index}.txt").write_text(sentence * 20, encoding="utf-8")
        run(BUILD, names)
        yield names


pytestmark = pytest.mark.usefixtures("built")


def test_6_1_graph_builder(built: dict[str, Any]) -> None:
    graph = built["graph"]
    assert isinstance(graph, NgramGraph)
    assert graph.max_order == 5
    assert graph.metadata.num_tokens == NgramGraph.load("knowledge_graph.pkl").metadata.num_tokens > 100


@pytest.mark.parametrize("strategy", ["greedy", "sampling"])
def test_6_2_draft_generator(strategy: str) -> None:
    names: dict[str, Any] = {}
    run(DRAFT.replace('"greedy"  # or "sampling"', f'"{strategy}"'), names)
    draft, generator = names["draft"], names["generator"]
    assert (draft.strategy, len(draft), draft.is_chain) == (strategy, 10, True)
    assert len(draft.proposals) == (10 if strategy == "sampling" else 0)
    drafted = generator._tokenizer.decode(draft.token_ids)
    assert SENTENCES[0].partition("?")[2].startswith(drafted)


def test_6_2_without_a_strategy_it_is_greedy_unless_another_one_was_set() -> None:
    """The configuration's default strategy is `tree`, but the requirements say greedy."""
    drafts = [
        DraftGenerator.from_file("knowledge_graph.pkl", config).generate([5, 6, 7], k=3)
        for config in (None, DraftConfig(k=4), DraftConfig(strategy="sampling"), DraftConfig(strategy="tree"))
    ]
    assert [draft.strategy for draft in drafts] == ["greedy", "greedy", "sampling", "tree"]


def test_6_3_end_to_end_inference(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    run(DECODE, names)
    result = names["result"]
    names["decoder"].close()
    assert result.num_accepted + result.num_rejected == result.num_drafted > 0
    assert len(result.token_ids) == result.num_accepted + result.num_steps
    printed = capsys.readouterr().out
    assert printed.startswith(result.text)
    assert f"Breakdown: {result.num_accepted} accepted" in printed
