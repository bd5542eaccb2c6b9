"""Control tokens from a corpus to a draft: the verifier's tokens of a prompt match the graph's tokens of a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from speculant_graph.cli.inspect import run as inspect
from speculant_graph.cli.view import run as view
from speculant_graph.config import DraftConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import SpecialTokensName
from speculant_graph.view.lookup import GraphLookup
from speculant_graph.view.question import Question
from speculant_verifier.model import TargetModel
from support.graphs import assert_same_arrays
from support.harmony import harmony_tokenizer
from support.tiny_models import BOS

CONVERSATIONS = [
    "<|start|>system<|message|>Answer questions on contracts.<|end|><|start|>user<|message|>When does it end?<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>The second clause names a date.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It ends after two years.<|return|>",
    "<|start|>user<|message|>Who may end it?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It ends if either party says so.<|return|>",
    "<|start|>user<|message|>Is there a fee?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It names no fee.<|return|>",
]
PROMPT = "<|start|>user<|message|>May I end it?<|end|><|start|>assistant<|channel|>"
EXPECTED = "final<|message|>It"
LINES = "".join(json.dumps({"text": conversation}) + "\n" for conversation in CONVERSATIONS)


@pytest.fixture(scope="module", params=["bytes", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, llama: TargetModel) -> TargetModel:
    """Return a target model with the tokenizer under test."""
    return TargetModel(llama.model, harmony_tokenizer(request.param), "tiny")


@pytest.fixture(scope="module")
def folder(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tokenizer's folder, with a corpus."""
    folder = tmp_path_factory.mktemp("harmony")
    target.tokenizer.save_pretrained(folder)
    (folder / "chats.jsonl").write_text(LINES, encoding="utf-8")
    return folder


def built(folder: Path, mode: SpecialTokensName) -> Path:
    path = folder / f"{mode}.pkl"
    if not path.exists():
        GraphBuilder(folder, special_tokens=mode, document_boundaries=True).build(folder / "chats.jsonl", path)
    return path


@pytest.mark.parametrize("mode", ["parse", "text"])
def test_a_draft_goes_on_behind_control_tokens_if_they_were_parsed(
    target: TargetModel, folder: Path, mode: SpecialTokensName
) -> None:
    path = built(folder, mode)
    graph = NgramGraph.load(path)
    assert graph.metadata.special_tokens == mode
    context = target.encode(PROMPT)
    assert context == target.tokenizer.encode(PROMPT)
    k = len(target.encode(EXPECTED))
    draft = DraftGenerator.from_file(path).generate(PROMPT, k=k, strategy="greedy")
    assert draft == DraftGenerator(graph).generate(context, k=k, strategy="greedy"), "as the verifier has it"
    drafted = target.decode(draft.token_ids)
    assert drafted == (EXPECTED if mode == "parse" else "")
    control = set(target.tokenizer.convert_tokens_to_ids(["<|channel|>", "<|message|>", "<|end|>"]))
    assert {graph.count([token]) > 0 for token in control} == {mode == "parse"}


def test_commands_and_the_explorer_read_prompts_alike(
    target: TargetModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, context = built(folder, "parse"), target.encode(PROMPT)
    chats = folder / "chats.jsonl"
    assert inspect([str(path), "--prompt", PROMPT, "--coverage", str(chats), "-k", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["special_tokens"] == "parse"
    assert report["prompt_token_ids"] == context[-5:]
    assert EXPECTED.startswith(report["draft_text"])
    assert report["draft_token_ids"]
    assert report["coverage"]["known"] == 1, "read as the graph was"
    assert view([str(path), "--prompt", PROMPT, "-o", str(tmp_path / "page.html"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["prompt_tokens"], summary["order"]) == (len(context), 5)
    tokenizer = CorpusTokenizer.load(folder, special_tokens="parse")
    explored = GraphLookup(NgramGraph.load(path), DraftConfig(), tokenizer).answer(Question(text=PROMPT))
    assert explored["token_ids"] == context


def test_recorded_token_ids_make_the_same_graph(target: TargetModel, folder: Path, tmp_path: Path) -> None:
    documents = [target.encode(conversation) for conversation in CONVERSATIONS]
    records = [{"result": {"token_ids": ids}, "text": "<unread>"} for ids in documents]
    (tmp_path / "ids.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    builder = GraphBuilder(folder, text_field="result.token_ids", document_boundaries=True)
    graph = builder.build(tmp_path / "ids.jsonl", tmp_path / "ids.pkl")
    fingerprint = CorpusTokenizer.load(folder).fingerprint
    assert_same_arrays(graph, build_from_token_ids([], fingerprint, documents=documents))
    draft = DraftGenerator(graph).generate(PROMPT, k=len(target.encode(EXPECTED)), strategy="greedy")
    assert target.decode(draft.token_ids) == EXPECTED


def test_prompts_are_encoded_as_transformers_does(llama: TargetModel, tmp_path: Path) -> None:
    backend = harmony_tokenizer("bytes").backend_tokenizer
    bos_id = backend.token_to_id(BOS)
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos_id)])
    backend.enable_truncation(3)  # some tokenizer files keep such a setting from training
    backend.enable_padding(length=64)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS)
    wrapped.save_pretrained(tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    transformers = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    encoders = [
        TargetModel(llama.model, PreTrainedTokenizerFast.from_pretrained(tmp_path), "tiny").encode,
        CorpusTokenizer.load(tmp_path, special_tokens="text").encode_prompt,
        CorpusTokenizer.load(tmp_path, special_tokens="parse").encode_prompt,
    ]
    for text in (PROMPT, "no control token", "", "<|endoftext|>", "<|sta", " <|start|> "):
        expected: Any = transformers.encode(text)
        assert expected[0] == bos_id
        assert [encode(text) for encode in encoders] == [expected] * 3
