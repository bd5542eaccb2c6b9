"""Memory of a running batch: its bounds, and the requests that end when memory runs out."""

from __future__ import annotations

import pytest
import torch

from speculant_verifier.cache import SlotCache
from speculant_verifier.cache.layers import SlotLayer
from speculant_verifier.engine import Request
from support.drafters import ScriptedDrafter, chain, knowing_tree
from support.engines import CONFIG, alone, finish, make_engine, scripted
from support.tiny_models import tiny_gpt_oss


@pytest.fixture(scope="module")
def target():
    return tiny_gpt_oss(num_layers=4)


def test_requests_wait_until_keys_and_values_fit(target):
    """Rows times the longest row never exceed the bound, and every request gets its turn."""
    bound = 100
    engine = make_engine(target, max_kv_tokens=bound, max_batch_size=8)
    for index in range(6):
        engine.add(Request(index, tuple(range(1, 2 + 5 * index)), CONFIG))
    ended, most = {}, 0
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason:
                ended[output.sequence.index] = output.sequence.output
        running = engine._running
        most = max(most, len(running))
        longest = max((len(each.prompt) + 12 + 4 for each in running), default=0)
        assert len(running) * longest <= bound
    assert most > 1
    assert [ended[index] for index in range(6)] == [alone(target, range(1, 2 + 5 * index)) for index in range(6)]


def test_memory_that_does_not_suffice_ends_the_youngest_and_spares_the_others(target, monkeypatch):
    expected = [alone(target, (1, 2, index)) for index in range(3)]
    forward = target.forward

    def small(token_ids, *rest, **more):
        if len(token_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(token_ids, *rest, **more)

    engine = make_engine(target, max_batch_size=3)
    for index in range(3):
        engine.add(Request(index, (1, 2, index), CONFIG))
    monkeypatch.setattr(target, "forward", small)
    ended = finish(engine)
    reasons = [ended[index].finish_reason for index in range(3)]
    assert reasons == ["length", "length", "error"]
    assert ended[2].sequence.error.kind == "out_of_memory"
    assert [ended[index].sequence.output for index in range(2)] == expected[:2]


def test_memory_that_ends_while_the_cache_grows_leaves_it_whole(target, monkeypatch):
    """Whichever layer runs out of memory, all layers keep the size that the cache reports."""
    prompts = [(1, 2, 3), (1,) * 400]
    expected = alone(target, prompts[0])
    replace = SlotLayer.resize
    for failing in range(8):
        engine = make_engine(target, max_batch_size=2)
        engine.add(Request(0, prompts[0], CONFIG))
        engine.step()
        left = [failing]

        def small(layer, num_rows, num_slots, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
            replace(layer, num_rows, num_slots)

        with monkeypatch.context() as patched:
            patched.setattr(SlotLayer, "resize", small)
            engine.add(Request(1, prompts[1], CONFIG))
            outputs = [output for _ in range(2) for output in engine.step()]
        reasons = {output.sequence.index: output.finish_reason for output in outputs}
        assert reasons.get(1, "error") == "error"
        assert engine.totals.num_reductions["requests at once"] == 1
        engine.add(Request(2, prompts[0], CONFIG))
        ended = finish(engine)
        assert ended[0].sequence.output == ended[2].sequence.output == expected
        assert (1 in reasons) != (1 in ended), "what has its place ends, what has none waits"
        assert 1 in reasons or ended[1].sequence.output == alone(target, prompts[1])


def test_memory_that_ends_in_a_commit_reads_what_was_accepted_again(target, monkeypatch):
    expected = alone(target, (1, 2))
    drafter = ScriptedDrafter(knowing_tree([(1, 2, *expected)], 258))
    engine = make_engine(target, drafter, k=8)
    engine.add(Request(0, (1, 2), CONFIG))
    failures = []

    def full(self, moved):
        failures.append(moved)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SlotCache, "_move", full)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert failures
    assert tuple(token for output in outputs for token in output.token_ids) == expected


def test_memory_that_does_not_suffice_for_a_prompt_ends_no_other_that_waits(target, monkeypatch):
    prefill = target.prefill

    def small(token_ids, *rest):
        if sum(map(len, token_ids)) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        prefill(token_ids, *rest)

    monkeypatch.setattr(target, "prefill", small)
    engine = make_engine(target, prefill_chunk=200)
    for index, length in enumerate((190, 150, 20)):
        engine.add(Request(index, (1,) * length, CONFIG))
    ended = finish(engine)
    assert [ended[index].finish_reason for index in range(3)] == ["error", "error", "length"]


@pytest.mark.parametrize(
    ("lengths", "settings"),
    [((220, 100), {"max_kv_tokens": 2 * 256, "prefill_chunk": 200}), ((490, 240), {"prefill_chunk": 480})],
    ids=["bound", "default bound"],
)
def test_a_stretch_of_one_prompt_beside_the_end_of_another_stays_within_the_bound(target, lengths, settings):
    """All rows of a pass are as wide as the widest, so together the two need more than each alone."""
    engine = make_engine(target, max_batch_size=2, **settings)
    prompts = [tuple(index % 250 for index in range(length)) for length in lengths]
    for index, prompt in enumerate(prompts):
        engine.add(Request(index, prompt, CONFIG.model_copy(update={"max_tokens": 4})))
    outputs = [output.sequence.output for _, output in sorted(finish(engine).items())]
    config = CONFIG.model_copy(update={"max_tokens": 4})
    assert outputs == [alone(target, prompt, config) for prompt in prompts]


@pytest.mark.parametrize("step", range(3, 9))
@pytest.mark.parametrize("length", [98, 100])
def test_a_short_prompt_joins_one_that_is_nearly_done_within_the_bound(target, step, length):
    """Its few tokens are read together with its draft, which makes the pass wider than the long row needs."""
    drafter = scripted(lambda budget: chain([1] * budget))
    longest = -(-(length + 8 + 4) // 16) * 16  # too little for both, so the short one must wait
    engine = make_engine(target, drafter, max_kv_tokens=2 * longest)
    engine.add(Request(0, tuple(range(length)), CONFIG.model_copy(update={"max_tokens": 8})))
    ended = {}
    for _ in range(step):
        ended |= {output.sequence.index: output for output in engine.step() if output.finish_reason}
    engine.add(Request(1, tuple(range(8)), CONFIG))
    ended |= finish(engine)
    assert sorted(ended) == [0, 1]
    assert ended[1].sequence.output == alone(target, tuple(range(8)))
