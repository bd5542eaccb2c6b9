"""The gate: the pass counts of a replay, and the accepted and rejected adapters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import DraftModelConfig, GenerationConfig, TrainConfig, VerifierConfig
from speculant_graph.types import PassReport
from speculant_verifier.engine import Engine
from speculant_verifier.engine.sequence import Request
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.rules import teacher_forced
from speculant_verifier.training import gate
from speculant_verifier.training.gate import DRAFT, Replay, compare, interval_of, judge, objection, shortage, weights_of
from speculant_verifier.training.trainer import train_adapter
from support.draft_models import FixedBudget, noisy
from support.tiny_models import tiny_model
from support.training import record, recorded, slow_interval

LENGTH = 24
"""Number of tokens of the outputs for training."""


@pytest.mark.parametrize("draft_share", [1e-6, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.06])
def test_a_replay_counts_the_passes_of_the_engine(draft_share: float, noise: float) -> None:
    target = tiny_model("llama")
    chosen = random.Random(1)
    records = recorded(target, num_records=2, num_tokens=24)
    # A long prompt, which is read in chunks, and an output that the target did not write.
    records.append(replace(records[0], prompt=tuple(chosen.randrange(256) for _ in range(130))))
    records.append(record(list(records[1].prompt), [chosen.randrange(258) for _ in range(30)]))
    replay = Replay(noisy(target, noise), 0.05, draft_share=draft_share)
    found = [replay.run(each) for each in records]
    drafter = Replay(noisy(target, noise), 0.05, draft_share=draft_share)._drafter
    curve = gate._curve(0.05)
    engine = Engine(target, drafter, VerifierConfig(max_batch_size=1), DRAFT, budget=FixedBudget(curve))
    # Both take the times of the curve. With measured times, the numbers of passes would depend on the machine's load.
    observe, drafts_of, widths, passes = drafter.observe, engine._drafting.drafts, [], []
    drafter.observe = lambda _: observe(PassReport(float(curve.seconds(1, widths[-1])[-1])))

    def drafts(sequences):
        [draft] = drafts_of(sequences)
        widths.append(1 + len(draft))
        return [draft]

    engine._drafting.drafts = drafts
    for each in records:
        config = GenerationConfig(max_tokens=len(each.output), ignore_end_tokens=True)
        outputs = list(engine.run([Request(0, each.prompt, config, wrap_target=teacher_forced(each.output))]))
        assert outputs[-1].sequence.output == each.output
        passes.append(outputs[-1].sequence.num_steps)
    engine.close()
    assert [num_passes for num_passes, _ in found] == passes
    assert len(records[1].output) > 1.5 * found[1][0] or noise


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> DraftModelConfig:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("llama", seed=1).model.save_pretrained(folder)
    tiny_model("llama").tokenizer.save_pretrained(folder)
    return DraftModelConfig(name=str(folder))


def shuffled(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return the same tokens in another order."""
    order = np.random.default_rng(0).permutation(LENGTH).tolist()
    nothing: tuple[tuple[()], ...] = ((),) * LENGTH
    return [
        replace(each, output=tuple(each.output[i] for i in order), top_token_ids=nothing, top_logprobs=nothing)
        for each in records
    ]


@pytest.fixture(scope="module")
def written() -> list[RequestRecord]:
    """One text after many prompts, so training improves held-out requests."""
    [each] = recorded(tiny_model("llama"), num_records=1, num_tokens=LENGTH)
    return [replace(each, request_id=f"r{index}", prompt=(index, *each.prompt)) for index in range(16)]


@pytest.fixture(scope="module")
def good(tmp_path_factory, checkpoint: DraftModelConfig, written: list[RequestRecord]) -> Path:
    return train(tmp_path_factory.mktemp("good"), checkpoint, written)


@pytest.fixture(scope="module")
def bad(tmp_path_factory, checkpoint: DraftModelConfig, written: list[RequestRecord]) -> Path:
    return train(tmp_path_factory.mktemp("bad"), checkpoint, shuffled(written))


def train(folder: Path, checkpoint: DraftModelConfig, records: Sequence[RequestRecord]) -> Path:
    model = tiny_model("llama", seed=1).model
    result = train_adapter(model, checkpoint.name, records, TrainConfig(learning_rate=0.04, epochs=12), folder)
    assert result.candidate is not None
    return result.candidate


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the gate's required numbers of requests to those of these tests."""
    for name, value in (("FEWEST_FAILURES", 8), ("FEWEST_DOCUMENTS", 4), ("FEWEST_REPLAY", 2)):
        monkeypatch.setattr(gate, name, value)


def others(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return the same requests, not as failures."""
    return [replace(each, is_failure=False) for each in records]


def test_a_good_adapter_is_let_through(good: Path, checkpoint, written) -> None:
    records = [*written[:8], *others(written[:2]), replace(written[0], pass_s=0.0)]
    verdict = judge(good, None, checkpoint, records)
    assert verdict.is_better, verdict
    assert verdict.failures is not None
    assert verdict.failures.num_requests == 8  # one needed no pass
    assert verdict.failures.num_documents == 8
    assert verdict.failures.gain > 0.5
    low, high = verdict.failures.interval_after_minus_before
    assert 0.0 < low <= verdict.failures.gain <= high
    assert verdict.replay_loss is not None
    assert verdict.replay_loss < 0.0
    assert verdict.figures()["failures"]["num_requests"] == 8


def test_an_adapter_of_shuffled_text_is_refused(good, bad, checkpoint, written) -> None:
    verdict = judge(bad, good, checkpoint, [*written[:8], *others(written[:2])])
    assert not verdict.is_better
    assert verdict.failures is not None
    assert verdict.failures.gain < -0.3


@pytest.mark.parametrize(
    ("num_failures", "num_documents", "num_replay"), [(7, 7, 2), (8, 3, 2), (8, 8, 1), (0, 0, 2), (8, 8, 0)]
)
def test_of_too_few_requests_or_documents_nothing_is_concluded(
    num_failures: int, num_documents: int, num_replay: int, good, checkpoint, written
) -> None:
    failures = [
        replace(each, document=f"d{index % max(1, num_documents)}") for index, each in enumerate(written[:num_failures])
    ]
    records = [*failures, *others(written[:num_replay])]
    assert shortage(records)
    verdict = judge(good, None, checkpoint, records)
    assert not verdict.is_better
    assert verdict.failures is verdict.replay is None


def test_what_went_well_before_must_go_on(good, bad, checkpoint, written) -> None:
    """The bad adapter is good at the shuffled text, but this gain does not compensate for the loss."""
    learned, remembered = shuffled(written[:10]), others(written[:4])
    verdict = judge(bad, good, checkpoint, [*learned, *remembered])
    assert not verdict.is_better
    assert "requests that went well" in verdict.reason
    assert judge(bad, good, checkpoint, [*learned, *others(shuffled(written[:4]))]).is_better


@pytest.mark.parametrize(
    ("after", "pass_s", "documents", "remembered", "reason"),
    [
        ([60] * 10, 1.0, 10, 60, "do not rise"),
        ([60] * 9 + [40], 1.0, 10, 60, "may be chance"),
        ([50] * 5 + [60] * 5, 1.0, 10, 60, ""),
        ([50] * 5 + [60] * 5, 1.0, 2, 60, "may be chance"),  # the whole gain comes from one document
        ([50] * 10, 2.0, 10, 60, "tokens per second fall"),
        ([50] * 10, 1.0, 10, 62, "requests that went well"),
        ([50] * 10, 1.0, 10, 61, ""),
    ],
)
def test_reasons(after: list[int], pass_s: float, documents: int, remembered: int, reason: str) -> None:
    records = [replace(record([1], [2] * 120), document=f"d{index * documents // 10}") for index in range(10)]
    compared = compare(records, [((60, 60.0), (passes, passes * pass_s)) for passes in after])
    replay = compare(records, [((60, 60.0), (remembered, float(remembered)))] * 10)
    assert compared.num_documents == documents
    assert compared.tokens_per_pass_before == pytest.approx(2.0)
    assert compared.tokens_per_pass_after == pytest.approx(sum(120 / each for each in after) / 10)
    assert compared.tokens_per_s_after == pytest.approx(1200 / (sum(after) * pass_s))
    found = objection(compared, compared, replay)
    assert reason in found
    assert bool(found) == bool(reason)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.sampled_from("abcdef"), st.integers(1, 3)), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_the_interval_draws_whole_documents(requests: list[tuple[float, str, int]], num_draws: int) -> None:
    """A request with weight n counts like n equal requests."""
    differences, documents, weights = map(list, zip(*requests, strict=True))
    found = interval_of(np.array(differences), documents, np.array(weights, float), num_draws)
    repeated = [(difference, name) for difference, name, count in requests for _ in range(count)]
    expected = slow_interval([each for each, _ in repeated], [name for _, name in repeated], num_draws)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("num_others", [100, 4_000])
def test_requests_stand_for_those_that_were_not_kept_or_replayed(num_others: int) -> None:
    """The 400 non-failures with the smallest keys are kept."""
    chosen = random.Random(0)
    failures = [record([index], [2]) for index in range(60)]
    keys = sorted(chosen.random() for _ in range(num_others))[:400]
    replay = [replace(record([1], [2]), is_failure=False, reservoir_key=key) for key in keys]
    held_out = [*failures, *replay]
    weights = weights_of(held_out, failures[:30], chosen.sample(replay, min(100, len(replay))))
    assert weights[:30].sum() == pytest.approx(60)
    assert weights[30:].sum() == pytest.approx(num_others, rel=0.15)
    assert set(weights[:30]) == {2.0}
