"""Node budget, depth and draft temperature of a request: the same by the library, over gRPC and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.types import Draft, SequenceStep
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.model import TargetModel
from support.drafters import ScriptedDrafter
from support.http_api import MODEL, serving
from support.tiny_models import tiny_gpt_oss
from support.verifier_service import collected, play

REQUEST_OPTIONS: list[dict[str, Any]] = [
    {},
    {"node_budget": 0},
    {"node_budget": 4, "max_depth": 1, "draft_temperature": 1.5},
]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return tiny_gpt_oss()


class Asked(ScriptedDrafter):
    """Drafts a chain of whatever is asked for; notes what that is."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.asked: list[tuple[int, int | None, float | None]] = []

    def _note(self, step: SequenceStep) -> Draft:
        self.asked.append((step.node_budget, step.max_depth, step.temperature))
        return Draft((65,) * step.node_budget, tuple(range(step.node_budget)))


def decoder_of(target: TargetModel) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target=target,
        verifier_config=VerifierConfig(measure_costs=False),
        draft_config=DraftConfig(k=6, strategy="greedy"),
        drafter=Asked(),
    )


def by_library(target: TargetModel, requested: dict[str, Any]) -> tuple[str, list[Any]]:
    with decoder_of(target) as decoder:
        config = GenerationConfig(max_tokens=9, speculation="on", ignore_end_tokens=True, **requested)
        [result] = decoder.generate([[1, 2, 3]], config)
        deepest = requested.get("max_depth", 6)
        assert len(result.drafted_by_depth) <= deepest
        return result.text, decoder.drafter.asked  # type: ignore[attr-defined]


def by_grpc(target: TargetModel, requested: dict[str, Any], folder: Path) -> tuple[str, list[Any]]:
    request = pb.GenerateRequest(
        prompt_tokens=pb.TokenSequence(token_ids=[1, 2, 3]),
        sampling=pb.SamplingOptions(max_tokens=9, ignore_end_tokens=True),
        speculation=pb.SpeculationOptions(**requested),
    )
    decoder = decoder_of(target)
    texts: list[str] = []

    async def scenario(stub: Any, _: Any) -> None:
        texts.append((await collected(stub.Generate(request)))[1])

    play(target, folder, scenario, lambda _: decoder, speculation="on")
    return texts[0], decoder.drafter.asked  # type: ignore[attr-defined]


def by_http(target: TargetModel, requested: dict[str, Any]) -> tuple[str, list[Any]]:
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 9, "ignore_eos": True}
    with decoder_of(target) as decoder, serving(decoder) as api:
        answer = api.post("completions", body | {"speculant": {"speculation": "on", **requested}}).json()
        return answer["choices"][0]["text"], decoder.drafter.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize("requested", REQUEST_OPTIONS, ids=str)
def test_the_drafter_is_asked_for_the_same(target: TargetModel, requested: dict[str, Any], tmp_path: Path) -> None:
    text, asked = by_library(target, requested)
    most = min(requested.get("node_budget", 6), 6, requested.get("max_depth", 6))
    assert bool(asked) == (most > 0)
    assert max((budget for budget, _, _ in asked), default=0) == most
    assert {each[1:] for each in asked} <= {(requested.get("max_depth"), requested.get("draft_temperature"))}
    assert by_grpc(target, requested, tmp_path) == by_http(target, requested) == (text, asked)
    assert text == by_library(target, {"node_budget": 0})[0]
