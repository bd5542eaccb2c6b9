"""``speculant demo``: builds a graph, starts a sidecar, and decodes the same text with and without drafts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.settings import ReportingSettings, load_settings


class DemoSettings(ReportingSettings):
    """Build a graph from Python's standard library, serve it, and compare speculative with plain decoding.

    The exit status is 1 if any speculative text differs from the plain text of the same prompt.
    """

    # If one option of a section is set, the other options keep the demo's defaults.
    model_config = SettingsConfigDict(nested_model_default_partial_update=True)

    rounds: Annotated[int, Field(ge=1)] = 3
    """Number of measurements per prompt; the reported speeds are medians."""
    draft_model: bool = False
    """Also draft with the demo's draft model where n-grams are unsure and the draft model pays off."""
    draft: DraftConfig = DraftConfig()
    """Drafting options."""
    generation: GenerationConfig = GenerationConfig(max_tokens=160)
    """Settings for sampling and for the length of the output."""


def run(arguments: Sequence[str]) -> int:
    """Run the demo."""
    settings = load_settings(DemoSettings, "demo", arguments)
    sys.stdout.write("demo:    graph of Python's standard library, a sidecar, a small model; torch is imported …\n")
    sys.stdout.flush()  # before the import, which takes seconds
    from speculant_verifier.demo.run import run_demo

    return run_demo(settings, arguments)
