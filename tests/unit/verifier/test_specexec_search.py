"""SpecExec's search with a draft model: the nodes of a slow search, the document's K, D and B, and the same text."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.config import DraftConfig, DraftModelConfig, GenerationConfig, VerifierConfig
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Draft, DraftOptions, SequenceStep
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.engine.drafting import depths_of
from support.draft_models import model_drafter, noisy
from support.graphs import graph_of
from support.lossless import Job, decode, local_drafter, remembered
from support.specexec_reference import TablePasses, every_path, grown_tree, printed_tree, table
from support.tiny_models import tiny_gpt_oss, tiny_model

K, D, B = 1_024, 16, 64
"""The document's ``budget``, ``max_depth`` and ``batch_size``."""
PROMPT = tuple(index * 11 % 250 for index in range(100))


@cache
def target():
    model = tiny_gpt_oss()
    model.max_length = 512
    return model


def paths_of(draft: Draft):
    """Return the probability of each path."""
    paths = [()]
    for token, parent in zip(draft.token_ids, draft.parents, strict=True):
        paths.append((*paths[parent], token))
    return dict(zip(paths[1:], draft.path_probabilities, strict=True))


def specexec(passes_of, k, max_depth, max_branches) -> ModelDrafter:
    return model_drafter(
        target(), passes=passes_of, strategy="specexec", budget=k, max_depth=max_depth, max_branches=max_branches
    )


tables = st.builds(table, st.integers(0, 999), st.integers(1, 6), st.sampled_from([0.0, 0.5, 2.0]))


@settings(max_examples=60)
@given(st.lists(tables, min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 6), st.integers(1, 12))
def test_the_same_nodes_as_the_slow_search(models, num_nodes, max_depth, width):
    """Several sequences share passes, although their trees end in different rounds."""
    passes = TablePasses(target(), models)
    drafter = specexec(passes, num_nodes, max_depth, width)
    drafts = drafter.draft([SequenceStep(index, [1, 2, 3], num_nodes) for index in range(len(models))])
    assert len(passes.widths) <= max_depth
    assert max(map(max, passes.widths)) <= width
    for says, draft in zip(models, drafts, strict=True):
        shape = num_nodes, min(max_depth, num_nodes), width
        expected = grown_tree(says, *shape)
        assert paths_of(draft) == expected, "the same products, to the last bit"
        assert sum(expected.values()) >= (1 - 1e-12) * sum(printed_tree(says, *shape).values())


@settings(max_examples=40)
@given(tables, st.integers(1, 30), st.integers(1, 4))
def test_where_a_round_is_wide_the_draft_is_the_most_probable_of_all_paths(says, num_nodes, max_depth):
    """Only probabilities are compared, because the searches may resolve ties differently."""
    found = sorted(grown_tree(says, num_nodes, max_depth, 64).values())
    assert found == pytest.approx(sorted(every_path(says, num_nodes, max_depth).values()))


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2", "llama"])
def test_probabilities_are_products_of_what_the_model_says_of_whole_texts(family):
    model = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    drafter = model_drafter(model, strategy="specexec", budget=200, max_depth=6, max_branches=8)
    texts = [list(PROMPT[:30]), list(PROMPT[:97])]
    for index in range(2):
        drafter.open(index)
    drafts = drafter.draft([SequenceStep(index, text, 200) for index, text in enumerate(texts)])
    for text, draft in zip(texts, drafts, strict=True):
        assert len(draft) == 200
        for path, probability in random.Random(1).sample(sorted(paths_of(draft).items()), 20):
            with torch.inference_mode():
                logits = model.forward([[*text, *path]], model.new_cache(1), [0], None, 0, len(path))[0]
            logprobs = torch.log_softmax(logits.double(), -1)
            product = sum(float(logprobs[place, token]) for place, token in enumerate(path))
            assert probability == pytest.approx(float(torch.tensor(product).exp()), rel=5e-3)


def test_the_documents_k_d_and_b_are_reached():
    passes = TablePasses(target(), [table(3, 80, 2.5)])
    drafter = specexec(passes, K, D, B)
    drafter.open(1)
    [draft] = drafter.draft([SequenceStep(1, [1, 2, 3], K)])
    assert len(draft) == K
    assert max(depths_of(draft)) <= D
    assert drafter.num_passes <= D
    assert max(map(max, passes.widths)) == B
    sharp = specexec(TablePasses(target(), [lambda path: [(len(path), 0.9), (77, 0.1)]]), K, D, B)
    sharp.open(1)
    [deep] = sharp.draft([SequenceStep(1, [1, 2, 3], K)])
    assert max(depths_of(deep)) == D == sharp.num_passes
    even = specexec(TablePasses(target(), [table(3, 80, 0.0)]), K, D, B)
    even.open(1)
    [wide] = even.draft([SequenceStep(1, [1, 2, 3], K)])
    assert max(wide.parents.count(parent) for parent in wide.parents) == B


def test_a_request_may_want_less():
    drafter = specexec(TablePasses(target(), [table(3, 80, 2.5)]), K, D, B)
    drafter.open(1)
    [draft] = drafter.draft([SequenceStep(1, [1, 2, 3], 50, options=DraftOptions(max_depth=2))])
    assert (len(draft), max(depths_of(draft)), drafter.num_passes) == (50, 2, 2)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("speculation", ["auto", "on"])
def test_trees_of_1024_nodes_leave_the_text_as_it_is(beside, speculation):
    """Both settings use the whole budget, without pricing."""
    hot = {"temperature": 0.9, "seed": 3}
    jobs = [
        Job(PROMPT, GenerationConfig(max_tokens=10, ignore_end_tokens=True, speculation=speculation, **options))
        for options in ({}, hot)
    ]
    outputs = [remembered(target(), job) for job in jobs]
    graph = graph_of([[*PROMPT, *output] for output in outputs], 3, 258)
    ngrams = local_drafter(graph, "specexec", K, max_depth=D) if beside else None
    drafter = model_drafter(
        noisy(target(), 0.1), ngrams, strategy="specexec", budget=K, max_depth=D, max_branches=B, rows=2
    )
    outcome = decode(target(), jobs, drafter, K, strategy="specexec")
    assert outcome.outputs == outputs
    for each in outcome.sequences:
        assert max(depth for depth, count in enumerate(each.drafted_by_depth, start=1) if count) <= D
        assert sum(each.drafted_by_depth) > 500 * each.num_steps
        assert sum(each.accepted_by_depth) > 0


def test_a_long_prompt_is_read_before_the_first_draft():
    drafter = model_drafter(noisy(target(), 0.1), strategy="specexec", budget=64, max_depth=4)
    drafter.open(1)
    [draft] = drafter.draft([SequenceStep(1, list(PROMPT) * 3, 64)])
    assert len(draft) == 64


def test_a_tree_may_be_larger_than_the_models_context():
    """A node's position depends on its depth."""
    model = noisy(target(), 0.1)
    model.max_length = 150
    drafter = model_drafter(model, strategy="specexec", budget=K, max_depth=D)
    drafter.open(1)
    [draft] = drafter.draft([SequenceStep(1, list(PROMPT), K)])
    assert len(draft) == K
    [none] = drafter.draft([SequenceStep(1, [*PROMPT, *PROMPT[:40]], K)])
    assert len(none) == 0


@pytest.mark.parametrize("has_graph", [False, True])
def test_a_decoder_drafts_by_the_model_alone_or_beside_a_graph(has_graph, tmp_path):
    folder = tmp_path / "draft"
    model = noisy(target(), 0.05)
    model.model.save_pretrained(folder)
    target()._tokenizer.save_pretrained(folder)
    path = None
    if has_graph:
        path = tmp_path / "graph.pkl"
        build_from_token_ids(list(PROMPT), target().fingerprint, max_order=3).save(path)
    config = GenerationConfig(max_tokens=6, ignore_end_tokens=True)
    with SpeculativeDecoder(
        path,
        VerifierConfig(measure_costs=False, num_threads=1, max_batch_size=1),
        DraftConfig(strategy="specexec", k=256, max_depth=8),
        draft_model=DraftModelConfig(name=str(folder)),
        target=target(),
    ) as decoder:
        [result] = decoder.generate([PROMPT], config)
        [plain] = decoder.generate([PROMPT], config.model_copy(update={"speculation": "off"}))
    assert result.token_ids == plain.token_ids
    assert sum(result.drafted_by_depth) > 100 * result.num_drafts
