"""Settings built in Python, switches with a value, and suggestions for misspelt names."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from pydantic import ByteSize

from speculant_graph.base_config import Config
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import ConfigError, DraftRequestError, SpeculantError
from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
from speculant_graph.settings import AllSettings, load_settings
from speculant_graph.similar import similar
from speculant_graph.types import Fingerprint
from support.configs import KINDS


def refusal(kind: type[Config], **values: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert "\n" not in str(caught.value)
    assert caught.value.message
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("section", KINDS)
def test_settings_refuse_in_one_line_that_names_the_setting(section: str) -> None:
    kind = KINDS[section]
    assert kind.section() == section
    assert refusal(kind, nonsense=1).field == f"{section}.nonsense"
    for name, info in kind.model_fields.items():
        wrong = object()
        assert refusal(kind, **{name: wrong}).field.startswith(f"{section}.{name}")
        if info.annotation is not bool and bool not in get_args(info.annotation):
            assert refusal(kind, **{name: True}).field == f"{section}.{name}"
        if info.annotation is ByteSize:
            for size in ("50%", "-1GB", "6GB or so", ""):
                assert refusal(kind, **{name: size}).field == f"{section}.{name}"


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DraftConfig, {"k": 3_000}, r"draft\.k: must be less than or equal to 2048 \(got 3000\)"),
        (DraftConfig, {"k": -1}, r"draft\.k: must be greater than or equal to 0 \(got -1\)"),
        (DraftConfig, {"strategy": "beam"}, r"draft\.strategy: must be 'greedy', .* \(got 'beam'\)"),
        (DraftConfig, {"max_dept": 3}, r"there is no setting draft\.max_dept; is it max_depth\?"),
        (GenerationConfig, {"rule": "xx"}, r"generation\.rule: must be 'follow', .* \(got 'xx'\)"),
        (GenerationConfig, {"prediction": 5}, r"^generation\.prediction: must be text \(got 5\)"),
        (GenerationConfig, {"prediction": ["x"]}, r"^generation\.prediction: "),
        (VerifierConfig, {"hf_token": 3}, r"verifier\.hf_token: must be text; "),
    ],
)
def test_what_settings_say(kind: type[Config], values: dict[str, object], message: str) -> None:
    # Promised behaviour: users read this message about a wrong setting.
    with pytest.raises(ConfigError, match=message):
        kind(**values)


def test_builders_say_the_same() -> None:
    with pytest.raises(ConfigError) as caught:
        GraphBuilder("tokenizer", max_order=11)
    assert caught.value.field == "graph.max_order"


@pytest.fixture(scope="module")
def generator() -> DraftGenerator:
    graph = build_from_token_ids([1, 2, 3, 1, 2, 3], Fingerprint("test", "00" * 32, 100), max_order=3)
    return DraftGenerator(graph)


@pytest.mark.parametrize("k", [-1, 2_049, 3_000, True, 2.5, "x"])
def test_k_is_one_rule(generator: DraftGenerator, k: int) -> None:
    for ask in (
        lambda: DraftConfig(k=k),
        lambda: generator.generate([1], k=k),
        lambda: generator.draft([1], k, "tree"),
    ):
        with pytest.raises(SpeculantError) as caught:
            ask()
        assert caught.value.field in ("k", "draft.k")


def test_k_may_be_anything_within_its_bounds(generator: DraftGenerator) -> None:
    assert generator.generate([1], k=0).token_ids == ()
    assert generator.generate([1], k=np.int64(2)).token_ids == (2, 3)  # type: ignore[arg-type]
    assert len(generator.generate([1], k=2_048)) == 2_048


@pytest.mark.parametrize("prompt", ["\ud800", None, 3, [100], [999_999], [-1], [1, True], [1.5], [[1]], ["a"], b"ab"])
def test_prompts_that_are_neither_text_nor_tokens(generator: DraftGenerator, prompt: object) -> None:
    with pytest.raises(DraftRequestError) as caught:
        generator.generate(prompt)  # type: ignore[arg-type]
    assert (len(str(caught.value).splitlines()), caught.value.field) == (1, "prompt")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


SWITCHES = [
    (section, name)
    for section, kind in KINDS.items()
    for name, info in kind.model_fields.items()
    if info.annotation is bool or bool in get_args(info.annotation)
]


@pytest.mark.parametrize("value", [False, True])
def test_switches_take_what_files_write(elsewhere: Path, value: bool) -> None:
    for section, name in SWITCHES:
        flag, text = f"--{section}.{name}".replace("_", "-"), str(value).lower()
        for arguments in ([flag, text], [f"{flag}={text}"]):
            settings = load_settings(AllSettings, "config", arguments)
            assert getattr(getattr(settings, section), name) is value, arguments
    (elsewhere / "speculant.toml").write_text(f"[client]\nlearn = {str(not value).lower()}\n", encoding="utf-8")
    assert load_settings(AllSettings, "config", ["--learn", str(value).lower()]).client.learn is value
    with pytest.raises(ConfigError) as caught:
        load_settings(AllSettings, "config", ["--learn=maybe"])
    assert caught.value.field == "client.learn"


FLAGS = ("--draft.max-learned-tokens", "--draft.max-depth", "--generation.top-k", "--top-k", "--draft.temperature")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("--draft.filler-top-n", None),
        ("--draft.max-dpeth", "--draft.max-depth"),
        ("--verifier.max-depth", "--draft.max-depth"),
        ("--draft.temprature", "--draft.temperature"),
        ("--tpo-k", "--top-k"),
        ("--draft.x", None),
        ("", None),
    ],
)
def test_only_what_resembles_is_suggested(name: str, found: str | None) -> None:
    assert similar(name, FLAGS) == found


def test_what_is_suggested_is_accepted() -> None:
    for section, kind in KINDS.items():
        for name in kind.model_fields:
            if len(name) < 4 or f"{name}s" in kind.model_fields:
                continue
            error = refusal(kind, **{name + "s": "x"})
            suggested = error.fix.removeprefix("is it ").removesuffix("?")
            assert suggested in kind.model_fields, f"{section}.{name}"


@pytest.mark.parametrize("form", [["--graph.{}", "7"], ["--graph.{}=7"], ["--{}", "7"], ["--{}=7"]])
@pytest.mark.parametrize("name", ["max_order", "max-order"])
def test_names_of_settings_are_flags(name: str, form: list[str]) -> None:
    arguments = [part.format(name) for part in form]
    assert load_settings(AllSettings, "test", arguments).graph.max_order == 7


@pytest.mark.parametrize("values", [["false"], ["true"], []])
def test_names_of_switches_are_flags(values: list[str]) -> None:
    settings = load_settings(AllSettings, "test", ["--verifier.measure_costs", *values])
    assert settings.verifier.measure_costs == (values != ["false"])
    assert load_settings(AllSettings, "test", ["--no-measure_costs"]).verifier.measure_costs is False


def test_values_keep_their_underscores(tmp_path: Path) -> None:
    settings = load_settings(AllSettings, "test", ["--graph.text_field=a_b", "--verifier.model_name", "my_model"])
    assert (settings.graph.text_field, settings.verifier.model_name) == ("a_b", "my_model")
    file = tmp_path / "file.toml"
    file.write_text("[generation]\nprediction = 5\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(AllSettings, "test", ["--config", str(file)])
    assert caught.value.field == "generation.prediction"
