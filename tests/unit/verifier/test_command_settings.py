"""What the flags of the verifier's commands mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.config import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import load_settings
from speculant_verifier.generate.command import GenerateSettings
from speculant_verifier.service.command import VerifierSettings


@pytest.mark.parametrize(("command", "kind"), [("generate", GenerateSettings), ("verifier", VerifierSettings)])
def test_a_graph_file_is_named_alike_for_all_commands(
    command: str, kind: type[GenerateSettings | VerifierSettings]
) -> None:
    settings = load_settings(kind, command, ["--graph", "mine.pkl", "--client.graph", "theirs"])
    assert settings.graph_path == Path("mine.pkl")
    assert settings.client.graph == "theirs"
    assert load_settings(kind, command, ["--graph-path", "mine.pkl"]).graph_path == Path("mine.pkl")


@pytest.mark.parametrize(("command", "kind"), [("generate", GenerateSettings), ("verifier", VerifierSettings)])
def test_the_folder_of_records_has_a_short_name(
    command: str, kind: type[GenerateSettings | VerifierSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["--record", "mine"], ["--record=mine"], ["--record.folder", "mine"]):
        settings = load_settings(kind, command, [*arguments, "--record.threshold", "0.3"])
        assert settings.record == RecordConfig(folder=Path("mine"), threshold=0.3)
    assert load_settings(kind, command, []).record == RecordConfig()
    monkeypatch.setenv("SPECULANT_RECORD__FOLDER", "theirs")
    assert load_settings(kind, command, []).record.folder == Path("theirs")
    with pytest.raises(ConfigError, match=r"--record\.folder.*: expected one argument"):
        load_settings(kind, command, ["--record"])


def test_behind_two_dashes_a_text_is_a_text() -> None:
    assert load_settings(GenerateSettings, "generate", ["--", "--record"]).prompt == ["--record"]
