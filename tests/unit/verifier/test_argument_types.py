"""Arguments of a wrong type are refused before anything is loaded, with one line that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig, VerifierConfig
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import ConfigError, GenerationRequestError, GraphError
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint
from speculant_verifier.decoder import SpeculativeDecoder
from support.tiny_models import tiny_gpt_oss


def small_graph() -> NgramGraph:
    """Return a small graph; each test makes its own, because a global one would outlive the core."""
    return build_from_token_ids([1, 2, 3, 1, 2, 4], Fingerprint("test", "00" * 32, 10), max_order=2)


WRONG: dict[str, tuple[object, ...]] = {
    "graph_path": (small_graph, 5, b"graph.pkl", ["graph.pkl", None], [5]),
    "verifier_config": ("my-model", {"model_name": "my-model"}, VerifierConfig),
    "draft_config": ({"k": 4}, 4, VerifierConfig()),
    "client_config": ("unix:///run/drafter.sock", {}),
    "draft_model": ("my-model",),
    "record": ("records",),
    "target": ("my-model", object()),
    "require_same_tokenizer": (1,),
    "drafter": (object(), "adaptive", LocalDrafter),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_the_decoder_names_an_argument_of_a_wrong_type(name: str, value: object) -> None:
    arguments: dict[str, Any] = {name: small_graph() if value is small_graph else value}
    with pytest.raises(ConfigError) as caught:
        SpeculativeDecoder(**arguments)
    assert caught.value.field == name
    assert str(caught.value).startswith(name)
    assert caught.value.fix.startswith("give a")
    assert "\n" not in str(caught.value)


def test_the_second_argument_is_no_name_of_a_model() -> None:
    model: Any = "my-model"
    with pytest.raises(ConfigError) as caught:
        SpeculativeDecoder("graph.pkl", model)
    assert caught.value.field == "verifier_config"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("graph", lambda: ("graph.pkl", DraftConfig())),
        ("graph", lambda: (small_graph().trie, DraftConfig())),
        ("config", lambda: (small_graph(), {"k": 4})),
        ("config", lambda: (None, "tree")),
    ],
)
def test_drafters_do_the_same(field: str, arguments: Callable[[], tuple[Any, Any]]) -> None:
    for kind in (SessionDrafter, LocalDrafter):
        with pytest.raises(ConfigError) as caught:
            kind(*arguments())
        assert caught.value.field == field


@pytest.mark.parametrize("name", [5, None, ["folder"]])
def test_the_builder_takes_no_tokenizer_but_a_name(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        GraphBuilder(tokenizer_name=name)
    assert caught.value.field == "graph.tokenizer_name"


@pytest.mark.parametrize("wrong", ["1", None, 1.5, {1: 2}, object()])
def test_look_ups_refuse_what_is_neither_ids_nor_a_number(wrong: Any) -> None:
    graph = small_graph()
    lookups = [
        lambda: graph.count(wrong),
        lambda: graph.match(wrong),
        lambda: graph.match_order([1], wrong),
        lambda: graph.match_order(wrong, 1),
        lambda: graph.successors(wrong),
        lambda: graph.probability(wrong, 1),
        lambda: graph.probability([1], wrong),
        lambda: graph.most_common(wrong),
        lambda: graph.most_common(1, wrong),
        lambda: graph.counts(wrong),
        lambda: graph.ngrams(wrong),
        lambda: graph.ngrams(1, wrong),
        lambda: list(graph.contexts(wrong)),
    ]
    for number, lookup in enumerate(lookups):
        with pytest.raises(GraphError) as caught:
            lookup()
        assert "; " in str(caught.value), number
    with pytest.raises(GraphError):
        graph.count(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [5, [1, 2], [None], [1.5], b"text"])
def test_a_list_without_prompts_is_refused_at_once(prompts: Any) -> None:
    with SpeculativeDecoder(target=tiny_gpt_oss(), verifier_config=VerifierConfig(measure_costs=False)) as decoder:
        with pytest.raises(GenerationRequestError) as caught:
            decoder.generate(prompts)
        assert caught.value.field == "prompt"
        assert decoder.generate([]) == []
