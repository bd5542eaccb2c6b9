"""The gate: what a replay counts, and which adapters it lets through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig, TrainConfig
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.engine import Engine
from speculant_verifier.engine.sequence import Request
from speculant_verifier.model import TargetModel
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training import gate
from speculant_verifier.training.gate import FEWEST, Verdict, compare, judge
from speculant_verifier.training.replay import DRAFT, Replay, Replayed, TimedPasses
from speculant_verifier.training.run import TrainingResult, train_adapter
from support.draft_models import FixedPrice, flat, noisy
from support.tiny_models import tiny_model
from support.training import record, recorded


def price(draft_s: float) -> FixedPrice:
    return FixedPrice(flat(1.0, 0.02), flat(draft_s, draft_s / 8))


def engine_passes(target: TargetModel, drafter: ModelDrafter, records: Sequence[RequestRecord]) -> list[int]:
    """Passes of the real engine that is made to write the records, one after another."""
    engine = Engine(target, drafter, VerifierConfig(max_batch_size=1), DRAFT)
    passes = []
    for each in records:
        config = GenerationConfig(max_tokens=len(each.output), ignore_end_tokens=True)
        request = Request(0, each.prompt, config, forced=each.output)
        outputs = list(engine.run([request]))
        assert outputs[-1].sequence.output == each.output
        passes.append(outputs[-1].sequence.num_steps)
    engine.close()
    return passes


@pytest.mark.parametrize("draft_s", [1e-6, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.06])
def test_a_replay_counts_the_passes_of_the_engine(draft_s: float, noise: float) -> None:
    target = tiny_model("llama")
    model = noisy(target, noise)
    chosen = random.Random(1)
    records = recorded(target, num_records=2, num_tokens=24)
    # Long prompts are read in stretches, and some text is nobody's.
    records.append(replace(records[0], prompt=tuple(chosen.randrange(256) for _ in range(130))))
    records.append(record(list(records[1].prompt), [chosen.randrange(258) for _ in range(30)]))
    replay = Replay(model, price(draft_s), 2.0**-12)
    found = [replay.run(each) for each in records]
    passes = TimedPasses(model, 2.0**-12)
    drafter = ModelDrafter(passes, price(draft_s), DRAFT, clock=passes.clock)
    assert [each.num_passes for each in found] == engine_passes(target, drafter, records)
    assert [each.num_tokens for each in found] == [len(each.output) for each in records]
    assert found[1].tokens_per_pass > 1.5 or noise


def test_a_pass_takes_what_the_record_says_and_more_if_it_is_wide() -> None:
    target = tiny_model("llama")
    [written] = recorded(target, num_records=1)
    slow = replace(written, pass_s=100.0)
    drafted = Replay(target, price(1e-6), 2.0**-12).run(slow)
    assert 100.0 * drafted.num_passes < drafted.seconds < 130.0 * drafted.num_passes
    plain = Replay(target, price(1e6), 2.0**-12, DraftConfig(strategy="model", k=0)).run(slow)
    assert plain.num_passes == len(slow.output)
    assert plain.seconds == pytest.approx(100.0 * len(slow.output), abs=1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> DraftModelConfig:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("llama", seed=1).model.save_pretrained(folder)
    tiny_model("llama").tokenizer.save_pretrained(folder)
    return DraftModelConfig(name=str(folder), device="cpu")


@pytest.fixture(scope="module")
def written() -> list[RequestRecord]:
    """One text after many prompts, so that what is held out can be learnt."""
    [each] = recorded(tiny_model("llama"), num_records=1, num_tokens=40)
    return [replace(each, request_id=f"r{index}", prompt=(index, *each.prompt)) for index in range(16)]


@pytest.fixture(scope="module")
def good(tmp_path_factory, checkpoint: DraftModelConfig, written: list[RequestRecord]) -> TrainingResult:
    return train(tmp_path_factory.mktemp("good"), checkpoint, written)


@pytest.fixture(scope="module")
def bad(tmp_path_factory, checkpoint: DraftModelConfig, written: list[RequestRecord]) -> TrainingResult:
    """Of the same tokens in another order."""
    order = np.random.default_rng(0).permutation(40).tolist()
    shuffled = [
        replace(
            each,
            output=tuple(each.output[position] for position in order),
            top_token_ids=((),) * 40,
            top_logprobs=((),) * 40,
        )
        for each in written
    ]
    return train(tmp_path_factory.mktemp("bad"), checkpoint, shuffled)


def train(folder: Path, checkpoint: DraftModelConfig, records: Sequence[RequestRecord]) -> TrainingResult:
    model = tiny_model("llama", seed=1).model
    result = train_adapter(model, checkpoint.name, records, TrainConfig(learning_rate=0.02, accumulate=2), folder)
    assert result.candidate is not None
    return result


def verdict_of(candidate: Path | None, present: Path | None, checkpoint: DraftModelConfig, records) -> Verdict:
    assert candidate is not None
    return judge(candidate, present, checkpoint, records)


def test_a_good_adapter_is_let_through(good, checkpoint, written) -> None:
    assert good.candidate is not None
    replay = [replace(each, is_failure=False) for each in written[:2]]
    records = [*written[:FEWEST], *replay, replace(written[0], pass_s=0.0)]
    verdict = judge(good.candidate, None, checkpoint, records)
    assert verdict.is_better, verdict
    assert verdict.failures is not None
    assert verdict.replay is not None
    assert verdict.failures.num_requests == FEWEST  # one was written without a pass
    assert verdict.failures.gain > 0.5
    assert verdict.failures.interval_after_minus_before is not None
    low, high = verdict.failures.interval_after_minus_before
    assert 0.0 < low <= verdict.failures.gain <= high
    assert verdict.replay_loss is not None
    assert verdict.replay_loss < 0.0
    assert verdict.figures()["failures"]["num_requests"] == FEWEST
    assert [line.partition(":")[0] for line in verdict.lines()] == ["gate", "gate, replay"]


@pytest.mark.parametrize("number", [3, 12])
def test_an_adapter_of_shuffled_text_is_refused(number: int, good, bad, checkpoint, written) -> None:
    after_good = verdict_of(bad.candidate, good.candidate, checkpoint, written[:number])
    assert not after_good.is_better
    assert after_good.failures is not None
    assert after_good.failures.gain < -0.3
    assert after_good.reason == "tokens a pass do not rise"
    assert (after_good.failures.interval_after_minus_before is None) == (number < FEWEST)


def test_the_same_adapter_again_is_refused(good, checkpoint, written) -> None:
    """To the last figure: what is measured while it drafts must not decide what it drafts."""
    verdict = verdict_of(good.candidate, good.candidate, checkpoint, written[:10])
    assert not verdict.is_better
    assert verdict.failures is not None
    assert verdict.failures.interval_after_minus_before == (0.0, 0.0)


def test_what_went_well_before_must_go_on(good, bad, checkpoint, written) -> None:
    """The bad adapter writes the shuffled text well: its gain there does not make up for the loss."""
    order = np.random.default_rng(0).permutation(40).tolist()
    learned = [replace(each, output=tuple(each.output[position] for position in order)) for each in written[:10]]
    remembered = [replace(each, is_failure=False) for each in written[:4]]
    verdict = verdict_of(bad.candidate, good.candidate, checkpoint, [*learned, *remembered])
    assert not verdict.is_better
    assert "requests that went well" in verdict.reason
    assert verdict_of(bad.candidate, good.candidate, checkpoint, learned).is_better


def test_without_failures_replay_decides_and_without_requests_nobody(good, checkpoint, written) -> None:
    replay = [replace(each, is_failure=False) for each in written[:3]]
    verdict = verdict_of(good.candidate, None, checkpoint, replay)
    assert verdict.is_better
    assert verdict.replay is None
    assert not verdict_of(good.candidate, None, checkpoint, []).is_better


class Counted:
    """A replay whose outcomes are given."""

    def __init__(self, passes: Sequence[int], pass_s: float) -> None:
        self._passes, self._pass_s = iter(passes), pass_s

    def run(self, record: RequestRecord) -> Replayed:
        passes = next(self._passes)
        return Replayed(120, passes, passes * self._pass_s)


def test_figures_are_paired_by_request() -> None:
    records = [record([1], [2])] * 10
    before, after = Counted([60, 40] * 5, 1.0), Counted([40, 30] * 5, 2.0)
    compared = compare(before, after, records)  # type: ignore[arg-type]
    assert compared.tokens_per_pass_before == pytest.approx(2.5)
    assert compared.tokens_per_pass_after == pytest.approx(3.5)
    assert compared.interval_after_minus_before == pytest.approx((1.0, 1.0))
    assert compared.tokens_per_s_before == pytest.approx(2.4)
    assert compared.tokens_per_s_after == pytest.approx(1200 / 700)


@pytest.mark.parametrize(
    ("after", "pass_s", "reason"),
    [
        ([60] * 10, 1.0, "do not rise"),
        ([60] * 9 + [40], 1.0, "may be chance"),
        ([50] * 10, 2.0, "tokens a second fall"),
        ([50] * 10, 1.0, ""),
    ],
)
def test_reasons(after: list[int], pass_s: float, reason: str) -> None:
    compared = compare(Counted([60] * 10, 1.0), Counted(after, pass_s), [record([1], [2])] * 10)  # type: ignore[arg-type]
    objection = gate._objection(compared, None)
    assert reason in objection
    assert bool(objection) == bool(reason)
