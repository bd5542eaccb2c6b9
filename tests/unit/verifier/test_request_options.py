"""A request's drafting options: they take effect, change no text, and can't exceed the server's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Draft, DraftOptions, SequenceStep
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.nasd.nasd_drafter import NasdDrafter
from speculant_verifier.suitability import Sources, suited
from support.tiny_models import tiny_gpt_oss

TARGET = tiny_gpt_oss()
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
CONFIG = GenerationConfig(max_tokens=20, speculation="on", ignore_end_tokens=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "tree": {"k": 8, "max_depth": 6},
    "specexec": {"k": 8},
    "adaptive": {"k": 8},
    "nasd": {"k": 8, "n": 3, "filler_top_k": 4},
}


@pytest.fixture(scope="module", params=SETTINGS)
def decoder(request: pytest.FixtureRequest) -> Iterator[SpeculativeDecoder]:
    draft = DraftConfig(strategy=request.param, **SETTINGS[request.param])
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    with SpeculativeDecoder(target=TARGET, verifier_config=verifier, draft_config=draft) as made:
        yield made


@pytest.mark.parametrize("options", [{}, {"node_budget": 3}, {"node_budget": 0}, {"max_depth": 2}, {"max_depth": 1}])
def test_budget_and_depth_act_and_change_no_text(decoder: SpeculativeDecoder, options: dict[str, int]) -> None:
    [plain] = decoder.generate([PROMPT], CONFIG.model_copy(update={"speculation": "off"}))
    [result] = decoder.generate([PROMPT], CONFIG.model_copy(update=options))
    assert result.token_ids == plain.token_ids
    assert bool(result.num_drafted) == (options.get("node_budget") != 0)
    assert result.num_drafted <= options.get("node_budget", 8) * result.num_drafts
    assert len(result.drafted_by_depth) <= options.get("max_depth", 8)


REFUSED: list[tuple[str, Any, str]] = [
    ("node_budget", 9, "node_budget is 9, more than draft.k of 8; give at most 8"),
    ("max_depth", 7, "max_depth is 7, more than draft.max_depth of 6; give at most 6"),
    ("draft_temperature", 0.5, "draft_temperature does nothing with strategy tree: only sampling reads it"),
    ("draft_n", 3, "draft_n does nothing with strategy tree: only nasd reads it; leave it out"),
    ("draft_filler_top_k", 2, "draft_filler_top_k does nothing with strategy tree: only nasd"),
    ("draft_stop_if_unknown", False, "draft_stop_if_unknown does nothing with strategy tree: only nasd"),
]


@pytest.mark.parametrize("decoder", ["tree"], indirect=True)
@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_what_the_settings_do_not_have_is_refused(
    decoder: SpeculativeDecoder, name: str, value: Any, message: str
) -> None:
    config = CONFIG.model_copy(update={name: value})
    [result] = decoder.generate([PROMPT], config)
    assert (result.error.kind, result.error.field) == ("wrong_request", name)
    assert str(result.error).startswith(message)
    with pytest.raises(ConfigError) as caught:
        suited(decoder.draft_config, config, Sources())
    assert str(caught.value) == str(result.error.renamed(f"generation.{name}"))
    assert caught.value.field == f"generation.{name}"


@pytest.mark.parametrize("decoder", ["nasd"], indirect=True)
@pytest.mark.parametrize(
    ("name", "value", "most"), [("draft_n", 4, 3), ("draft_filler_top_k", 5, 4), ("max_depth", 9, 8)]
)
def test_limits_of_nasd(decoder: SpeculativeDecoder, name: str, value: int, most: int) -> None:
    [result] = decoder.generate([PROMPT], CONFIG.model_copy(update={name: value}))
    assert (result.error.field, result.error.fix) == (name, f"give at most {most}")
    [allowed] = decoder.generate([PROMPT], CONFIG.model_copy(update={name: most}))
    assert not allowed.error


@pytest.mark.parametrize("value", [{"node_budget": -1}, {"max_depth": 0}, {"draft_temperature": 0}, {"draft_n": 1}])
def test_values_that_no_server_takes(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationConfig(**value)
    assert caught.value.field.startswith("generation.")


class Watched:
    """Wraps a drafter and records its steps."""

    def __init__(self, drafter: Any) -> None:
        self._drafter, self.steps = drafter, list[SequenceStep]()
        self.state, self.open, self.finish = "ok", drafter.open, drafter.finish
        self.statistics, self.observe, self.close = drafter.statistics, drafter.observe, drafter.close

    def draft(self, steps: list[SequenceStep]) -> list[Draft]:
        self.steps += steps
        drafts: list[Draft] = self._drafter.draft(steps)
        return drafts


def test_temperature_and_settings_of_nasd_reach_the_drafter() -> None:
    graph = build_from_token_ids(PROMPT * 9, TARGET.fingerprint, max_order=3)
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    for draft, options in (
        (DraftConfig(strategy="sampling"), {"draft_temperature": 0.5}),
        (DraftConfig(strategy="nasd"), {"draft_n": 2, "draft_filler_top_k": 2, "draft_stop_if_unknown": False}),
    ):
        drafter = Watched(LocalDrafter(graph, draft) if draft.strategy == "sampling" else NasdDrafter(draft, 50))
        with SpeculativeDecoder(
            target=TARGET, verifier_config=verifier, draft_config=draft, drafter=drafter
        ) as decoder:
            decoder.generate([PROMPT], CONFIG.model_copy(update={**options, "max_tokens": 6}))
        assert drafter.steps
        for step in drafter.steps:
            names = ("temperature", "n", "filler_top_k", "stop_if_unknown")
            given = {f"draft_{name}": getattr(step.options, name) for name in names}
            assert {name: value for name, value in given.items() if value is not None} == options


def test_a_request_of_nasd_looks_up_shorter_n_grams() -> None:
    drafter = NasdDrafter(DraftConfig(strategy="nasd"), 50)
    text = [1, 2, 5, 3, 2, 6, 3, 2, 6, 1, 2]
    for session_id, (options, first, size) in enumerate(
        ((DraftOptions(), 5, 9), (DraftOptions(n=2), 6, 9), (DraftOptions(n=99), 5, 9)), 1
    ):
        drafter.open(session_id)
        [draft] = drafter.draft([SequenceStep(session_id, text, size, options=options)])
        assert draft.token_ids[0] == first
        drafter.finish(session_id)
    drafter.open(9)
    for stops, size in ((None, 0), (False, 4)):
        [draft] = drafter.draft([SequenceStep(9, [40], 4, options=DraftOptions(stop_if_unknown=stops))])
        assert len(draft) == size
