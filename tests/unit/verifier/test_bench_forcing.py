"""Recorded outputs, forced upon real decoding loops: ours and those of transformers write exactly the record."""

from __future__ import annotations

import random

import pytest

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.models import _EXPERTS, Shape, load_target
from speculant_verifier.bench.overhead import NODES, HalfRightDrafter
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.refill import mixed_lengths
from speculant_verifier.bench.tally import Tally
from speculant_verifier.bench.transformers_decoding import decode_transformers
from speculant_verifier.demo.run import MODEL_FOLDER
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.tiny_models import WINDOW

CONFIG = GenerationConfig()


def cases_of(seed, lengths, alphabet=250):
    generator = random.Random(seed)

    def tokens(number):
        return tuple(generator.randrange(alphabet) for _ in range(number))

    return [Case(tokens(prompt), output, tokens(output)) for prompt, output in lengths]


RAGGED = [(1, 30), (2, 9), (WINDOW - 1, 2 * WINDOW), (WINDOW, 1), (3 * WINDOW, 25), (5, 40)]


def emitted(run):
    return [tuple(row.token_ids) for row in run.rows]


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("shape", [knowing, knowing_tree])
def test_our_engine_writes_the_record_whatever_is_drafted(gpt_oss, rows, shape):
    cases = cases_of(rows, RAGGED)
    references = [(*case.prompt, *case.forced) for case in cases]
    script = shape(references, 0.7, 250) if shape is knowing else shape(references, 250)
    run = OwnDecoding(gpt_oss, ScriptedDrafter(script), DraftConfig(k=6), rows).decode(cases, CONFIG)
    assert emitted(run) == [case.forced for case in cases]
    assert sum(row.num_steps for row in run.rows) < sum(case.max_tokens for case in cases), "drafts were accepted"
    assert run.num_rows == sum(row.num_steps for row in run.rows)
    plain = OwnDecoding(gpt_oss, NullDrafter(), DraftConfig(k=0), rows).decode(cases, CONFIG)
    assert emitted(plain) == [case.forced for case in cases]
    assert plain.num_nodes == plain.num_rows == sum(case.max_tokens for case in cases)


def test_requests_that_begin_alike_get_their_own_records(gpt_oss):
    first, second = cases_of(0, [(20, 12), (20, 12)])
    alike = Case(first.prompt, second.max_tokens, second.forced)
    run = OwnDecoding(gpt_oss, NullDrafter(), DraftConfig(k=0), 2).decode([first, alike, first], CONFIG)
    assert emitted(run) == [first.forced, alike.forced, first.forced]


def test_transformers_writes_the_record_in_a_padded_batch(gpt_oss):
    cases = cases_of(7, RAGGED)
    run = decode_transformers(gpt_oss, cases, CONFIG)
    assert emitted(run) == [case.forced for case in cases]
    assert [row.num_steps for row in run.rows] == [case.max_tokens for case in cases]


@pytest.mark.parametrize("lengths", RAGGED[1:])
def test_prompt_lookup_writes_the_record_and_profits_from_it(gpt_oss, lengths):
    [case] = cases_of(8, [lengths], alphabet=3)  # so that much repeats itself
    run = decode_transformers(gpt_oss, [case], CONFIG, {"prompt_lookup_num_tokens": 10})
    assert emitted(run) == [case.forced]
    if case.max_tokens > 20:
        assert run.rows[0].num_steps < case.max_tokens


def test_an_assistant_is_not_forced(gpt_oss, llama):
    [case] = cases_of(9, [(12, 20)])
    run = decode_transformers(gpt_oss, [case], CONFIG, {"assistant_model": llama.model})
    assert emitted(run) == [case.forced]
    assert run.rows[0].num_steps > 10, "a random assistant can't know a random record"


def test_without_a_record_the_model_chooses_and_all_ways_agree(gpt_oss):
    cases = [Case(case.prompt, case.max_tokens) for case in cases_of(3, RAGGED)]
    config = GenerationConfig(ignore_end_tokens=True)
    plain = OwnDecoding(gpt_oss, NullDrafter(), DraftConfig(k=0), 3).decode(cases, config)
    forced = cases_of(3, RAGGED)
    assert emitted(plain) != [case.forced for case in forced]
    assert emitted(decode_transformers(gpt_oss, cases, config)) == emitted(plain)
    [lookup] = emitted(decode_transformers(gpt_oss, cases[:1], config, {"prompt_lookup_num_tokens": 10}))
    assert lookup == emitted(plain)[0]


def test_phases_and_tallies_add_up(gpt_oss):
    cases = cases_of(4, [(WINDOW, 40)] * 3)
    run = OwnDecoding(gpt_oss, HalfRightDrafter(cases, 250), DraftConfig(k=NODES), 3).decode(cases, CONFIG)
    tally = Tally()
    tally.add(run)
    assert 0 < sum(run.phase_s.values()) <= run.total_s * 1.01
    assert all(seconds > 0 for seconds in run.phase_s.values())
    assert tally.num_tokens == 120
    assert tally.num_decode_tokens < 120
    assert tally.num_tokens == tally.num_accepted + tally.num_steps
    assert 1 < tally.mean_nodes <= 1 + NODES
    assert tally.mean_accepted_tokens > 1.5


def test_mixed_lengths_repeat_and_cut_requests():
    cases = cases_of(5, [(4, 64), (4, 5)])
    mixed = mixed_lengths(cases, 50, seed=1)
    assert len(mixed) == 50
    assert mixed == mixed_lengths(cases, 50, seed=1)
    assert {case.prompt for case in mixed} == {case.prompt for case in cases}
    long = [case.max_tokens for case in mixed[::2]]
    assert 8 <= min(long) < 16
    assert 40 < max(long) <= 64
    assert all(case.forced == source.forced[: case.max_tokens] for case, source in zip(mixed, cases * 25, strict=True))


@pytest.mark.parametrize(("size", "vocabulary"), [(150e6, 201_088), (300e6, 201_088), (20e6, 4_096), (1e9, 201_088)])
def test_a_random_model_is_about_as_large_as_asked_for(size, vocabulary):
    shape = Shape.of(int(size), vocabulary)
    per_layer = _EXPERTS * 3 * shape.hidden * (shape.hidden // 4) + 3 * shape.hidden**2
    assert vocabulary * shape.hidden + shape.layers * per_layer == pytest.approx(size, rel=0.25)
    assert shape.layers % 2 == 0


def test_a_random_model_is_the_same_every_time():
    config = VerifierConfig(model_name="random:1M", tokenizer_name=str(MODEL_FOLDER), device="cpu", num_threads=1)
    first, second = load_target(config), load_target(config)
    assert first.forward([[1, 2, 3]], first.new_cache(1), [0]).equal(
        second.forward([[1, 2, 3]], second.new_cache(1), [0])
    )
    assert first.model.lm_head.weight is first.model.model.embed_tokens.weight
