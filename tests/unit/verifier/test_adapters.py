"""Adapters of a serving draft model: swapped, rolled back and refused, while the text stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from speculant_graph.config import DraftModelConfig, GenerationConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.adapter_files import add_to_note, read_adapter
from speculant_verifier.draft_model.adapters import BASE, Adapters, described
from speculant_verifier.draft_model.drafter import HIT_WINDOW
from speculant_verifier.model import TargetModel
from speculant_verifier.records.record import RecordIdentity
from support.adapters import adapter_folders
from support.draft_models import model_drafter
from support.lossless import Job, decode, remembered
from support.tiny_models import tiny_model
from support.training import write_adapter

SAMPLING = ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}, {"temperature": 1.2, "seed": 5})


def base() -> TargetModel:
    """Return the draft model: a copy of the target, so nearly all its predictions are right."""
    return tiny_model("llama")


target = cache(base)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return adapter_folders(tmp_path_factory.mktemp("adapters"))


def made(folders: Mapping[str, Path], **settings: Any) -> tuple[ModelDrafter, Adapters, RecordIdentity]:
    drafter, identity = model_drafter(base()), RecordIdentity()
    config = DraftModelConfig(name="tiny", adapters=dict(folders), **settings)
    return drafter, Adapters(drafter, target(), config, identity), identity


def test_swaps_in_mid_request_change_no_text_and_can_be_taken_back(folders: dict[str, Path]) -> None:
    drafter, adapters, identity = made(folders)
    digest = read_adapter(folders["small"]).digest
    assert (adapters.state.present, adapters.state.previous, identity.adapter) == (BASE, None, "")
    with pytest.raises(ConfigError):
        adapters.rollback()
    states = {}

    def load() -> None:
        states["before"] = adapters.state
        loaded = adapters.load("small")
        assert (loaded.name, loaded.digest, identity.adapter) == ("small", digest, digest)
        assert adapters.load(str(folders["small"])) == loaded, "what drafts already keeps what there is to go back to"
        states["after"] = adapters.state

    def refuse() -> None:
        for name in ("other", "none"):
            with pytest.raises(ConfigError):
                adapters.load(name)

    actions = {8: load, 12: refuse, 16: lambda: adapters.load("random"), 19: adapters.rollback}
    draft, num_steps = drafter.draft, 0

    def stepped(steps):
        nonlocal num_steps
        num_steps += 1
        actions.get(num_steps, lambda: None)()
        return draft(steps)

    drafter.draft = stepped
    jobs = [
        Job(
            (*range(3 + index, 20),),
            GenerationConfig(max_tokens=160, ignore_end_tokens=True, speculation="on", **settings),
        )
        for index, settings in enumerate(SAMPLING)
    ]
    assert decode(target(), jobs, drafter, 8, strategy="model").outputs == [remembered(target(), job) for job in jobs]
    assert num_steps > 25
    before, after = states["before"], states["after"]
    assert before.acceptance is not None
    assert 20 < before.num_judged <= HIT_WINDOW
    assert before.num_passes > 0
    assert before.passes_s > 0.0
    assert (after.present.name, after.previous, after.acceptance, after.num_judged) == ("small", BASE, None, 0)
    assert after.previous_acceptance == before.acceptance
    assert (adapters.state.present.name, adapters.state.previous, identity.adapter) == ("small", None, digest)
    assert adapters.state.acceptance > 0.3
    with pytest.raises(ConfigError):
        adapters.rollback()
    assert adapters.load("") == BASE
    assert identity.adapter == ""


def run_long(drafter: ModelDrafter) -> None:
    """Decode requests, and compare with plain decoding."""
    jobs = [
        Job((*range(3 + index, 20),), GenerationConfig(max_tokens=160, ignore_end_tokens=True, speculation="on"))
        for index in range(3)
    ]
    assert decode(target(), jobs, drafter, 8, strategy="model").outputs == [remembered(target(), job) for job in jobs]


@pytest.mark.parametrize(("name", "stays"), [("random", False), pytest.param("small", True, marks=pytest.mark.slow)])
def test_a_worse_one_is_taken_back_by_itself(folders: dict[str, Path], name: str, *, stays: bool) -> None:
    drafter, adapters, identity = made(folders)
    while drafter.hits[0] < 400:
        run_long(drafter)
    adapters.load(name)
    for _ in range(2 if stays else 10):  # a useless model is seldom asked, but still tried
        run_long(drafter)
        if adapters.state.previous is None:
            break
    assert (adapters.state.present.name == name) == stays
    assert (adapters.state.previous is None, identity.adapter == "") == (not stays, not stays)


def test_an_adapter_says_whose_text_it_learned(folders: dict[str, Path], tmp_path: Path) -> None:
    legal = write_adapter(tmp_path / "legal", base().model, std=0.0003)
    add_to_note(legal, {"tenants": ["acme", ""]})
    drafter, adapters, identity = made({**folders, "legal": legal})
    given: list[object] = []
    drafter.swap = lambda model, tenants=None: given.append(tenants)
    identity.tenant = "house"
    adapters.load("legal")
    assert described(adapters.state.present) == "adapter 'legal' of requests without a tenant and tenant 'acme'"
    add_to_note(legal, {"tenants": ["acme"]})
    for identity.tenant in ("house", "acme"):
        adapters.load("")
        adapters.load("legal")
    both, alone = frozenset({"acme", ""}), frozenset({"acme"})
    assert given == [alone, None, alone, None, both], "those who name no tenant are served if they are acme's"
