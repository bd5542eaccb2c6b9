"""Strategy settings in the decoder: NASD learns across sequences, and ignored settings are named."""

from __future__ import annotations

import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.strategies import READ_BY
from speculant_verifier.decoder import SpeculativeDecoder
from support.tiny_models import tiny_gpt_oss

TARGET = tiny_gpt_oss()
assert READ_BY.keys() <= DraftConfig.model_fields.keys()
VERIFIER = VerifierConfig(measure_costs=False, num_threads=1)
CONFIG = GenerationConfig(max_tokens=40, speculation="on", ignore_end_tokens=True)
OTHER_VALUES = {
    "max_candidates": 5,
    "temperature": 0.5,
    "sources": {"session"},
    "max_depth": 9,
    "max_branches": 3,
    "max_learned_tokens": 99,
    "n": 5,
    "filler_top_k": 2,
    "stop_if_unknown": False,
}


def decoder(**draft: object) -> SpeculativeDecoder:
    return SpeculativeDecoder(target=TARGET, verifier_config=VERIFIER, draft_config=DraftConfig(**draft))


def test_a_request_that_is_repeated_takes_fewer_passes() -> None:
    with decoder(strategy="nasd", k=8) as one:
        results = [one.generate([[5, 9, 3]], CONFIG)[0] for _ in range(3)]
    assert len({result.token_ids for result in results}) == 1
    assert results[1].num_steps < results[0].num_steps
    assert results[2].num_steps <= results[1].num_steps


@pytest.mark.parametrize("settings", [{"n": 2}, {"n": 16}, {"filler_top_k": 0}, {"stop_if_unknown": False}])
def test_the_text_is_the_same_with_every_setting(settings: dict[str, object]) -> None:
    with decoder(strategy="nasd", **settings) as one:
        [result] = one.generate([[5, 9, 3]], CONFIG)
        [plain] = one.generate([[5, 9, 3]], CONFIG.model_copy(update={"speculation": "off"}))
    assert result.token_ids == plain.token_ids
    assert result.num_drafts > 0


@pytest.mark.parametrize("name", READ_BY)
@pytest.mark.parametrize("strategy", ["adaptive", "tree", "specexec", "nasd"])
def test_settings_that_a_strategy_does_not_read_are_named(strategy: str, name: str, warnings: list[str]) -> None:
    decoder(strategy=strategy, **{name: OTHER_VALUES[name]}).close()
    named = [line for line in warnings if line.startswith(f"draft.{name} does nothing with strategy {strategy}: only ")]
    assert len(named) == (strategy not in READ_BY[name])
    assert all(line.endswith(f"{' or '.join(READ_BY[name])} reads it; leave it out") for line in named)
