"""Adapters of the draft model while it serves: swapped, taken back, refused; and the text is the same all the while."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig, RecordConfig
from speculant_graph.errors import ConfigError, DraftLimitError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.adapter_files import add_to_note, read_adapter
from speculant_verifier.draft_model.adapters import BASE, Adapters, described
from speculant_verifier.draft_model.drafter import HIT_WINDOW
from speculant_verifier.model import TargetModel
from speculant_verifier.records.collect import RecordIdentity
from speculant_verifier.records.database import read_records
from support.draft_models import model_drafter
from support.lossless import Job, alone, decode
from support.tiny_models import tiny_model
from support.training import write_adapter


def base() -> TargetModel:
    """The target, and the draft model: it is right about nearly all tokens."""
    return tiny_model("llama")


@cache
def target() -> TargetModel:
    return base()


GREEDY: tuple[dict[str, Any], ...] = ({}, {}, {})
MIXED = ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}, {"temperature": 1.2, "seed": 5})


@cache
def jobs(is_greedy: bool) -> tuple[list[Job], list[tuple[int, ...]]]:
    """Requests, and what they write by plain decoding."""
    configs = [
        GenerationConfig(max_tokens=160, ignore_end_tokens=True, speculation="on", **settings)
        for settings in (GREEDY if is_greedy else MIXED)
    ]
    made = [Job((*range(3 + index, 20),), config) for index, config in enumerate(configs)]
    return made, [alone(target(), job) for job in made]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters: one that changes little, one that is of no use, and one of another model."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "small": write_adapter(folder / "small", base().model, std=0.0003),
        "random": write_adapter(folder / "random", base().model, std=2.0, seed=1),
        "other": write_adapter(folder / "other", tiny_model("qwen2").model, "another"),
    }


def made(folders: Mapping[str, Path], **settings: Any) -> tuple[ModelDrafter, Adapters, RecordIdentity]:
    drafter, identity = model_drafter(base()), RecordIdentity()
    config = DraftModelConfig(name="tiny", adapters=dict(folders), **settings)
    return drafter, Adapters(drafter, base(), config, identity), identity


def run(
    drafter: ModelDrafter, actions: Mapping[int, Callable[[], object]] | None = None, *, is_greedy: bool = True
) -> int:
    """Decode all requests, do something before some steps, and compare; return the number of steps."""
    draft, num_steps = drafter.draft, 0

    def stepped(steps):
        nonlocal num_steps
        num_steps += 1
        (actions or {}).get(num_steps, lambda: None)()
        return draft(steps)

    drafter.draft = stepped
    requests, expected = jobs(is_greedy)
    try:
        assert decode(target(), requests, drafter, 8, strategy="model").outputs == expected
    finally:
        drafter.draft = draft
    return num_steps


def test_load_and_roll_back(folders: dict[str, Path]) -> None:
    drafter, adapters, identity = made(folders)
    digest = read_adapter(folders["small"]).digest
    assert (adapters.state.present, adapters.state.previous, identity.adapter) == (BASE, None, "")
    assert (identity.draft_model, adapters.names) == ("tiny", folders)
    with pytest.raises(ConfigError, match="no adapter to go back to"):
        adapters.rollback()
    run(drafter)
    state = adapters.state
    assert state.acceptance is not None
    assert state.acceptance > 0.85
    assert 100 < state.num_judged <= HIT_WINDOW
    assert state.num_passes == drafter.num_passes > 0
    assert state.passes_s > 0.0
    assert "draft model with no adapter: right about" in state.line()
    loaded = adapters.load("small")
    assert (loaded.name, loaded.digest, identity.adapter) == ("small", digest, digest)
    after = adapters.state
    assert (after.present, after.previous, after.acceptance, after.num_judged) == (loaded, BASE, None, 0)
    assert after.previous_acceptance == state.acceptance
    assert adapters.load(str(folders["random"])).name == str(folders["random"])
    assert adapters.state.previous == loaded
    assert adapters.rollback() == loaded
    assert (adapters.state.previous, identity.adapter) == (None, digest)
    with pytest.raises(ConfigError, match="no adapter to go back to"):
        adapters.rollback()
    assert adapters.load("") == BASE
    assert identity.adapter == ""


@pytest.mark.parametrize(("name", "complaint"), [("other", "is for the model 'another'"), ("none", "holds no adapter")])
def test_a_wrong_one_changes_nothing(folders: dict[str, Path], name: str, complaint: str) -> None:
    drafter, adapters, identity = made(folders)
    adapters.load("small")
    before = adapters.state, identity.adapter
    with pytest.raises(ConfigError, match=complaint):
        adapters.load(name)
    assert (adapters.state, identity.adapter) == before
    run(drafter)


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


def test_what_drafts_already_keeps_what_there_is_to_go_back_to(folders: dict[str, Path]) -> None:
    _, adapters, _ = made(folders)
    first = adapters.load("small")
    assert adapters.load("small") == adapters.load(str(folders["small"])) == first
    assert adapters.rollback() == BASE


def test_one_is_loaded_at_a_time(folders: dict[str, Path]) -> None:
    _, adapters, _ = made(folders)
    begun, goes_on = threading.Event(), threading.Event()

    loaded = adapters._loaded

    def slowly(name: str) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return loaded(name)

    adapters._loaded = slowly
    thread = threading.Thread(target=adapters.load, args=("small",))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(DraftLimitError, match="another adapter is being loaded"):
        adapters.load("random")
    assert adapters.state.present == BASE
    goes_on.set()
    thread.join(60)
    assert adapters.state.present.name == "small"
    assert adapters.load("random").name == "random"


def test_a_swap_in_mid_request_changes_no_text(folders: dict[str, Path]) -> None:
    drafter, adapters, _ = made(folders)
    swaps = {5: lambda: adapters.load("small"), 9: lambda: adapters.load("random"), 12: adapters.rollback}
    num_steps = run(drafter, swaps, is_greedy=False)
    assert num_steps > 20
    assert adapters.state.present.name == "small"


def test_a_worse_one_is_taken_back_by_itself(folders: dict[str, Path]) -> None:
    drafter, adapters, identity = made(folders)
    run(drafter)
    run(drafter)
    assert drafter.hits[0] >= 400, "or there is nothing to compare with"
    adapters.load("random")
    assert adapters.state.previous == BASE
    num_steps = num_runs = 0
    while not adapters.state.num_rollbacks:
        num_steps += run(drafter)
        num_runs += 1
        assert num_runs < 6, "a model that is of no use is seldom asked, but it is tried"
    state = adapters.state
    assert (state.present, state.previous, state.num_rollbacks, identity.adapter) == (BASE, None, 1, "")
    assert num_steps > 100, "nothing was judged by a few tokens"
    run(drafter)
    run(drafter)
    assert adapters.state.acceptance is not None
    assert adapters.state.acceptance > 0.6


def test_a_good_one_stays(folders: dict[str, Path]) -> None:
    drafter, adapters, _ = made(folders)
    run(drafter)
    run(drafter)
    adapters.load("small")
    run(drafter)
    assert drafter.hits[0] >= 400
    assert (adapters.state.present.name, adapters.state.num_rollbacks) == ("small", 0)


def test_other_texts_take_nothing_back(folders: dict[str, Path]) -> None:
    """Both models read the same: harder texts after a swap are no fault of the new one."""
    drafter, adapters, _ = made(folders)
    run(drafter)
    adapters.load("small")
    generator = random.Random(0)
    for _ in range(20):
        drafter.ended([generator.randrange(250) for _ in range(100)])
    assert (adapters.state.present.name, adapters.state.num_rollbacks) == ("small", 0)


def test_one_is_on_trial_for_its_first_tokens_only(folders: dict[str, Path]) -> None:
    """Who compares for ever finds an equal one worse some day."""
    jobs_, outputs = jobs(is_greedy=True)
    known = [[*job.prompt, *output] for job, output in zip(jobs_, outputs, strict=True)]
    for num_before, is_taken_back in ((0, True), (40, False)):
        drafter, adapters, _ = made(folders)
        adapters.load("random")
        both = [each.model.model for each in (adapters._previous, adapters._present) if each]
        text = [1]
        for _ in range(70):  # whose tokens neither of the two is right about: one is as good as the other
            text.append(int(sum(model(torch.tensor([text])).logits[0, -1] for model in both).argmin()))
        for _ in range(num_before):
            drafter.ended(text)
        for _ in range(10):
            for text in known:
                drafter.ended(text)
        assert (adapters.state.num_rollbacks == 1) is is_taken_back, num_before


def test_records_name_the_adapter(folders: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = tmp_path / "tiny"
    base().model.save_pretrained(checkpoint)
    base().tokenizer.save_pretrained(checkpoint)
    verifier = VerifierConfig(model_name=str(checkpoint), device="cpu", num_threads=1, measure_costs=False)
    decoder = SpeculativeDecoder(
        verifier_config=verifier,
        draft_config=DraftConfig(strategy="model", k=4),
        draft_model=DraftModelConfig(name=str(checkpoint), adapters={"small": folders["small"]}),
        record=RecordConfig(folder=tmp_path / "records", threshold=1.0),
    )
    config = GenerationConfig(max_tokens=8, speculation="on")
    with decoder:
        assert decoder.adapters is not None
        first = decoder.generate([[5, 6, 7]], config)[0].token_ids
        decoder.adapters.load("small")
        assert decoder.generate([[5, 6, 7]], config)[0].token_ids == first
    digests = [record.adapter for record in read_records(tmp_path / "records")]
    assert digests == ["", read_adapter(folders["small"]).digest]
