"""What the flags of the verifier's commands mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.settings import load_settings
from speculant_verifier.cli import GenerateSettings
from speculant_verifier.service.command import VerifierSettings


@pytest.mark.parametrize(("command", "kind"), [("generate", GenerateSettings), ("verifier", VerifierSettings)])
def test_a_graph_file_is_named_alike_for_all_commands(
    command: str, kind: type[GenerateSettings | VerifierSettings]
) -> None:
    settings = load_settings(kind, command, ["--graph", "mine.pkl", "--client.graph", "theirs"])
    assert settings.graph_path == Path("mine.pkl")
    assert settings.client.graph == "theirs"
    assert load_settings(kind, command, ["--graph-path", "mine.pkl"]).graph_path == Path("mine.pkl")
