"""Rules, strategies and sources: valid combinations work, and each refusal suggests one that is accepted."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import get_args

import pytest

from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.strategies import StrategyName
from speculant_graph.types import RuleName
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.suitability import FITTING, Sources, require_strategy, suited
from support.tiny_models import tiny_gpt_oss

RULES: tuple[RuleName, ...] = get_args(RuleName)
STRATEGIES: tuple[StrategyName | None, ...] = (*get_args(StrategyName), None)
SOURCES = [Sources(has_ngrams, has_model) for has_ngrams in (False, True) for has_model in (False, True)]


def draft_of(strategy: StrategyName | None) -> DraftConfig:
    return DraftConfig() if strategy is None else DraftConfig(strategy=strategy)


def outcome(draft: DraftConfig, generation: GenerationConfig, sources: Sources) -> DraftConfig | ConfigError:
    try:
        return suited(draft, generation, sources)
    except ConfigError as error:
        return error


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_with_every_strategy(rule: RuleName, strategy: StrategyName | None, sources: Sources) -> None:
    draft, generation = draft_of(strategy), GenerationConfig(rule=rule)
    chosen = outcome(draft, generation, sources)
    if isinstance(chosen, DraftConfig):
        assert chosen.strategy in FITTING[rule], "no rule silently becomes another one"
        assert strategy in (None, chosen.strategy), "what was named is kept"
        require_strategy(chosen.strategy, sources, rule)
        return
    assert len(str(chosen).splitlines()) == 1
    assert (strategy or rule) in chosen.message or "draft model" in chosen.message
    wanted = GenerationConfig() if "generation.rule follow and" in chosen.fix else generation
    advised = [
        outcome(draft_of(each), wanted, sources)  # type: ignore[arg-type]
        for each in re.findall(r"draft\.strategy (\w+)", chosen.fix)
    ]
    others = {
        r"generation\.rule follow(?! and)": (GenerationConfig(), sources),
        "leave draft_model.name out": (generation, replace(sources, has_model=False)),
        "name a draft model": (generation, replace(sources, has_model=True)),
        "leave the graph and": (generation, replace(sources, has_ngrams=False)),
        "give graph_path": (generation, replace(sources, has_ngrams=True)),
    }
    advised += [outcome(draft, *other) for words, other in others.items() if re.search(words, chosen.fix)]
    assert advised
    assert all(isinstance(each, DraftConfig) for each in advised), (chosen, advised)


def test_a_strategy_that_nobody_named_is_chosen() -> None:
    for rule, has_ngrams in itertools.product(("token", "block"), (False, True)):
        chosen = suited(DraftConfig(), GenerationConfig(rule=rule), Sources(has_ngrams))
        assert chosen.strategy == ("sampling" if has_ngrams else "adaptive")
    for rule in ("tree-wor", "tree-iid"):
        assert suited(DraftConfig(), GenerationConfig(rule=rule), Sources(True)).strategy == "sampling"
    for draft, generation in (
        (DraftConfig(k=0), GenerationConfig(rule="block")),
        (DraftConfig(strategy="tree"), GenerationConfig(rule="block", speculation="off")),
    ):
        assert suited(draft, generation, Sources()) == draft, "nothing is drafted"


@pytest.mark.parametrize("command", ["generate", "verifier", "chat"])
def test_commands_refuse_what_does_not_fit(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    prompt = ["The parties"] if command == "generate" else []
    arguments = [command, *prompt, "--model", str(MODEL_FOLDER), "--strategy", "tree", "--rule", "block"]
    assert main(arguments) == 2
    shown = capfd.readouterr().err.splitlines()[-1]
    assert (
        f"speculant: {command}: rule block does not fit drafts by strategy tree; choose draft.strategy adaptive"
        in shown
    )


def test_a_command_says_what_it_chose(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--max-tokens", "4", "--no-measure-costs", "--temperature", "1"]
    assert main(["generate", "The parties", "--model", str(MODEL_FOLDER), "--rule", "token", *options]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "rule token" in line]
    assert len(said) == 1
    assert "rule token: drafting by strategy adaptive, which fits it, instead of tree" in said[0]


def test_requests_are_told_of_a_rule_that_does_not_fit() -> None:
    target = tiny_gpt_oss()
    verifier = VerifierConfig(measure_costs=False, num_threads=1)
    with SpeculativeDecoder(target=target, verifier_config=verifier) as decoder:
        for rule, has_warning in (("token", True), ("tree-wor", True), ("follow", False), ("nasd", False)):
            config = GenerationConfig(max_tokens=30, rule=rule, speculation="on", ignore_end_tokens=True)
            [result] = decoder.generate([[5, 6, 7, 5, 6, 7, 5, 6]], config)
            assert sum(result.drafted_by_depth) > 0
            expected = f"rule {rule} does not fit drafts by strategy tree and verified them like rule follow; "
            assert result.warning.startswith(expected) if has_warning else not result.warning
