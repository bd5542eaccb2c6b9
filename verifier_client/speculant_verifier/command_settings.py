"""Settings of commands that decode: the model, what drafts for it, and what is recorded."""

from __future__ import annotations

from pathlib import Path

from speculant_graph.config import (
    ClientConfig,
    DraftConfig,
    DraftModelConfig,
    GenerationConfig,
    RecordConfig,
    VerifierConfig,
)
from speculant_graph.settings import CommandSettings


class DecodingSettings(CommandSettings):
    """Base of these commands."""

    graph_path: Path | None = None
    """Draft in this process from this graph file."""
    verifier: VerifierConfig = VerifierConfig()
    """The model."""
    draft: DraftConfig = DraftConfig()
    """How much to draft."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """A small language model that drafts, too; its name is enough."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one."""
    record: RecordConfig = RecordConfig()
    """Detailed mode: whole requests in a database. --record DIR is short for --record.folder DIR."""
