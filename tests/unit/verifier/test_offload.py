"""Models whose weights are partly read in every pass: same logits and texts, and the amount read."""

from __future__ import annotations

import itertools
import os
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig, LlamaConfig, LlamaForCausalLM

from speculant_graph.config import DraftConfig, DraftModelConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.machine import anonymous_bytes
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.engine import memory_pressure
from speculant_verifier.model import TargetModel
from speculant_verifier.offload import placement
from speculant_verifier.offload.placement import plan_for
from speculant_verifier.offload.weight_files import StoredTensor, WeightReader
from speculant_verifier.service.metrics import render_metrics
from speculant_verifier.service.requests import Load
from speculant_verifier.speculation.measurement import measure_costs
from support.draft_models import noisy
from support.lossless import decode, mixed_jobs, remembered
from support.tiny_models import tiny_gpt_oss, tiny_model

FAMILIES = ("llama", "qwen2", "qwen3_moe", "gpt_oss")
NUM_TOKENS = 10


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory) -> Path:
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    target = tiny_gpt_oss(seed=3, num_layers=4) if family == "gpt_oss" else tiny_model(family, num_layers=5)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, resident: int | None = None, **options) -> TargetModel:
    config = VerifierConfig(model_name=str(folder), num_threads=1, resident_layers=resident, **options)
    return TargetModel.load(config)


@pytest.fixture(scope="module")
def whole(checkpoint) -> TargetModel:
    """The checkpoint, completely in memory."""
    return load(checkpoint)


def logits(target: TargetModel, length: int, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(0, 250, (2, length), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return target.model(ids).logits


def test_logits_are_those_of_the_model_in_memory(checkpoint, whole):
    assert whole.offload is None
    for resident in range(5):
        target = load(checkpoint, resident)
        if target.offload is None:
            assert resident >= 4, "gpt-oss has four layers here"
            continue
        for length in (1, 40, 1, 2):
            assert torch.equal(logits(target, length), logits(whole, length))
        assert target.offload.num_bytes > 0
        target.offload.close()


@pytest.mark.parametrize("batch", [1, 8])
def test_texts_are_those_of_the_model_in_memory(checkpoint, whole, batch):
    """The test has trees, sliding layers, requests of all kinds, and alternating narrow and wide passes."""
    target = load(checkpoint, 1)
    jobs = mixed_jobs(NUM_TOKENS)[:: 2 if batch == 1 else 1]
    outcome = decode(target, jobs, None, 8, max_batch_size=batch, strategy="tree")
    assert outcome.outputs == [remembered(whole, job) for job in jobs]
    target.offload.close()


def test_a_narrow_pass_reads_the_experts_that_were_chosen(tmp_path):
    tiny_gpt_oss(seed=3, num_layers=4).model.save_pretrained(tmp_path)
    tiny_gpt_oss(seed=3, num_layers=4).tokenizer.save_pretrained(tmp_path)
    target = load(tmp_path, 1)
    before = target.offload.num_bytes
    logits(target, 1)  # two rows with one token each
    plan = target.offload.plan
    read = target.offload.num_bytes - before
    assert read <= 4 * 4 * plan.unit_bytes, "two of four experts of each of four layers, at most"
    num_wanted, num_found = target.offload.num_wanted, target.offload.num_found
    logits(target, 60)
    assert target.offload.num_bytes - before - read >= 0.5 * plan.num_units * plan.unit_bytes
    assert num_found < 0.5 * num_wanted
    target.offload.close()


def test_a_decoder_drafts_widely_and_tells_what_was_read(checkpoint):
    whole = SpeculativeDecoder(None, VerifierConfig(model_name=str(checkpoint)), DraftConfig(k=0))
    expected = whole.generate("abcabcabcabc", GenerationConfig(max_tokens=20)).token_ids
    assert whole.draft_config.max_depth == DraftConfig().max_depth
    config = VerifierConfig(model_name=str(checkpoint), resident_layers=1, max_batch_size=2)
    with SpeculativeDecoder(None, config, DraftConfig(max_depth=9)) as decoder:
        assert (decoder.draft_config.k, decoder.draft_config.max_depth) == (256, 9)
        points = {each.tokens: each for each in decoder.costs.points}
        assert {each.batch for each in points.values()} == {1}
        measured = {tokens for tokens, each in points.items() if each.is_measured}
        has_experts = decoder.target.offload.plan.unit == "expert"
        assert measured == ({1, 2} if has_experts else {1, 17, 257})
        assert set(points) == ({1, 2, 4, 8, 16, 32, 64, 257} if has_experts else {1, 17, 257})
        assert points[257].ms >= points[1].ms or not has_experts
        assert decoder.generate("abcabcabcabc", GenerationConfig(max_tokens=20)).token_ids == expected
        metrics = render_metrics(decoder, Load(ServiceConfig(), 1), {}).decode()
        read = re.search(r"speculant_verifier_offload_bytes_total ([0-9.e+]+)$", metrics, re.MULTILINE)
        assert 0.0 < float(read[1]) <= decoder.target.offload.num_bytes
    whole.close()


def test_wide_passes_that_would_take_long_are_predicted(checkpoint):
    """A slow model runs two passes at its first start."""
    target = load(checkpoint, 1)
    has_experts = target.offload.plan.unit == "expert"
    points = measure_costs(target, (1, 2), (1, 8, 64, 257), budget_s=0.0).points
    assert [each.tokens for each in points] == ([1, 2, 8, 64, 257] if has_experts else [1, 17, 64, 257])
    assert [each.is_measured for each in points] == [each.tokens in {1, 2, 17} for each in points]
    times = [each.ms for each in points]
    assert all(times[1] <= each for each in times[2:])
    assert times[2:] == sorted(times[2:])
    target.close()


@pytest.mark.parametrize("strategy", ["model", "specexec"])
def test_a_draft_model_drafts_for_a_model_that_memory_does_not_hold(checkpoint, whole, tmp_path, strategy):
    """As in SpecExec, the target is read in every pass, and the draft model stays in memory."""
    noisy(whole, 0.02).model.save_pretrained(tmp_path)
    whole.tokenizer.save_pretrained(tmp_path)
    config = VerifierConfig(model_name=str(checkpoint), resident_layers=1, measure_costs=False)
    draft = DraftConfig(strategy=strategy, k=16, max_depth=8)
    request = GenerationConfig(max_tokens=24, ignore_end_tokens=True, speculation="on")
    with SpeculativeDecoder(None, config, draft, draft_model=DraftModelConfig(name=str(tmp_path))) as decoder:
        assert decoder.target.offload is not None
        result = decoder.generate("abcabcabc", request)
        plain = decoder.generate("abcabcabc", request.model_copy(update={"speculation": "off"}))
    assert result.token_ids == plain.token_ids
    assert result.num_accepted > 0


def test_what_passes_read_is_predicted(checkpoint):
    """Wider passes read more, up to all weights that do not stay in memory."""
    target = load(checkpoint, 1)
    plan = target.offload.plan
    sizes = [plan.bytes_of(count) for count in (1, 2, 8, 1_000)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == pytest.approx(plan.pass_bytes)
    assert sizes[0] == pytest.approx(plan.pass_bytes * (0.5 if plan.unit == "expert" else 1.0))
    target.close()


def stored(target: TargetModel) -> list[StoredTensor]:
    """Return the places of the last streamed weights."""
    stream = target.offload._stream
    if target.offload.plan.unit == "layer":
        return [each for _, _, each in stream._layers[stream._turn[-1]][1]]
    return list(stream._modules[-1][1].values())[:1]


def budget_with(room: int) -> int:
    """Return a budget that leaves ``room`` bytes for weights."""
    return int((anonymous_bytes() + room) / 0.8)


def test_a_plan_keeps_within_the_budget():
    config = LlamaConfig(num_hidden_layers=40, vocab_size=1_000)
    with torch.device("meta"):
        total = sum(each.nbytes for each in LlamaForCausalLM(config).parameters())
    for share in (0.3, 0.5, 0.9):
        verifier = VerifierConfig(memory_budget=budget_with(int(share * total)), max_kv_tokens=16)
        plan = plan_for(config, torch.float32, verifier)
        assert plan is not None
        kept = plan.resident_bytes + plan.num_slots * plan.unit_bytes
        assert kept + plan.process_bytes <= 0.81 * plan.budget
        stays = plan.resident_bytes + plan.num_kept * plan.unit_bytes
        assert plan.pass_bytes == pytest.approx(total - stays, rel=0.01)
        assert plan.most_bytes == int(1.05 * plan.budget)
    wordy = LlamaConfig(num_hidden_layers=80, hidden_size=1024, vocab_size=200_000)
    plan = plan_for(wordy, torch.float32, VerifierConfig(memory_budget=10**10, max_batch_size=8))
    assert 16 < plan.most_nodes < 256
    assert 8 * (1 + plan.most_nodes) * 8 * 200_000 < 0.2 * 10**10, "there is memory for the logits"


def test_layers_that_are_to_stay_but_do_not_fit_are_streamed(monkeypatch):
    monkeypatch.setattr(placement, "anonymous_bytes", lambda: 0)
    monkeypatch.setattr(placement, "available_bytes", lambda: 10**10)
    config = LlamaConfig(num_hidden_layers=40, vocab_size=1_000)
    plan = plan_for(config, torch.float32, VerifierConfig(resident_layers=39, max_kv_tokens=16))
    assert plan.resident_bytes + plan.num_slots * plan.unit_bytes < 0.9 * 10**10
    few = plan_for(config, torch.float32, VerifierConfig(resident_layers=3, max_kv_tokens=16))
    assert (few.num_kept, 3 < plan.num_kept < 39) == (3, True)


def test_a_budget_that_is_too_small_is_refused(checkpoint):
    with pytest.raises(ConfigError) as caught:
        TargetModel.load(VerifierConfig(model_name=str(checkpoint), memory_budget=1_000_000))
    assert caught.value.field == "verifier.memory_budget"


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
@pytest.mark.parametrize("budget", [1, 200, 330, 400, 480])
def test_the_budget_that_an_error_suggests_suffices(monkeypatch, family, budget):
    """And bfloat16 is suggested only where it suffices."""
    monkeypatch.setattr(placement, "anonymous_bytes", lambda: 300_000_000)
    common = {"num_hidden_layers": 24, "hidden_size": 1024, "vocab_size": 10_000}
    config = (
        LlamaConfig(intermediate_size=4096, **common)
        if family == "llama"
        else GptOssConfig(intermediate_size=1024, num_local_experts=8, **common)
    )

    def plan(budget_mb: int, dtype: torch.dtype = torch.float32) -> placement.Plan | None:
        return plan_for(config, dtype, VerifierConfig(memory_budget=1_000_000 * budget_mb), later_bytes=7)

    with pytest.raises(ConfigError) as caught:
        plan(budget)
    assert caught.value.field == "verifier.memory_budget"
    [wanted] = re.findall(r"(\d+)MB", caught.value.fix)
    assert plan(int(wanted)) is not None
    with pytest.raises(ConfigError):
        plan(int(0.98 * int(wanted)))
    if "bfloat16" in caught.value.fix:
        assert plan(budget, torch.bfloat16) is not None
    else:
        with pytest.raises(ConfigError):
            plan(budget, torch.bfloat16)


def test_a_file_that_can_not_be_read_fails_passes_until_it_can(checkpoint, whole):
    target = load(checkpoint, 0)
    [path] = {Path(each.path) for each in stored(target)}
    content = path.read_bytes()
    try:
        os.truncate(path, len(content) // 3)
        with pytest.raises(GenerationError):
            [logits(target, 60) for _ in range(8)]  # weights read in advance are still valid
    finally:
        with open(path, "r+b") as file:
            file.write(content)
    for attempt in range(3):
        try:
            assert torch.equal(logits(target, 9), logits(whole, 9))
            break
        except GenerationError:
            assert attempt < 2
    assert torch.equal(logits(target, 60), logits(whole, 60))
    target.offload.close()


def test_a_pass_that_is_interrupted_leaves_nothing_half_read(checkpoint, whole):
    target = load(checkpoint, 1)
    reader, generator = target.offload._source, random.Random(0)
    read = reader.read

    def interrupted(pairs):
        if generator.random() < 0.1:
            raise KeyboardInterrupt
        parts = read(pairs)
        if generator.random() < 0.1:
            raise KeyboardInterrupt
        return parts

    num_interrupted = 0
    for number in range(20):
        reader.read = interrupted
        try:
            logits(target, 20, number)
        except KeyboardInterrupt:
            num_interrupted += 1
        reader.read = read
        assert torch.equal(logits(target, 20, number), logits(whole, 20, number))
    assert num_interrupted > 3
    target.offload.close()


def test_memory_of_units_is_given_back(tmp_path):
    """It is released step by step, down to the minimum for a pass, and then taken again."""
    for target in (tiny_gpt_oss(seed=3, num_layers=4), tiny_model("llama", num_layers=9)):
        config = target.model.config
        config.intermediate_size = 16_384
        type(target.model)(config).save_pretrained(tmp_path)
        target.tokenizer.save_pretrained(tmp_path)
        streamed = load(tmp_path, 3)
        offload = streamed.offload
        expected = logits(streamed, 60)
        before, freed = anonymous_bytes(), []
        while (num_bytes := offload.reduce()) is not None:
            freed.append(num_bytes)
        assert offload.num_slots == offload.plan.least_slots
        assert len(freed) > 1
        assert sum(freed) == (offload.plan.num_slots - offload.num_slots) * offload.plan.unit_bytes
        assert before - anonymous_bytes() > 0.8 * sum(freed) > 10e6
        assert torch.equal(logits(streamed, 60), expected)
        for _ in freed:
            offload.restore()
        assert offload.num_slots == offload.plan.num_slots
        assert torch.equal(logits(streamed, 60), expected)
        offload.close()


def test_streams_of_eight_requests_while_memory_comes_and_goes(checkpoint, whole):
    """No request gets a wrong token, and the number of slots changes meanwhile."""
    target = load(checkpoint, 2)
    jobs = mixed_jobs(NUM_TOKENS)
    generator = random.Random(0)
    resize = target.offload.resize
    spare = itertools.chain.from_iterable([generator.choice([-1, -1, 1 << 40])] * 12 for _ in itertools.count())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "spare_bytes", lambda: next(spare), raising=True)
        patched.setattr(memory_pressure, "_PAUSE_S", 0.0)
        patched.setattr(memory_pressure, "_CALM_S", 0.0)
        sizes = []
        patched.setattr(target.offload, "resize", lambda num_slots: (sizes.append(num_slots), resize(num_slots)))
        outcome = decode(target, jobs, None, 8, max_batch_size=8, strategy="tree")
    assert outcome.outputs == [remembered(whole, job) for job in jobs]
    assert len(set(sizes)) > 1
    target.offload.close()


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(0, 9_000),
    numel=st.integers(1, 70_000),
    stored=st.sampled_from([torch.bfloat16, torch.float32, torch.float16]),
    wanted=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_any_stretch_of_a_file_is_read(tmp_path_factory, offset, numel, stored, wanted):
    """Compare with the values that were written to the file."""
    path = tmp_path_factory.mktemp("stretch") / "file"
    numbers = torch.randn(numel).to(stored)
    path.write_bytes(bytes(offset) + numbers.view(torch.uint8).numpy().tobytes())
    into = torch.empty(numel, dtype=wanted)
    reader = WeightReader()
    for part in reader.read([(StoredTensor(str(path), offset, stored, (numel,)), into)]):
        part.result()
    reader.close()
    assert torch.equal(into, numbers.to(wanted))
    assert reader.num_bytes == numel * stored.itemsize
